"""The gate in process: `Gate.open(bundle).decide(question, contexts, answer)` for a RAG service in Python.

The server (serving/api) decides by the same class. Whatever keeps the gate from a decision makes it `unavailable`,
never `show`: no contexts where they are needed, a version without a guarantee, features that the scorer lacks. What is
done with such an answer, `on_unavailable` says: it is withheld by default.
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
from abstain.core.codes import Code
from abstain.core.contracts import Context, Interaction, unnamed_context
from abstain.core.errors import AbstainError
from abstain.llm.engine.tokenization import EncodedPass
from abstain.llm.features.extraction import UnreadableRow
from abstain.llm.signals.base import Answers
from abstain.llm.signals.compute_features import Given, Keep
from abstain.serving.explanation import Explanation, explain
from abstain.serving.feature_spec import FeatureSpec
from abstain.serving.given import Missing, given_answers
from abstain.serving.log_probs import AnswerLogProbs, read_log_probs
from abstain.serving.predictor import Decision, Predictor

UNKNOWN_WRITER = "unknown"
"""The writer of an answer where the caller does not name it."""


@dataclass(frozen=True)
class AskedAnswer:
    """An answer to decide about: its texts, what an engine gave of it, or both.

    Attributes:
        row: None where no texts are known.
        no_context: an answer without any context is meant to be decided on.
        states: the probe's input, float32 (tokens, d), as `FeatureSpec` describes it.
    """

    interaction_id: str
    row: Interaction | None
    no_context: bool = False
    states: Tensor | None = None
    log_probs: AnswerLogProbs | None = None


@dataclass(frozen=True)
class Judged:
    """A decision, and the answer with what was read of it, for a shadow (serving/api/shadow.py); None: nothing was."""

    decision: Decision
    answers: Answers | None = None


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
        keep: Keep | None = None,
    ) -> Gate:
        """The gate of a release's folder. Raises `AbstainError` as `Predictor.open` does, which is given `keep`."""
        settings = settings or load_settings()
        predictor = Predictor.open(bundle / paths.RELEASED_ONNX.name, settings, keep)
        return cls(predictor, FeatureSpec.of(predictor.scorer, settings), on_unavailable)

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
            row = interaction(question, contexts, answer, interaction_id)
        key = row.interaction_id if row else interaction_id or new_id()
        log_probs = None if response is None else self.log_probs(response, row)
        (decision,) = self.decide_all([AskedAnswer(key, row, no_context, states, log_probs)])
        return decision

    def log_probs(self, response: Mapping[str, Any], row: Interaction | None) -> AnswerLogProbs:
        """The log-probabilities in `response`. Raises `AbstainError` where they are not of this answer."""
        return read_log_probs(response, self.spec, row.answer if row else None, self.tokens(row) if row else None)

    def tokens(self, row: Interaction) -> EncodedPass:
        """The tokens that the base model reads of `row`. Raises `AbstainError` where it cannot read it."""
        found = self.predictor.source.tokens(row)
        if isinstance(found, UnreadableRow):
            raise AbstainError(Code.TOO_LONG, found.reason)
        return found

    def decide_all(self, asked: Sequence[AskedAnswer]) -> list[Decision]:
        """The decisions about several answers, in order, in as few passes of the base model as they take."""
        return [judged.decision for judged in self.judge_all(asked)]

    def judge_all(self, asked: Sequence[AskedAnswer]) -> list[Judged]:
        """What `decide_all` gives, with what was read of each answer."""
        found = [self.decide_unread(one) for one in asked]
        unread = [
            (one.row, known)
            for one, known in zip(asked, found, strict=True)
            if one.row is not None and not isinstance(known, Judged)
        ]
        decisions, answers = self.predictor.score_read([row for row, _ in unread], [known for _, known in unread])
        read = iter(
            Judged(self.checked(decision), answers.take([at]) if decision.confidence is not None else None)
            for at, decision in enumerate(decisions)
        )
        return [known if isinstance(known, Judged) else next(read) for known in found]

    def decide_unread(self, asked: AskedAnswer) -> Judged | Given:
        """The decision where the base model need not read for it; else the results that are there already.

        Raises `AbstainError` where there is nothing to decide by, and for states and log-probabilities that differ.
        """
        row, lacking = asked.row, self.spec.needs
        if row is not None and not asked.no_context and self.predictor.lacks_context(row):
            return Judged(self.checked(self.predictor.unavailable(row)))
        known: Given = {}
        if asked.states is not None or asked.log_probs is not None:
            found = given_answers(self.predictor.scorer, row, asked.states, asked.log_probs)
            if not isinstance(found, Missing):
                (decision,) = self.predictor.decide_all(found, [None], [0.0])
                return Judged(self.checked(replace(decision, interaction_id=asked.interaction_id)), found)
            known, lacking = found.results, found.names
        if row is not None:
            return known
        reason = f"{Code.NOTHING_TO_SCORE}: the scorer needs more: {', '.join(lacking)}; give the texts as well"
        return Judged(self.checked(self.predictor.unavailable_because(asked.interaction_id, reason)))

    def explain(self, row: Interaction, no_context: bool = False) -> Explanation:
        """The decision about one answer, with what was found of it. Raises `AbstainError` as `decide_all` does."""
        if not no_context and self.predictor.lacks_context(row):
            return Explanation(self.checked(self.predictor.unavailable(row)))
        explained = explain(self.predictor, row)
        return replace(explained, decision=self.checked(explained.decision))

    def checked(self, decision: Decision) -> Decision:
        """`decision`, `unavailable` where this version guarantees nothing, with what is done with such answers."""
        decision = replace(decision, feature_spec=self.spec.digest)
        if decision.decision != "unavailable" and not self.predictor.guaranteed:
            reason = f"{Code.NO_THRESHOLD}: version {self.version} has no guarantee: {self.predictor.guarantee}"
            decision = replace(decision, decision="unavailable", reason=decision.reason or reason)
        if decision.decision == "unavailable":
            decision = replace(decision, show=self.on_unavailable == "show")
        return decision

    def warm(self) -> None:
        """Load the base model and run every part once, so that the first request is not the slowest."""
        self.decide("Is this read?", ["Yes."], "Yes.")


def interaction(
    question: str, contexts: Sequence[str | Context], answer: str, interaction_id: str | None = None
) -> Interaction:
    """An answered question from its texts. Raises pydantic's `ValidationError` for an empty one."""
    return Interaction(
        interaction_id=interaction_id or new_id(),
        asked_at=datetime.now(UTC),
        question=question,
        answer=answer,
        contexts=as_contexts(contexts),
        model=UNKNOWN_WRITER,
    )


def as_contexts(given: Sequence[str | Context]) -> tuple[Context, ...]:
    """Contexts; those without an id are named after their text."""
    return tuple(one if isinstance(one, Context) else unnamed_context(one) for one in given)


def new_id() -> str:
    """An id for an interaction that has none."""
    return f"gate-{secrets.token_hex(12)}"


def no_version(interaction_id: str, on_unavailable: OnUnavailable, reason: str) -> Decision:
    """The decision while nothing is live, or nothing could be asked in time."""
    return Decision(
        interaction_id, "unavailable", None, None, "", "nothing is live", reason=reason, show=on_unavailable == "show"
    )
