"""The decision about one answer, in process and over HTTP. This module imports nothing of the base model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Decision:
    """The decision about one answer, and the reason: shown when `confidence >= threshold`, and only then.

    `confidence` is the live scorer's own score; `probability` the calibrated probability that the answer is correct,
    with the bounds `probability_low` and `probability_high` where the calibrator has any (Venn-Abers). `guarantee` is
    that of `threshold` when `version` was made, or why it went live without one. An answer that the base model cannot
    read, or the scorer has no score of, has no confidence and is not shown; nor is one without any context where the
    scorer was trained with some: its decision is `unavailable`. `reason` is the reason for either. `threshold` is None
    while no version is live.

    `show`: what a service does with the answer. It is also true where the decision is `unavailable` and the service was
    told to show such answers. `signals`: the names of what the scorer combines. `forward_tokens`: what the base model
    read for this answer, in tokens that went through the whole model; 0 where the features were there. `feature_spec`:
    the digest of what the gate's scorer reads (feature_spec.py).
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
    signals: tuple[str, ...] = ()
    forward_tokens: float = 0.0
    show: bool = False
    feature_spec: str | None = None


def no_decision(interaction_id: str, reason: str, *, show: bool = False) -> Decision:
    """`unavailable` for `reason`, which has its code in front, while no version is live or none could be asked."""
    return Decision(interaction_id, "unavailable", None, None, "", "no version has decided", reason=reason, show=show)
