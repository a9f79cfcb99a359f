"""Answer and decide: the base model answers, and the gate decides about its answer.

Where the live scorer is the probe, one pass does both: an answer's states are captured token by token
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
from abstain.llm.engine.generation import GeneratedText
from abstain.llm.engine.prompts import PromptSegments
from abstain.llm.engine.requests import Generate, HiddenStates, Request
from abstain.llm.engine.tokenization import encode_prompt
from abstain.llm.features.extraction import UnreadableInteraction
from abstain.serving.decision import Decision
from abstain.serving.gate import DecisionInput, Gate, ScoredAnswer
from abstain.serving.predictor import Predictor

EMPTY_ANSWER_REASON = "the base model gave no answer"


@dataclass(frozen=True)
class GeneratedAnswer:
    """What the base model answered, and the decision about it. `row`: None where there is no answer."""

    row: Interaction | None
    scored: ScoredAnswer

    @property
    def text(self) -> str:
        return self.row.answer if self.row else ""

    @property
    def decision(self) -> Decision:
        return self.scored.decision


def explain_no_room(predictor: Predictor, ask: Generate) -> str:
    """Why no question fits the base model's window together with the answer length of `ask`; empty where one may."""
    shortest = predictor.source.prepare_question(Question(interaction_id="shortest", question="?", contexts=()), ask)
    return shortest.reason if isinstance(shortest, UnreadableInteraction) else ""


def generate_answers(
    gate: Gate,
    questions: Sequence[Question],
    ask: Generate,
    *,
    no_context: bool = False,
    on_text: Callable[[str], None] | None = None,
) -> list[GeneratedAnswer]:
    """Answer `questions` with the settings of `ask`, and let `gate` decide about each answer, in order.

    Args:
        no_context: a question without any context is answered, too.
        on_text: for one question, is given its answer so far after each token.

    Returns:
        The answers: none for a question that lacks its context, does not fit the window, or has an empty answer.

    Raises:
        AbstainError: The base model's states are not finite; the row is named.
    """
    predictor = gate.predictor
    source, engine = predictor.source, predictor.source.engine()
    assert isinstance(source.operation, HiddenStates)  # the input of a probe
    by_states = predictor.scorer.kind == "probe"
    ask = replace(ask, samples=1, states=source.operation if by_states else None)
    refused: dict[int, Decision] = {}
    requests: dict[str, Request] = {}
    for number, question in enumerate(questions):
        prepared = source.prepare_question(question, ask)
        if gate.is_context_missing(question, no_context):
            refused[number] = gate.decide_without_context(question.interaction_id)
        elif isinstance(prepared, UnreadableInteraction):
            refused[number] = _refuse(gate, question, Code.TOO_LONG, prepared.reason)
        else:
            requests[str(number)] = prepared.request
    # A character may take two tokens, of which the first alone is none.
    listen = None if on_text is None else lambda _, text: on_text(text.rstrip("\ufffd"))
    results = {int(key): result[0] for key, result in engine.run(requests, listen) if isinstance(result, list)}
    generated = {number: result for number, result in results.items() if result.text}
    for number in results.keys() - generated.keys():
        refused[number] = _refuse(gate, questions[number], Code.NOTHING_TO_SCORE, EMPTY_ANSWER_REASON)
    states = _states_of(predictor, requests, generated) if by_states else {}
    rows = {number: _interaction(questions[number], result.text, predictor) for number, result in generated.items()}
    inputs = [DecisionInput(row.interaction_id, row, no_context, states.get(number)) for number, row in rows.items()]
    scored = dict(zip(rows, gate.score_all(inputs), strict=True))
    scored |= {number: ScoredAnswer(decision) for number, decision in refused.items()}
    return [GeneratedAnswer(rows.get(number), scored[number]) for number in range(len(questions))]


def _refuse(gate: Gate, question: Question, code: Code, reason: str) -> Decision:
    return gate.apply_policy(gate.predictor.make_abstain_decision(question.interaction_id, code, reason))


def _states_of(
    predictor: Predictor, requests: Mapping[str, Request], generated: Mapping[int, GeneratedText]
) -> dict[int, Tensor]:
    """The states of each generated answer, float32: those of its generation, or of a second pass."""
    source, engine = predictor.source, predictor.source.engine()
    states = {number: _states(result, requests[str(number)]) for number, result in generated.items()}
    again = {
        str(number): Request(
            source.append_answer(requests[str(number)].prompt, result.text),
            source.operation,
            requests[str(number)].name,
        )
        for number, result in generated.items()
        if not _retokenizes_equally(engine.loaded.tokenizer, source.append_answer((), result.text)[:1], result)
    }
    states |= {int(key): row for key, row in engine.run(again) if isinstance(row, Tensor)}
    return {number: row.float() for number, row in states.items()}


def _interaction(question: Question, answer: str, predictor: Predictor) -> Interaction:
    """`question` as answered by the base model."""
    fields = {name: getattr(question, name) for name in Question.model_fields}
    return Interaction(**fields, answer=answer, asked_at=datetime.now(UTC), model=predictor.source.params.model)


def _retokenizes_equally(tokenizer: Any, text: PromptSegments, one: GeneratedText) -> bool:
    """Whether reading `text`, the answer's segment, gives the tokens that it was written in."""
    return tuple(encode_prompt(tokenizer, text).ids) == one.tokens


def _states(one: GeneratedText, request: Request) -> Tensor:
    assert one.states is not None
    if not torch.isfinite(one.states).all():
        raise AbstainError(
            Code.NOT_FINITE, f"{request.name}: the base model's states are not finite; try ABSTAIN_DTYPE=float32"
        )
    return one.states
