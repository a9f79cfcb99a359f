"""How many reviewed answers a guarantee needs."""

from __future__ import annotations

import numpy as np

from abstain.learning.thresholds.guarantee import TargetMetric

POWER = 0.8
"""Probability of a guarantee with `reviews_needed` reviews."""
MAX_REVIEWS_NEEDED = 1_000_000


def estimate_reviews_needed(
    metric: TargetMetric,
    target: float,
    confidence_level: float,
    estimated_value: float,
    coverage: float,
    effective_share: float = 1.0,
) -> int | None:
    """Estimate how many reviewed answers a guarantee needs (power 80 %, accurate to 2 %).

    Args:
        metric: "precision" or "error_rate".
        target: Required precision, or highest error rate, in (0, 1).
        confidence_level: Confidence of the guarantee, in (0, 1).
        estimated_value: Estimated precision (or error rate) at the threshold.
        coverage: Share of all answers that the threshold shows, in (0, 1].
        effective_share: Effective sample size per counted answer, in (0, 1].

    Returns:
        The number of reviewed answers; None if the estimate does not beat the target, or not by enough for a million
        reviews.
    """
    from scipy.stats import binom

    max_error, error = (1 - target, 1 - estimated_value) if metric == "precision" else (target, estimated_value)
    if not error < max_error:
        return None
    sizes = np.unique(np.geomspace(1, MAX_REVIEWS_NEEDED, 1000).astype(int))
    max_incorrect = binom.ppf(1 - confidence_level, sizes, max_error)
    max_incorrect = np.where(
        binom.cdf(max_incorrect, sizes, max_error) <= 1 - confidence_level, max_incorrect, max_incorrect - 1
    )
    underpowered = np.flatnonzero(binom.cdf(max_incorrect, sizes, error) < POWER)
    first_powered = underpowered[-1] + 1 if len(underpowered) else 0
    if first_powered == len(sizes):
        return None
    n_needed = sizes[first_powered] / (effective_share * (coverage if metric == "precision" else 1))
    return int(np.ceil(n_needed)) if n_needed <= MAX_REVIEWS_NEEDED else None
