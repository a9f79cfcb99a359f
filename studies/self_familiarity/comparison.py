"""Methods against labels: the metrics of the paper, with intervals. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import Statistic, bootstrap, make_interval_columns, paired_difference
from studies.self_familiarity.measures import SELF_FAMILIARITY


@dataclass(frozen=True)
class LabelledScores:
    """Scores of several methods for the same instructions.

    Attributes:
        label: Whether an instruction is familiar, 0 or 1, (rows,).
        rating: What the scores are correlated with: the label, or a judge's score, (rows,).
        groups: The concept of each instruction, (rows,).
        scores: Scores by method, (rows,); nan without a score.
        thresholds: h by method; nan if it is not known.
    """

    label: np.ndarray
    rating: np.ndarray
    groups: np.ndarray
    scores: Mapping[str, np.ndarray]
    thresholds: Mapping[str, float]


def compare_methods(table: LabelledScores, draws: int, seed: int) -> list[dict[str, Any]]:
    """Return for each method `auc`, `accuracy` and `f1` at h, `pearson`, and how far Self-Familiarity is `ahead`.

    Each has `_low` and `_high`, 95 % by bootstrap of whole concepts. An instruction without a score counts as the least
    familiar.
    """
    statistics = {
        (name, key): statistic
        for name, scores in table.scores.items()
        for key, statistic in _make_statistics(table, scores, table.thresholds.get(name, float("nan"))).items()
    }
    estimates = bootstrap(statistics, table.groups, n_resamples=draws, seed=seed)
    rows = []
    for name, scores in table.scores.items():
        row: dict[str, Any] = {"method": name, "unscored": int(np.isnan(scores).sum())}
        for key in ("auc", "accuracy", "f1", "pearson"):
            row |= make_interval_columns(key, estimates[name, key])
        if name != SELF_FAMILIARITY:
            ahead = paired_difference(estimates[SELF_FAMILIARITY, "auc"], estimates[name, "auc"])
            row |= make_interval_columns("ahead", ahead)
        rows.append(row)
    return rows


def _make_statistics(table: LabelledScores, scores: np.ndarray, threshold: float) -> dict[str, Statistic]:
    least = np.nanmin(scores) if not np.isnan(scores).all() else 0.0
    filled = np.where(np.isnan(scores), least, scores)
    at_threshold = {"accuracy": metrics.accuracy, "f1": metrics.f1}
    return {
        "auc": partial(metrics.auroc, table.label, filled),
        **{
            key: _compute_nothing if np.isnan(threshold) else partial(metric, table.label, filled, threshold=threshold)
            for key, metric in at_threshold.items()
        },
        "pearson": partial(compute_pearson, table.rating, filled),
    }


def _compute_nothing(weight: np.ndarray) -> Any:
    return np.full(len(weight), np.nan) if weight.ndim > 1 else float("nan")


def compute_pearson(label: np.ndarray, scores: np.ndarray, weight: np.ndarray) -> Any:
    """Return Pearson's correlation for one weighting or for several; nan if either side is constant."""

    def mean(values: np.ndarray) -> np.ndarray:
        return np.atleast_1d(metrics.weighted_mean(values, weight))

    variance = [mean(values * values) - mean(values) ** 2 for values in (label, scores)]
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = (mean(label * scores) - mean(label) * mean(scores)) / np.sqrt(variance[0] * variance[1])
    return correlation if weight.ndim > 1 else float(correlation[0])
