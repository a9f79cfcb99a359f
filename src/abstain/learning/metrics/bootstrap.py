"""Cluster bootstrap: confidence intervals and paired differences of metrics, on the same resamples of whole groups.

Whole groups are drawn with replacement, because errors of answers about one document are correlated; a row keeps its
weight (Field and Welsh 2007). A resample is a count per row, so the statistic of many resamples is one computation
(`weighted_metrics`).
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
MAX_BLOCK_WEIGHTS = 2**16
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
    statistics: Mapping[Key, Statistic],
    groups: np.ndarray,
    *,
    n_resamples: int = 1000,
    seed: int = 0,
    weight: Weight = None,
) -> dict[Key, Estimate]:
    """Estimate statistics and their sampling distribution with a cluster bootstrap.

    Whole groups are drawn with replacement. All statistics are computed on the same resamples, so two of them may be
    subtracted with `paired_difference`.

    Args:
        statistics: Key -> function of weights; (rows,) gives a float, (n_resamples, rows) gives (n_resamples,).
        groups: (rows,) group ids. Rows with equal ids are drawn together.
        n_resamples: Number of resamples.
        seed: Equal seeds and groups give equal resamples.
        weight: (rows,) sampling weights > 0; None means equal weights.

    Returns:
        Key -> `Estimate`. With fewer than two groups the variation between groups is unknown, and all resamples are
        nan.

    Examples:
        >>> from functools import partial
        >>> from abstain.learning.metrics.weighted_metrics import weighted_mean
        >>> correct, documents = np.arange(200) % 5 > 0, np.arange(200) // 2
        >>> estimates = bootstrap({"precision": partial(weighted_mean, correct)}, documents)
        >>> low, high = estimates["precision"].interval
        >>> f"{estimates['precision'].value:.2f} ({low:.2f} to {high:.2f})"
        '0.80 (0.76 to 0.84)'
    """
    row_weight = np.ones(len(groups)) if weight is None else np.asarray(weight, dtype=float)
    values: dict[Key, list[np.ndarray]] = {key: [] for key in statistics}
    for counts in _iter_resamples(groups, n_resamples, seed):
        resample_weight = counts * row_weight
        for key, statistic in statistics.items():
            values[key].append(statistic(resample_weight))
    estimates = {}
    for key, statistic in statistics.items():
        resamples = np.concatenate(values[key]) if values[key] else np.full(n_resamples, np.nan)
        estimates[key] = Estimate(statistic(row_weight), resamples)
    return estimates


def paired_difference(estimate: Estimate, reference: Estimate) -> Estimate:
    """Subtract two estimates resample by resample.

    Args:
        estimate: An estimate.
        reference: The estimate to subtract, from the same call of `bootstrap`.

    Returns:
        The estimate of `estimate - reference`.
    """
    return Estimate(estimate.value - reference.value, estimate.resamples - reference.resamples)


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

    Undefined resamples are ignored up to the share `MAX_UNDEFINED_SHARE`. Those that remain
    contain both classes, so they are a biased sample: with few groups their interval would be far too narrow.

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
    block_size = max(1, MAX_BLOCK_WEIGHTS // len(groups))
    for start in range(0, n_resamples, block_size):
        count = min(block_size, n_resamples - start)
        sampled_groups = generator.integers(len(group_ids), size=(count, len(group_ids)))
        flat_indices = sampled_groups + len(group_ids) * np.arange(count)[:, None]
        group_counts = np.bincount(flat_indices.ravel(), minlength=count * len(group_ids)).reshape(
            count, len(group_ids)
        )
        yield np.take(group_counts, group_index, axis=1)
