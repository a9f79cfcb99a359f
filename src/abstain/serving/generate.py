"""Answer and decide: the base model answers, and the live scorer decides about its answer.

Where that is the probe, one pass does both: an answer's states are captured token by token
(llm/engine/generation.py). They equal those of a second pass over the finished answer, unless its text is tokenized
differently than it was generated: then that pass is made. Any other scorer reads the finished answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor

from abstain.core.codes import Code
from abstain.core.contracts import Interaction, Question
from abstain.core.errors import AbstainError
from abstain.llm.engine.generation import Generated
from abstain.llm.engine.prompts import Pass
from abstain.llm.engine.requests import Generate, HiddenStates, Request
from abstain.llm.engine.tokenization import encode_pass
from abstain.llm.features.extraction import Prepared, UnreadableRow
from abstain.llm.signals.base import Answers
from abstain.serving.predictor import Decision, Predictor

EMPTY = "the base model gave no answer"


@dataclass(frozen=True)
class GeneratedAnswer:
    """An answer, the decision about it, and what was read of it; None where it has no confidence."""

    answer: str
    verdict: Decision
    answers: Answers | None = None


def room_for(predictor: Predictor, ask: Generate) -> str:
    """Why no question fits the base model's window together with the answer length of `ask`; empty where one may."""
    shortest = predictor.source.prepare_question(Question(interaction_id="shortest", question="?", contexts=()), ask)
    return shortest.reason if isinstance(shortest, UnreadableRow) else ""


def answer(
    predictor: Predictor,
    questions: Sequence[Question],
    ask: Generate,
    *,
    no_context: bool = False,
    tell: Callable[[str], None] | None = None,
) -> list[GeneratedAnswer]:
    """Answer `questions` with the settings of `ask`, and decide about each answer, in order.

    `tell`, for one question, is given its answer so far after each token.

    The decision is to abstain, with the reason, for a question that does not fit the window or has an empty answer. A
    question without any context is not answered, and the decision is `unavailable`, unless `no_context` is set. Raises
    `AbstainError` for states that are not finite, naming the row.
    """
    source, engine = predictor.source, predictor.source.engine()
    assert isinstance(source.ask, HiddenStates)  # the input of a probe
    by_states = predictor.scorer.kind == "probe"
    asked = replace(ask, samples=1, states=source.ask if by_states else None)
    prepared = [source.prepare_question(question, asked) for question in questions]
    without_context = set() if no_context else {at for at, one in enumerate(questions) if predictor.lacks_context(one)}
    requests = {
        str(at): p.request for at, p in enumerate(prepared) if isinstance(p, Prepared) and at not in without_context
    }
    listen = None if tell is None else lambda _, text: tell(text.rstrip("\ufffd"))  # a character may take two tokens
    found = {int(key): result[0] for key, result in engine.run(requests, listen) if isinstance(result, list)}
    answered = {at: one for at, one in found.items() if one.text}
    rows = [_interaction(questions[at], one.text, predictor) for at, one in answered.items()]
    if by_states:
        states = _states_of(predictor, requests, answered)
        read = Answers(rows, {source.wanted: [row.float() for row in states.values()]})
        scored = predictor.decide_all(read, [None] * len(rows), [0.0] * len(rows))
    else:
        scored, read = predictor.score_read(rows)
    decisions = dict(zip(answered, scored, strict=True))
    reads = {at: read.take([number]) for number, at in enumerate(answered)}
    results: list[GeneratedAnswer] = []
    for at, (question, p) in enumerate(zip(questions, prepared, strict=True)):
        key = question.interaction_id
        if at in without_context:
            results.append(GeneratedAnswer("", predictor.unavailable(question)))
        elif isinstance(p, UnreadableRow):
            results.append(GeneratedAnswer("", predictor.refuse(key, Code.TOO_LONG, p.reason)))
        elif at not in decisions:
            results.append(GeneratedAnswer("", predictor.refuse(key, Code.NOTHING_TO_SCORE, EMPTY)))
        else:
            results.append(GeneratedAnswer(found[at].text, decisions[at], reads[at]))
    return results


def _states_of(
    predictor: Predictor, requests: Mapping[str, Request], answered: Mapping[int, Generated]
) -> dict[int, Tensor]:
    """The states of the `answered` ones, in their order: those of their generation, or of a second pass."""
    source, engine = predictor.source, predictor.source.engine()
    states = {at: _states(one, requests[str(at)]) for at, one in answered.items()}
    again = {
        str(at): Request(source.continued(requests[str(at)].pass_, one.text), source.ask, requests[str(at)].name)
        for at, one in answered.items()
        if not _is_written_as_read(engine.loaded.tokenizer, source.continued((), one.text)[:1], one)
    }
    return states | {int(key): row for key, row in engine.run(again) if isinstance(row, Tensor)}


def _interaction(question: Question, answer: str, predictor: Predictor) -> Interaction:
    """`question` as answered by the base model."""
    asked = {name: getattr(question, name) for name in Question.model_fields}
    return Interaction(**asked, answer=answer, asked_at=datetime.now(UTC), model=predictor.source.params.model)


def _is_written_as_read(tokenizer: Any, text: Pass, one: Generated) -> bool:
    """Whether reading `text`, the answer's segment, gives the tokens that it was written in."""
    return tuple(encode_pass(tokenizer, text).ids) == one.tokens


def _states(one: Generated, request: Request) -> Tensor:
    assert one.states is not None
    if not torch.isfinite(one.states).all():
        raise AbstainError(
            Code.NOT_FINITE, f"{request.name}: the base model's states are not finite; try ABSTAIN_DTYPE=float32"
        )
    return one.states
