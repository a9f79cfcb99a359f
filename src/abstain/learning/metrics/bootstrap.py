"""Cluster bootstrap: intervals and paired differences of metrics, on the same resamples of whole groups.

Whole groups are drawn with replacement, because errors of answers about one document are correlated; a row keeps its
weight. A draw is a count per row, so that a figure of many draws is one computation (`metrics`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from abstain.learning.metrics.weighted_metrics import Weight

Statistic = Callable[[np.ndarray], Any]
"""From weights (rows,) to a float, and from weights (draws, rows) to (draws,), as `partial(auroc, correct, scores)`."""

Key = TypeVar("Key", bound=Hashable)

MAX_UNDEFINED_SHARE = 0.05
"""A figure that is undefined in more than this share of the draws has no interval: the others are a biased sample."""
BLOCK_CELLS = 2**16
"""Most weights that are held at once: 512 KiB, and what is computed of them, stay in a core's cache."""


@dataclass(frozen=True)
class BootstrapConfig:
    """The number of draws and their seed; equal ones give the same draws of equal groups."""

    draws: int
    seed: int


RESAMPLES = BootstrapConfig(1000, 3)
"""Those of the report and of the gate."""


@dataclass(frozen=True)
class Estimate:
    """A figure of the original rows, and of every draw, (draws,), some of them nan."""

    value: float
    resamples: np.ndarray

    @property
    def interval(self) -> tuple[float, float]:
        """The central 95 % percentile `interval`; nan for a value that is not defined."""
        return (float("nan"), float("nan")) if np.isnan(self.value) else percentile_interval(self.resamples)

    @property
    def standard_error(self) -> float:
        """The standard deviation of the draws; nan where none is defined."""
        known = self.resamples[~np.isnan(self.resamples)]
        return float(known.std()) if len(known) else float("nan")

    @property
    def probability_positive(self) -> float:
        """The share of draws that are above 0; one that is not defined is not."""
        return float((self.resamples > 0).mean())


def bootstrap(
    statistics: Mapping[Key, Statistic], groups: np.ndarray, n_resamples: int, seed: int, weight: Weight = None
) -> dict[Key, Estimate]:
    """Every figure on the same `draws` resamples of `groups`, so that `paired_difference` differences may be taken.

    Args:
        groups: (rows,), whatever compares equal within a group. weight: (rows,), None for equal ones.

    With fewer than two groups the variation between groups is unknown: all draws are nan.
    """
    own = np.ones(len(groups)) if weight is None else np.asarray(weight, dtype=float)
    drawn: dict[Key, list[np.ndarray]] = {key: [] for key in statistics}
    for chunk in _resamples(groups, n_resamples, seed):
        drawn_weight = chunk * own
        for key, figure in statistics.items():
            drawn[key].append(figure(drawn_weight))
    return {
        key: Estimate(figure(own), np.concatenate(drawn[key]) if drawn[key] else np.full(n_resamples, np.nan))
        for key, figure in statistics.items()
    }


def paired_difference(first: Estimate, second: Estimate) -> Estimate:
    """The difference `own - other`, draw by draw; both must come from one call of `bootstrap`."""
    return Estimate(first.value - second.value, first.resamples - second.resamples)


def make_interval_columns(name: str, estimate: Estimate) -> dict[str, float]:
    """`name`, `name_low` and `name_high`: a figure and its 95 % interval, in the reports' columns."""
    low, high = estimate.interval
    return {name: estimate.value, f"{name}_low": low, f"{name}_high": high}


def percentile_interval(draws: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """The central percentile interval of `draws`, nan draws left out; nan where these are more than `MAX_UNDEFINED_SHARE`.

    A few groups of one class each would otherwise be sure of the figure that they have when both kinds are drawn.
    """
    known = draws[~np.isnan(draws)]
    if len(known) < (1 - MAX_UNDEFINED_SHARE) * len(draws) or not len(known):
        return float("nan"), float("nan")
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _resamples(groups: np.ndarray, draws: int, seed: int) -> Iterator[np.ndarray]:
    """The count of each row in a draw, (some draws, rows) at a time; the draws do not depend on how many at a time."""
    names, group = np.unique(groups, return_inverse=True)
    if len(names) < 2:
        return
    generator = np.random.default_rng(seed)
    step = max(1, BLOCK_CELLS // len(groups))
    for start in range(0, draws, step):
        count = min(step, draws - start)
        picked = generator.integers(len(names), size=(count, len(names)))
        places = picked + len(names) * np.arange(count)[:, None]
        times = np.bincount(places.ravel(), minlength=count * len(names)).reshape(count, len(names))
        yield np.take(times, group, axis=1)
