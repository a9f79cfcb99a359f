"""Do the vectors of a window differ from those before it? Tests that take answers about one document together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class DriftResult:
    """examples: indices of the window's rows that differ most, the most first. p_value: nan where not judged.

    auc: of the classifier that tells the window's rows from the reference's, None for other tests.
    """

    statistic: float
    p_value: float
    auc: float | None
    examples: list[int]


@dataclass(frozen=True)
class NewShare:
    """The share of the window's rows that are unlike any of the reference, and the share expected without a change."""

    share: float
    expected: float
    p_value: float
    examples: list[int]


def permutation_drift(
    reference: np.ndarray, window: np.ndarray, reference_groups: np.ndarray, window_groups: np.ndarray, seed: int
) -> DriftResult:
    """A permutation test of the means. reference: (n, d), window: (m, d), groups: (n,) and (m,) document ids."""
    return DriftResult(float("nan"), float("nan"), None, [])


def classifier_drift(
    reference: np.ndarray, window: np.ndarray, reference_groups: np.ndarray, window_groups: np.ndarray, seed: int
) -> DriftResult:
    """A classifier two-sample test, arguments as of `permutation_drift`."""
    return DriftResult(float("nan"), float("nan"), 0.5, [])


def new_share(
    reference: np.ndarray, window: np.ndarray, reference_groups: np.ndarray, window_groups: np.ndarray, seed: int
) -> NewShare:
    """How much of the window is new, arguments as of `permutation_drift`."""
    return NewShare(float("nan"), float("nan"), float("nan"), [])


def one_alarm(p_values: Iterable[float]) -> float:
    """One p-value of several tests that raise the same alarm (Bonferroni); nan ones are not counted."""
    judged = [value for value in p_values if not np.isnan(value)]
    return min(1.0, len(judged) * min(judged)) if judged else float("nan")
