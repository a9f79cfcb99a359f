"""Cluster bootstrap: confidence intervals and paired differences of metrics, on the same resamples of whole groups.

Whole groups are drawn with replacement, because errors of answers about one document are correlated; a row keeps its
weight. A resample is a count per row, so the statistic of many resamples is one computation (`weighted_metrics`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from abstain.learning.metrics.weighted_metrics import Weight

Statistic = Callable[[np.ndarray], Any]
"""A function from weights (rows,) to a float, and from weights (n_resamples, rows) to (n_resamples,).

For example `partial(auroc, correct, scores)`.
"""

Key = TypeVar("Key", bound=Hashable)

MAX_UNDEFINED_SHARE = 0.05
"""A statistic that is undefined in a larger share of the resamples has no interval: the others are a biased sample."""
BLOCK_CELLS = 2**16
"""Most weights that are computed at once: 512 KiB and their intermediate results stay in the cache of a core."""


@dataclass(frozen=True)
class BootstrapConfig:
    """Number of resamples and seed of a bootstrap.

    Equal configurations give equal resamples of equal groups.

    Attributes:
        n_resamples: Number of resamples.
        seed: Seed of the random numbers.
    """

    n_resamples: int
    seed: int


RESAMPLING = BootstrapConfig(1000, 3)
"""The configuration of the report and of the promotion checks."""


@dataclass(frozen=True)
class Estimate:
    """A statistic and its bootstrap distribution.

    Attributes:
        value: The statistic of the original rows; nan if it is undefined.
        resamples: (n_resamples,) the statistic of each resample; nan where it is undefined.
    """

    value: float
    resamples: np.ndarray

    @property
    def interval(self) -> tuple[float, float]:
        """The central 95 % percentile interval; (nan, nan) if the value is undefined."""
        return (float("nan"), float("nan")) if np.isnan(self.value) else percentile_interval(self.resamples)

    @property
    def standard_error(self) -> float:
        """The standard deviation of the resamples; nan if the statistic is undefined in all of them."""
        finite = self.resamples[~np.isnan(self.resamples)]
        return float(finite.std()) if len(finite) else float("nan")

    @property
    def probability_positive(self) -> float:
        """The share of resamples above 0; an undefined resample counts as not positive."""
        return float((self.resamples > 0).mean())


def bootstrap(
    statistics: Mapping[Key, Statistic], groups: np.ndarray, n_resamples: int, seed: int, weight: Weight = None
) -> dict[Key, Estimate]:
    """Estimate statistics and their sampling distribution with a cluster bootstrap.

    Whole groups are drawn with replacement. All statistics are computed on the same resamples, so two of them may be
    subtracted with `paired_difference`.

    Args:
        statistics: Name -> function of weights; (rows,) gives a float, (n_resamples, rows) gives (n_resamples,).
        groups: (rows,) group ids. Rows with equal ids are drawn together.
        n_resamples: Number of resamples.
        seed: Equal seeds and groups give equal resamples.
        weight: (rows,) sampling weights > 0; None means equal weights.

    Returns:
        Name -> `Estimate`. With fewer than two groups the variation between groups is unknown, and all resamples are
        nan.
    """
    row_weight = np.ones(len(groups)) if weight is None else np.asarray(weight, dtype=float)
    values: dict[Key, list[np.ndarray]] = {key: [] for key in statistics}
    for counts in _iter_resamples(groups, n_resamples, seed):
        resample_weight = counts * row_weight
        for key, statistic in statistics.items():
            values[key].append(statistic(resample_weight))
    return {
        key: Estimate(compute(row_weight), np.concatenate(values[key]) if values[key] else np.full(n_resamples, np.nan))
        for key, compute in statistics.items()
    }


def paired_difference(first: Estimate, second: Estimate) -> Estimate:
    """Subtract two estimates resample by resample.

    Args:
        first: The minuend.
        second: The subtrahend, from the same call of `bootstrap`.

    Returns:
        The estimate of `first - second`.
    """
    return Estimate(first.value - second.value, first.resamples - second.resamples)


def make_interval_columns(name: str, estimate: Estimate) -> dict[str, float]:
    """Make the columns of a report table for a statistic and its 95 % interval.

    Args:
        name: Name of the statistic.
        estimate: Its value and resamples.

    Returns:
        `name`, `name_low` and `name_high` with their values.
    """
    low, high = estimate.interval
    return {name: estimate.value, f"{name}_low": low, f"{name}_high": high}


def percentile_interval(resamples: np.ndarray, confidence_level: float = 0.95) -> tuple[float, float]:
    """Compute the central percentile interval of resamples.

    Undefined resamples are ignored up to the share `MAX_UNDEFINED_SHARE`. Without this limit, a few groups of one class
    each would seem certain of the value that the statistic has in the resamples with both classes.

    Args:
        resamples: (n_resamples,) values of the statistic; nan where it is undefined.
        confidence_level: Probability content of the interval, in (0, 1).

    Returns:
        The lower and the upper bound; (nan, nan) if too many resamples are nan.
    """
    finite = resamples[~np.isnan(resamples)]
    if len(finite) < (1 - MAX_UNDEFINED_SHARE) * len(resamples) or not len(finite):
        return float("nan"), float("nan")
    low, high = np.quantile(finite, [(1 - confidence_level) / 2, (1 + confidence_level) / 2])
    return float(low), float(high)


def _iter_resamples(groups: np.ndarray, n_resamples: int, seed: int) -> Iterator[np.ndarray]:
    """Yield the counts of the rows in resamples, (block, rows) at a time; the block size does not affect them."""
    group_ids, group_index = np.unique(groups, return_inverse=True)
    if len(group_ids) < 2:
        return
    generator = np.random.default_rng(seed)
    step = max(1, BLOCK_CELLS // len(groups))
    for start in range(0, n_resamples, step):
        count = min(step, n_resamples - start)
        sampled_groups = generator.integers(len(group_ids), size=(count, len(group_ids)))
        cells = sampled_groups + len(group_ids) * np.arange(count)[:, None]
        group_counts = np.bincount(cells.ravel(), minlength=count * len(group_ids)).reshape(count, len(group_ids))
        yield np.take(group_counts, group_index, axis=1)
