"""Answer and decide: the base model answers, and the gate decides about its answer.

If the live scorer is the probe, one generation does both: an answer's states are captured token by token
(llm/engine/generation.py). They equal those of a second forward pass over the finished answer, unless its text is
tokenized differently than it was generated: then that second pass is made. Any other scorer reads the finished answer.

Where the familiarity check is on, it comes before the generation (familiarity_check.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor

from abstain.config.serve_settings import FamiliarityMode
from abstain.core.codes import Code
from abstain.core.contracts import Interaction, Question
from abstain.core.errors import AbstainError
from abstain.llm.engine.generation import GeneratedText
from abstain.llm.engine.prompts import PromptSegments
from abstain.llm.engine.requests import Generate, HiddenStates, Request
from abstain.llm.engine.tokenization import encode_segments
from abstain.llm.features.extraction import PreparedRequest, UnreadableInteraction
from abstain.llm.features.feature_store import OnProgress
from abstain.serving.decision import Decision, DecisionReason
from abstain.serving.familiarity_check import CheckedQuestion, FamiliarityCheck, RetrieveChunks
from abstain.serving.gate import NO_CONTEXT_REASON, DecisionInput, Gate, ScoredAnswer
from abstain.serving.live_scorer import ExportedProbe
from abstain.serving.predictor import Predictor

EMPTY_ANSWER_REASON = DecisionReason(Code.NOTHING_TO_SCORE, "the base model gave no answer")


@dataclass(frozen=True)
class GeneratedAnswer:
    """An answer of the base model with the decision about it.

    Attributes:
        interaction: The answered question; None if there is no answer.
        scored: The decision and the answer's features.
    """

    interaction: Interaction | None
    scored: ScoredAnswer

    @property
    def text(self) -> str:
        """The answer; empty if there is none."""
        return self.interaction.answer if self.interaction else ""

    @property
    def decision(self) -> Decision:
        """The decision about the answer."""
        return self.scored.decision


def add_familiarity_check(
    gate: Gate,
    mode: FamiliarityMode,
    retrieve: RetrieveChunks | None,
    on_progress: OnProgress = lambda done, total: None,
) -> Gate:
    """Let a gate ask the familiarity of the questions that its base model is to answer.

    Args:
        gate: The gate.
        mode: What happens to a question that is not familiar; "off" asks nothing.
        retrieve: Retrieves background, for the mode "background".
        on_progress: Called with (done, total) requests for the threshold, if it is not known yet.

    Returns:
        The gate with its check.

    Raises:
        AbstainError: The extra `familiarity` is not installed.
    """
    if mode == "off":
        return gate
    check = FamiliarityCheck.open(
        gate.predictor.source, retrieve if mode == "background" else None, on_progress=on_progress
    )
    return replace(gate, familiarity=check)


def explain_no_room(predictor: Predictor, operation: Generate) -> str:
    """Explain why no question fits the context length of the base model together with the answer length.

    Args:
        predictor: Predictor with the base model.
        operation: Generation settings.

    Returns:
        The reason; empty if there may be questions that fit.
    """
    shortest = predictor.source.prepare_question(
        Question(interaction_id="shortest", question="?", contexts=()), operation
    )
    return shortest.reason if isinstance(shortest, UnreadableInteraction) else ""


def generate_answers(
    gate: Gate,
    questions: Sequence[Question],
    operation: Generate,
    *,
    allow_no_context: bool = False,
    on_text: Callable[[str], None] | None = None,
    entitlements: Sequence[str] = (),
) -> list[GeneratedAnswer]:
    """Answer questions with the base model, and let the gate decide about each answer.

    Args:
        gate: The gate.
        questions: The questions.
        operation: Generation settings.
        allow_no_context: Answer a question even if it has no context.
        on_text: Called with the answer so far after each token; only for a single question.
        entitlements: The asker's entitlements, within which background is retrieved.

    Returns:
        One answer per question, in order; without text if the question lacks its context, exceeds the context length,
        is not familiar, or has an empty answer.

    Raises:
        AbstainError: The base model's states are not finite; the message names the row.
    """
    predictor = gate.predictor
    source, engine = predictor.source, predictor.source.load_engine()
    assert isinstance(source.operation, HiddenStates)  # the input of a probe
    by_states = isinstance(predictor.scorer.scorer, ExportedProbe)
    operation = replace(operation, samples=1, states=source.operation if by_states else None)
    unanswered: dict[int, Decision] = {}
    requests: dict[str, Request] = {}
    checked: dict[int, CheckedQuestion] = {}

    def prepare(question: Question) -> PreparedRequest | UnreadableInteraction:
        return source.prepare_question(question, operation)

    final_questions = list(questions)
    has_background = gate.familiarity is not None and gate.familiarity.retrieve is not None
    for index, question in enumerate(final_questions):
        prepared = prepare(question)
        if not has_background and gate.is_context_missing(question, allow_no_context):
            unanswered[index] = gate.make_unavailable_decision(question.interaction_id, NO_CONTEXT_REASON)
        elif isinstance(prepared, UnreadableInteraction):
            unanswered[index] = _make_abstain_decision(gate, question, DecisionReason(Code.TOO_LONG, prepared.reason))
        elif gate.familiarity is not None:
            checked[index] = outcome = gate.familiarity.check(question, prepared.request, entitlements, prepare)
            final_questions[index] = outcome.question
            if outcome.request is None:
                unanswered[index] = _make_abstain_decision(gate, question, outcome.reason)
            elif gate.is_context_missing(outcome.question, allow_no_context):
                unanswered[index] = gate.make_unavailable_decision(question.interaction_id, NO_CONTEXT_REASON)
            else:
                requests[str(index)] = outcome.request
        else:
            requests[str(index)] = prepared.request
    # A character may take two tokens; the first one without the second is no character.
    on_generated = None if on_text is None else lambda _, text: on_text(text.rstrip("\ufffd"))
    results = {
        int(index): result[0] for index, result in engine.run(requests, on_generated) if isinstance(result, list)
    }
    generated = {index: result for index, result in results.items() if result.text}
    for index in results.keys() - generated.keys():
        unanswered[index] = _make_abstain_decision(gate, final_questions[index], EMPTY_ANSWER_REASON)
    states = _collect_states(predictor, requests, generated) if by_states else {}
    interactions = {
        index: _make_interaction(final_questions[index], result.text, predictor) for index, result in generated.items()
    }
    inputs = [
        DecisionInput(interaction.interaction_id, interaction, allow_no_context, states.get(index))
        for index, interaction in interactions.items()
    ]
    scored = dict(zip(interactions, gate.score_all(inputs), strict=True))
    scored |= {index: ScoredAnswer(decision) for index, decision in unanswered.items()}
    scored |= {index: _add_check(scored[index], outcome) for index, outcome in checked.items()}
    for index, interaction in interactions.items():
        if cleaned_answer := scored[index].decision.cleaned_answer:
            interactions[index] = interaction.model_copy(update={"answer": cleaned_answer})
    return [GeneratedAnswer(interactions.get(index), scored[index]) for index in range(len(final_questions))]


def _make_abstain_decision(gate: Gate, question: Question, reason: DecisionReason | None) -> Decision:
    return gate.apply_policy(gate.predictor.make_abstain_decision(question.interaction_id, reason))


def _add_check(scored: ScoredAnswer, outcome: CheckedQuestion) -> ScoredAnswer:
    """Add the tokens of the check to a decision, and what was unfamiliar to its reason."""
    decision, unfamiliar = scored.decision, outcome.reason
    n_tokens = decision.forward_tokens + outcome.forward_tokens
    reason = unfamiliar or decision.reason
    if unfamiliar and decision.reason and decision.reason != unfamiliar:
        # Under the code of the names, by which the log redacts and erases them.
        reason = replace(unfamiliar, message=f"{unfamiliar.message}; {decision.reason.message}")
    return replace(scored, decision=replace(decision, forward_tokens=n_tokens, reason=reason))


def _collect_states(
    predictor: Predictor, requests: Mapping[str, Request], generated: Mapping[int, GeneratedText]
) -> dict[int, Tensor]:
    """Return the states of each generated answer, float32: from its generation or from a second forward pass."""
    source, engine = predictor.source, predictor.source.load_engine()
    states = {index: _get_generated_states(result, requests[str(index)]) for index, result in generated.items()}
    reread_requests = {
        str(index): Request(
            source.append_answer(requests[str(index)].prompt, result.text),
            source.operation,
            requests[str(index)].name,
        )
        for index, result in generated.items()
        if not _retokenizes_equally(engine.loaded.tokenizer, source.append_answer((), result.text)[:1], result)
    }
    states |= {int(index): row for index, row in engine.run(reread_requests) if isinstance(row, Tensor)}
    return {index: row.float() for index, row in states.items()}


def _make_interaction(question: Question, answer: str, predictor: Predictor) -> Interaction:
    """Return `question` as answered by the base model."""
    fields = {name: getattr(question, name) for name in Question.model_fields}
    return Interaction(**fields, answer=answer, asked_at=datetime.now(UTC), model=predictor.source.params.model)


def _retokenizes_equally(tokenizer: Any, answer: PromptSegments, generated: GeneratedText) -> bool:
    """Return whether `answer`, the answer's segment, is tokenized into the tokens that were generated."""
    return tuple(encode_segments(tokenizer, answer).ids) == generated.tokens


def _get_generated_states(generated: GeneratedText, request: Request) -> Tensor:
    assert generated.states is not None
    if not torch.isfinite(generated.states).all():
        raise AbstainError(
            Code.NOT_FINITE, f"{request.name}: the base model's states are not finite; try ABSTAIN_DTYPE=float32"
        )
    return generated.states
