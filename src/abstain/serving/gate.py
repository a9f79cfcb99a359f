"""The gate in process: `Gate.open(bundle).decide(question, contexts, answer)` for a RAG service in Python.

The server (serving/api) with its gateways, `abstain score` and `abstain generate` decide by the same class. Whatever
keeps the gate from a decision makes it `unavailable`, never `show`: no contexts where they are needed, a version
without a guarantee, features that the scorer lacks. What is done with such an answer, `on_unavailable` says: it is
withheld by default.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torch import Tensor

from abstain.config.serve_settings import OnUnavailable
from abstain.config.settings import Settings, load_settings
from abstain.core import paths
from abstain.core.bundle_format import is_whole
from abstain.core.codes import Code
from abstain.core.contracts import Context, Interaction, Question, make_unnamed_context
from abstain.core.errors import AbstainError
from abstain.llm.engine.prompts import load_layout
from abstain.llm.engine.tokenization import EncodedPrompt
from abstain.llm.features.extraction import UnreadableInteraction
from abstain.llm.signals.base import FeatureBatch
from abstain.llm.signals.compute_features import OnComputed, ProvidedFeatures
from abstain.serving.decision import Decision
from abstain.serving.explanation import Explanation, explain
from abstain.serving.feature_spec import FeatureSpec
from abstain.serving.log_probs import AnswerLogProbs, parse_log_probs
from abstain.serving.predictor import Predictor
from abstain.serving.provided_features import MissingFeatures, build_provided_features

UNKNOWN_MODEL = "unknown"
"""The writer of an answer where the caller does not name it."""
NO_CONTEXT_REASON = "no context was given, and the scorer was trained to judge answers by theirs"


@dataclass(frozen=True)
class DecisionInput:
    """An answer to decide about: its texts, what an engine gave of it, or both.

    Attributes:
        row: None where no texts are known.
        no_context: an answer without any context is meant to be decided on.
        states: the probe's input, float32 (tokens, d), as `FeatureSpec` describes it.
    """

    interaction_id: str
    interaction: Interaction | None
    no_context: bool = False
    states: Tensor | None = None
    log_probs: AnswerLogProbs | None = None


@dataclass(frozen=True)
class UnreadAnswer:
    """An answer that the base model has to read. `given`: the results that are there already."""

    row: Interaction
    given: ProvidedFeatures


@dataclass(frozen=True)
class ScoredAnswer:
    """A decision, and the answer with what was read of it, for a shadow (serving/api/shadow.py); None: nothing was."""

    decision: Decision
    answers: FeatureBatch | None = None


@dataclass(frozen=True)
class Gate:
    """A released version, ready to decide. `spec`: what its scorer reads."""

    predictor: Predictor
    spec: FeatureSpec
    on_unavailable: OnUnavailable = "abstain"

    @classmethod
    def open(
        cls,
        bundle: Path,
        settings: Settings | None = None,
        on_unavailable: OnUnavailable = "abstain",
        keep: OnComputed | None = None,
        digest: str | None = None,
    ) -> Gate:
        """The gate of a release's folder.

        Args:
            keep: given to `Predictor.open`.
            digest: `bundle_sha256` of the event in registry.json that promoted it. Without it the files are compared
                with the digest in the folder alone, which tells damage, but not who writes all of them.

        Raises:
            AbstainError: the files are not those that were released; and as `Predictor.open` does.
        """
        if not is_whole(bundle, digest):
            raise AbstainError(
                Code.BAD_ARTIFACT,
                f"the files in {bundle} are missing, or not those that were released: fetch the release again",
            )
        settings = settings or load_settings()
        predictor = Predictor.open(bundle / paths.RELEASED_ONNX.name, settings, keep)
        return cls(predictor, FeatureSpec.from_scorer(predictor.scorer, settings), on_unavailable)

    @property
    def version(self) -> str:
        return self.predictor.scorer.metadata["version"]

    def decide(
        self,
        question: str | None = None,
        contexts: Sequence[str | Context] = (),
        answer: str | None = None,
        *,
        states: Tensor | None = None,
        response: Mapping[str, Any] | None = None,
        interaction_id: str | None = None,
        no_context: bool = False,
    ) -> Decision:
        """The decision about one answer, by its texts, by what an engine has computed of it, or by both.

        Args:
            contexts: what was retrieved, best first; with `no_context`, an answer without any is decided on, too.
            states: the states that `spec` describes, float32 (tokens, d); nothing is read again for them.
            response: of an OpenAI-style API, with log-probabilities.

        With nothing given it is `unavailable`, and names what the scorer needs. Raises `AbstainError` for a question
        without an answer or the other way around, and for states or log-probabilities of another answer; pydantic's
        `ValidationError` for an empty text.
        """
        if (question is None) != (answer is None):
            raise AbstainError(Code.USAGE, "a question and its answer go together: give both, or states alone")
        row = None
        if question is not None and answer is not None:
            row = make_interaction(question, contexts, answer, interaction_id)
        key = row.interaction_id if row else interaction_id or make_interaction_id()
        log_probs = None if response is None else self.parse_log_probs(response, row)
        (decision,) = self.decide_all([DecisionInput(key, row, no_context, states, log_probs)])
        return decision

    def parse_log_probs(self, response: Mapping[str, Any], row: Interaction | None) -> AnswerLogProbs:
        """The log-probabilities in `response`. Raises `AbstainError` where they are not of this answer."""
        return parse_log_probs(response, self.spec, row.answer if row else None, self.encode(row) if row else None)

    def encode(self, row: Interaction) -> EncodedPrompt:
        """The tokens that the base model reads of `row`. Raises `AbstainError` where it cannot read it."""
        found = self.predictor.source.encode(row)
        if isinstance(found, UnreadableInteraction):
            raise AbstainError(Code.TOO_LONG, found.reason)
        return found

    def decide_all(self, inputs: Sequence[DecisionInput]) -> list[Decision]:
        """The decisions about several answers, in order, in as few passes of the base model as they take.

        Raises `AbstainError` as `score_without_model` does, and where the base model's results are not finite.
        """
        return [scored.decision for scored in self.score_all(inputs)]

    def score_all(self, inputs: Sequence[DecisionInput]) -> list[ScoredAnswer]:
        """What `decide_all` gives, with what was read of each answer."""
        outcomes = [self.score_without_model(decision_input) for decision_input in inputs]
        read = iter(self.score_with_model([each for each in outcomes if isinstance(each, UnreadAnswer)]))
        return [next(read) if isinstance(each, UnreadAnswer) else each for each in outcomes]

    def score_without_model(self, decision_input: DecisionInput) -> ScoredAnswer | UnreadAnswer:
        """Decide by what is given alone, if that suffices.

        Returns:
            The decision, which is `unavailable` where there is nothing to decide by; or, where the base model has to
            read it, the answer for `score_with_model`.

        Raises:
            AbstainError: States and log-probabilities are of different numbers of tokens.
        """
        key, row = decision_input.interaction_id, decision_input.interaction
        if row is not None and self.is_context_missing(row, decision_input.no_context):
            return ScoredAnswer(self.decide_without_context(key))
        given = build_provided_features(self.predictor.scorer, row, decision_input.states, decision_input.log_probs)
        if not isinstance(given, MissingFeatures):
            (decision,) = self.predictor.score_answers(given, [None], [0.0])
            return ScoredAnswer(self.apply_policy(replace(decision, interaction_id=key)), given)
        if row is not None:
            return UnreadAnswer(row, given.results)
        reason = f"{Code.NOTHING_TO_SCORE}: the scorer needs more: {', '.join(given.names)}; give the texts as well"
        return ScoredAnswer(self.unavailable(key, reason))

    def score_with_model(self, unread: Sequence[UnreadAnswer]) -> list[ScoredAnswer]:
        """The decisions about answers that the base model reads together, in order, with what was read of each."""
        read = self.predictor.reader.read([each.row for each in unread], [each.given for each in unread])
        decisions = self.predictor.score_answers(read.batch, read.unreadable, read.forward_tokens)
        return [
            ScoredAnswer(self.apply_policy(decision), None if unreadable else read.batch.take([number]))
            for number, (decision, unreadable) in enumerate(zip(decisions, read.unreadable, strict=True))
        ]

    def explain(self, row: Interaction, no_context: bool = False) -> Explanation:
        """The decision about one answer, with what led to it. Raises `AbstainError` as `decide_all` does."""
        (scored,) = self.score_all([DecisionInput(row.interaction_id, row, no_context)])
        return explain(self.predictor, scored.decision, scored.answers)

    def is_context_missing(self, asked: Interaction | Question, no_context: bool) -> bool:
        """Whether nothing was retrieved for `asked`, where the prompt has a place for it and that is not meant."""
        if no_context or asked.contexts or not self.predictor.scorer.requires:
            return False
        return load_layout(self.predictor.source.params.layout).takes_contexts

    def decide_without_context(self, interaction_id: str) -> Decision:
        """The decision about what lacks its context."""
        return self.unavailable(interaction_id, f"{Code.NOTHING_TO_SCORE}: {NO_CONTEXT_REASON}")

    def unavailable(self, interaction_id: str, reason: str) -> Decision:
        """No decision, for `reason`, which has its code in front."""
        threshold, guarantee = self.predictor.threshold, self.predictor.guarantee
        return self.apply_policy(
            Decision(interaction_id, "unavailable", None, threshold, self.version, guarantee, reason=reason)
        )

    def apply_policy(self, decision: Decision) -> Decision:
        """`decision`, `unavailable` where this version guarantees nothing, with what is done with such answers."""
        decision = replace(decision, feature_spec=self.spec.digest)
        if decision.decision != "unavailable" and not self.predictor.has_guarantee:
            reason = f"{Code.NO_THRESHOLD}: version {self.version} has no guarantee: {self.predictor.guarantee}"
            decision = replace(decision, decision="unavailable", reason=decision.reason or reason)
        if decision.decision == "unavailable":
            decision = replace(decision, show=self.on_unavailable == "show")
        return decision

    def warm_up(self) -> None:
        """Load the base model and run every part once, so that the first request is not the slowest."""
        self.decide("Is this read?", ["Yes."], "Yes.")


def make_interaction(
    question: str, contexts: Sequence[str | Context], answer: str, interaction_id: str | None = None
) -> Interaction:
    """An answered question from its texts. Raises pydantic's `ValidationError` for an empty one."""
    return Interaction(
        interaction_id=interaction_id or make_interaction_id(),
        asked_at=datetime.now(UTC),
        question=question,
        answer=answer,
        contexts=to_contexts(contexts),
        model=UNKNOWN_MODEL,
    )


def to_contexts(given: Sequence[str | Context]) -> tuple[Context, ...]:
    """Contexts; those without an id are named after their text."""
    return tuple(one if isinstance(one, Context) else make_unnamed_context(one) for one in given)


def make_interaction_id() -> str:
    """An id for an interaction that has none."""
    return f"gate-{secrets.token_hex(12)}"
