"""The decision about one answer, in process and over HTTP.

This module does not import the base model.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.text import replace_control_characters
from abstain.learning.thresholds.guarantee import GuaranteeSummary


@dataclass(frozen=True)
class DecisionReason:
    """Why a decision has no confidence, its version no guarantee, or what its base model did not know.

    Attributes:
        code: Code of the cause.
        message: Message for people.
    """

    code: Code
    message: str

    @classmethod
    def from_error(cls, error: AbstainError) -> DecisionReason:
        """Return the error as a reason, which a terminal may show."""
        return cls(error.code, replace_control_characters(error.message))

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


@dataclass(frozen=True)
class Decision:
    """The decision about one answer. It is shown if `confidence >= threshold`, or if it is a listed refusal.

    An answer that the base model cannot read, or for which the scorer has no score, has no confidence and is not shown.
    An answer without any context is "unavailable" if the scorer was trained with contexts.

    Attributes:
        interaction_id: Id of the answer.
        decision: "show", "abstain", or "unavailable" (not decided, or no guarantee).
        confidence: Score of the live scorer; None if the answer could not be scored.
        threshold: Threshold of the version; None while no version is live.
        version: Version that decided; None while no version is live.
        guarantee: Summary of the version's guarantee (GET /v1/version has all of it); None while no version is live.
        probability: Calibrated probability that the answer is correct, in [0, 1].
        probability_low: Lower bound of that probability; None unless the calibrator has bounds (Venn-Abers).
        probability_high: Upper bound of that probability; None unless the calibrator has bounds.
        reason: Why there is no confidence or no guarantee, or what the base model did not know before it answered.
        components: Names of the scorers that the confidence combines.
        forward_tokens: Tokens that went through the whole base model for this decision; 0 if all features were
            available.
        show: Whether to show the answer. It differs from `decision` only for "unavailable" with
            `on_unavailable="show"`, and for a listed refusal.
        feature_spec: Digest of what the gate's scorer reads (feature_spec.py).
        sources: Where its contexts are found (`contracts.list_sources`), best first.
        cleaned_answer: The answer that was decided about, without the reasoning that was in it; None if it had none.
    """

    interaction_id: str
    decision: Literal["show", "abstain", "unavailable"]
    confidence: float | None
    threshold: float | None
    version: str | None
    guarantee: GuaranteeSummary | None
    probability: float | None = None
    probability_low: float | None = None
    probability_high: float | None = None
    reason: DecisionReason | None = None
    components: tuple[str, ...] = ()
    forward_tokens: float = 0.0
    show: bool = False
    feature_spec: str | None = None
    sources: tuple[str, ...] = ()
    cleaned_answer: str | None = None

    @classmethod
    def unavailable(cls, interaction_id: str, reason: DecisionReason, *, show: bool = False) -> Decision:
        """Make the decision while no version is live or none can be reached.

        Args:
            interaction_id: Id of the answer.
            reason: Why there is no decision.
            show: Whether to show the answer.

        Returns:
            The decision, without version, guarantee, confidence and threshold.
        """
        return cls(interaction_id, "unavailable", None, None, None, None, reason=reason, show=show)

    def describe(self) -> str:
        """Return a sentence for people: whether the answer is shown, and why."""
        verb = "shown" if self.show else "withheld"
        if self.reason is not None or self.confidence is None or self.threshold is None:
            return f"{verb}: {self.reason or self.decision}"
        comparison = "at least" if self.confidence >= self.threshold else "less than"
        return (
            f"{verb}: its confidence {self.confidence:.3f} is {comparison} the threshold {self.threshold:.3f} "
            f"of version {self.version}"
        )

    def make_withheld_text(self, text: str, *, with_sources: bool) -> str:
        """Return what a user reads in place of the answer.

        Args:
            text: The text for all answers.
            with_sources: Whether to add a list of the answer's sources.

        Returns:
            The text.
        """
        return "\n".join((text, *(f"- {source}" for source in self.sources if with_sources)))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self) | {"guarantee": self.guarantee and self.guarantee.model_dump()}
