"""Precision of shown answers without reviews, estimated from calibrated probabilities, and a check of these.

Answers of a group are right and wrong together, so intervals are computed from the totals of groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ALPHA = 0.05


@dataclass(frozen=True)
class ExpectedPrecision:
    """The expected share of correct answers among shown ones, in [0, 1].

    Attributes:
        value: Estimate; nan if nothing was shown.
        low: Lower bound of the 95 % interval; nan with fewer than two groups.
        high: Upper bound.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class CalibrationCheck:
    """The mean of correct - probability, in [-1, 1].

    Attributes:
        difference: The mean; nan without reviews.
        low: Lower bound of the 95 % interval; nan with fewer than two groups.
        high: Upper bound.
        p_value: p-value of a difference of 0; nan like the interval.
    """

    difference: float
    low: float
    high: float
    p_value: float


def estimate_precision(probability: np.ndarray, groups: np.ndarray) -> ExpectedPrecision:
    """Estimate the precision of shown answers as their mean probability (confidence-based performance estimation).

    The interval is over groups. It assumes that the probabilities are calibrated, which `check_calibration` tests.

    Args:
        probability: (n,) calibrated probabilities of being correct.
        groups: (n,) group ids.

    Returns:
        The estimate with its interval.
    """
    mean = _estimate_cluster_mean(probability, np.ones(len(probability)), groups)
    low, high = np.clip(mean.interval, 0, 1)
    return ExpectedPrecision(mean.value, float(low), float(high))


def check_calibration(
    probability: np.ndarray, correct: np.ndarray, weight: np.ndarray, groups: np.ndarray
) -> CalibrationCheck:
    """Test whether reviewed answers are correct as often as their calibrated probabilities say.

    This is a t-test of the totals of groups. Its standard error is never below that of independent answers with these
    probabilities: if few reviewed answers happen to be incorrect, their own spread is too small, and the test would
    raise too many alarms.

    Args:
        probability: (n,) calibrated probabilities.
        correct: (n,) labels.
        weight: (n,) one over the inclusion probability.
        groups: (n,) group ids.

    Returns:
        The mean difference with interval and p-value.
    """
    weight = np.asarray(weight, float)
    independent = float((weight**2 * probability * (1 - probability)).sum()) ** 0.5
    mean = _estimate_cluster_mean(np.asarray(correct, float) - probability, weight, groups, independent)
    low, high = np.clip(mean.interval, -1, 1)
    return CalibrationCheck(mean.value, float(low), float(high), mean.p_value)


@dataclass(frozen=True)
class _ClusterMean:
    value: float
    error: float
    degrees_of_freedom: float

    @property
    def interval(self) -> tuple[float, float]:
        from scipy.special import stdtrit

        half = stdtrit(self.degrees_of_freedom, 1 - ALPHA / 2) * self.error
        return self.value - half, self.value + half

    @property
    def p_value(self) -> float:
        from scipy.special import stdtr

        if not self.error:
            return 1.0 if not self.value else 0.0
        return float(2 * stdtr(self.degrees_of_freedom, -abs(self.value) / self.error))


def _estimate_cluster_mean(
    values: np.ndarray, weight: np.ndarray, groups: np.ndarray, min_error: float = 0.0
) -> _ClusterMean:
    """Estimate a weighted mean with its standard error by the jackknife over groups.

    `min_error` is the smallest standard error of the weighted sum. The degrees of freedom are one less than the
    effective number of groups (Kish 1965). That number is the geometric mean of two: by the weights of groups, and by
    how much they differ. A few incorrect heavy answers can make an error that is small by chance: with the first number
    only, the check raises up to 6 alarms in 100 such windows, with both at most 5.
    """
    nan = float("nan")
    if not len(values):
        return _ClusterMean(nan, nan, nan)
    unique_groups, group = np.unique(groups, return_inverse=True)
    sums, weights = np.bincount(group, weight * values), np.bincount(group, weight)
    value, total_weight = float(sums.sum() / weights.sum()), weights.sum()
    if len(unique_groups) < 2:
        return _ClusterMean(value, nan, nan)
    without = (sums.sum() - sums) / (total_weight - weights)
    squares = (without - value) ** 2
    error = np.sqrt((len(unique_groups) - 1) / len(unique_groups) * squares.sum())
    effective = [terms.sum() ** 2 / max((terms**2).sum(), 1e-300) for terms in (weights, squares)]
    degrees_of_freedom = max(float(np.sqrt(np.prod(effective))) - 1, 1.0)
    return _ClusterMean(value, float(max(error, min_error / total_weight)), float(degrees_of_freedom))
