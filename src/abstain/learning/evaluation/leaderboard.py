"""The leaderboard: every scorer of the same answers, by the same metrics, with paired intervals by group.

Notes:

* Ranking metrics use the raw confidence, on any scale; probability metrics (Brier, ECE, accuracy, F1) use the
  calibrated probability, whose calibrator was fitted on the validation split. So a calibrator that makes many answers
  equally likely costs no AUROC, and a log-probability is not evaluated as if it were a probability.
* All scorers are measured on the same resamples of groups, so that the paired difference to the champion has its own
  interval and probability: overlapping intervals are not conclusive.
* Answers without a score are withheld and counted, not left out: otherwise a scorer that skips hard answers would look
  good.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import (
    BootstrapConfig,
    Estimate,
    Statistic,
    bootstrap,
    make_interval_columns,
    paired_difference,
)

Column = np.ndarray | pd.Series

RANKING_METRICS: dict[str, metrics.Metric] = {
    "auroc": metrics.auroc,
    "auprc": metrics.auprc,
    "aurc": metrics.aurc,
    "error_recall_at_15pct": metrics.error_recall,
    "abstained_at_15pct": metrics.abstained_share,
    "error_recall_over_random": metrics.error_recall_over_random,
}
"""Metrics of the raw confidence; the last three at an abstention rate of at most 15 %."""

CALIBRATION_METRICS: dict[str, metrics.Metric] = {
    "brier": metrics.brier,
    "ece": metrics.ece,
    "accuracy": metrics.accuracy,
    "f1": metrics.f1,
}
"""Metrics of the calibrated probability; accuracy and F1 at a threshold of 0.5."""


def build_leaderboard(
    correct: np.ndarray,
    scores: pd.DataFrame | Mapping[str, np.ndarray],
    calibrated: pd.DataFrame | Mapping[str, np.ndarray],
    groups: np.ndarray,
    weight: metrics.Weight,
    resamples: BootstrapConfig,
    champion: str | None,
) -> pd.DataFrame:
    """One row a scorer, in the order of `scores`.

    Args:
        correct: (rows,) of 0/1. scores: name -> raw confidence (rows,), nan where the scorer has no score.
        calibrated: name -> probability (rows,). A scorer that is not in it, or has no probability at all, has no
            figures of `CALIBRATION_METRICS`.
        groups: (rows,). weight: (rows,), None for equal ones.
        champion: the scorer that the others are compared with, if any.

    Returns `scorer`, `unscored` (rows without a score), every metric of `RANKING_METRICS` and `CALIBRATION_METRICS`
    with the bounds of its 95 % interval (`auroc`, `auroc_low`, `auroc_high`), and `auroc_difference`,
    `auroc_difference_low`, `auroc_difference_high` and `chance_better` against the champion: the share of draws in
    which it ranks better. What is not defined is nan; so is the champion's difference to itself.

    Raises `AbstainError` when the champion is not among the scorers, `ValueError` when a calibrated value is not a
    probability.
    """
    names = [str(name) for name in scores]
    if champion is not None and champion not in names:
        raise AbstainError(
            Code.UNKNOWN_NAME, f"no scorer '{champion}' to compare with: choose one of {', '.join(sorted(names))}"
        )
    unscored: dict[str, int] = {}
    figures: dict[tuple[str, str], Statistic] = {}
    for name in names:
        raw, probability = _withheld(scores[name], calibrated.get(name))
        unscored[name] = int(np.isnan(raw).sum())
        figures |= {(name, metric): partial(function, correct, raw) for metric, function in RANKING_METRICS.items()}
        figures |= {
            (name, metric): partial(function, correct, probability) for metric, function in CALIBRATION_METRICS.items()
        }
    found = bootstrap(figures, groups, resamples.draws, resamples.seed, weight)
    rows = []
    for name in names:
        row: dict[str, Any] = {"scorer": name, "unscored": unscored[name]}
        for metric in (*RANKING_METRICS, *CALIBRATION_METRICS):
            row |= make_interval_columns(metric, found[name, metric])
        other = None if champion in (None, name) else found[str(champion), "auroc"]
        rows.append(row | _compare_with_champion(found[name, "auroc"], other))
    return pd.DataFrame(rows)


def _withheld(raw: Column, probability: Column | None) -> tuple[np.ndarray, np.ndarray]:
    """Both as (rows,) of floats, nan where either of them is; a scorer without a calibrator keeps its raw ones."""
    raw = np.asarray(raw, dtype=float)
    calibrated = np.full(len(raw), np.nan) if probability is None else np.asarray(probability, dtype=float)
    if np.isnan(calibrated).all():
        return raw, calibrated
    unknown = np.isnan(raw) | np.isnan(calibrated)
    return np.where(unknown, np.nan, raw), np.where(unknown, np.nan, calibrated)


def _compare_with_champion(own: Estimate, champion: Estimate | None) -> dict[str, float]:
    difference = Estimate(np.nan, np.array([np.nan])) if champion is None else paired_difference(own, champion)
    chance = np.nan if np.isnan(difference.value) else difference.probability_positive
    return {**make_interval_columns("auroc_difference", difference), "chance_better": chance}
