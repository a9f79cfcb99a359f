"""The decision about one answer, in process and over HTTP.

This module does not import the base model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Decision:
    """The decision about one answer. It is shown if `confidence >= threshold`.

    An answer that the base model cannot read, or for which the scorer has no score, has no confidence and is not shown.
    An answer without any context is "unavailable" if the scorer was trained with contexts.

    Attributes:
        interaction_id: Id of the answer.
        decision: "show", "abstain", or "unavailable" (not decided, or no guarantee).
        confidence: Score of the live scorer; None if the answer could not be scored.
        threshold: Threshold of the version; None while no version is live.
        version: Version that decided.
        guarantee: Guarantee of the threshold when the version was made, or why it went live without one.
        probability: Calibrated probability that the answer is correct, in [0, 1].
        probability_low: Lower bound of that probability; None unless the calibrator has bounds (Venn-Abers).
        probability_high: Upper bound of that probability; None unless the calibrator has bounds.
        reason: Code and message if there is no confidence or no guarantee.
        components: Names of the scorers that the confidence combines.
        forward_tokens: Tokens that went through the whole base model for this decision; 0 if all features were
            available.
        show: Whether to show the answer. It differs from `decision` only for "unavailable" with
            `on_unavailable="show"`.
        feature_spec: Digest of what the gate's scorer reads (feature_spec.py).
    """

    interaction_id: str
    decision: Literal["show", "abstain", "unavailable"]
    confidence: float | None
    threshold: float | None
    version: str
    guarantee: str
    probability: float | None = None
    probability_low: float | None = None
    probability_high: float | None = None
    reason: str | None = None
    components: tuple[str, ...] = ()
    forward_tokens: float = 0.0
    show: bool = False
    feature_spec: str | None = None

    @classmethod
    def unavailable(cls, interaction_id: str, reason: str, *, show: bool = False) -> Decision:
        """Make the decision while no version is live or none can be reached.

        Args:
            interaction_id: Id of the answer.
            reason: Why there is no decision, with its code in front.
            show: Whether to show the answer.

        Returns:
            The decision, without version, confidence and threshold.
        """
        return cls(interaction_id, "unavailable", None, None, "", "no version has decided", reason=reason, show=show)
