"""The leaderboard: every scorer on the same answers, by the same metrics, with paired intervals by group.

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
    "withheld_at_15pct": metrics.withheld_share,
    "error_recall_over_random": metrics.error_recall_over_random,
}
"""Metrics of the raw confidence; the last three withhold at most 15 % of the answers."""

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
    resampling: BootstrapConfig,
    champion: str | None,
) -> pd.DataFrame:
    """Build the leaderboard, with a row for each scorer in the order of `scores`.

    Args:
        correct: (rows,) 0 or 1.
        scores: Scorer -> raw confidence (rows,); nan where the scorer has no score.
        calibrated: Scorer -> probability (rows,). A scorer without any probability has no `CALIBRATION_METRICS`.
        groups: (rows,) group ids of the bootstrap.
        weight: (rows,) sampling weights; None means equal weights.
        resampling: Number of resamples and seed.
        champion: The scorer that the others are compared with, or None.

    Returns:
        `scorer`, `unscored` (rows without a score), every metric with its 95 % interval (`auroc`, `auroc_low`,
        `auroc_high`), and against the champion `auroc_difference`, its bounds, and `chance_better`, the share of
        resamples with a higher AUROC. Undefined values are nan; so is the champion's difference to itself.

    Raises:
        AbstainError: The champion is not among the scorers.
        ValueError: A calibrated value is not a probability.
    """
    names = [str(name) for name in scores]
    if champion is not None and champion not in names:
        raise AbstainError(
            Code.UNKNOWN_NAME, f"no scorer '{champion}' to compare with: choose one of {', '.join(sorted(names))}"
        )
    unscored: dict[str, int] = {}
    statistics: dict[tuple[str, str], Statistic] = {}
    for name in names:
        raw, probability = _align_missing(scores[name], calibrated.get(name))
        unscored[name] = int(np.isnan(raw).sum())
        statistics |= {(name, metric): partial(function, correct, raw) for metric, function in RANKING_METRICS.items()}
        statistics |= {
            (name, metric): partial(function, correct, probability) for metric, function in CALIBRATION_METRICS.items()
        }
    estimates = bootstrap(statistics, groups, n_resamples=resampling.n_resamples, seed=resampling.seed, weight=weight)
    rows = []
    for name in names:
        row: dict[str, Any] = {"scorer": name, "unscored": unscored[name]}
        for metric in (*RANKING_METRICS, *CALIBRATION_METRICS):
            row |= make_interval_columns(metric, estimates[name, metric])
        champion_auroc = None if champion in (None, name) else estimates[str(champion), "auroc"]
        rows.append(row | _compare_with_champion(estimates[name, "auroc"], champion_auroc))
    return pd.DataFrame(rows)


def _align_missing(raw: Column, probability: Column | None) -> tuple[np.ndarray, np.ndarray]:
    """Convert both to float (rows,), nan where either is nan.

    A scorer without a calibrator keeps its raw confidences.
    """
    raw = np.asarray(raw, dtype=float)
    calibrated = np.full(len(raw), np.nan) if probability is None else np.asarray(probability, dtype=float)
    if np.isnan(calibrated).all():
        return raw, calibrated
    is_missing = np.isnan(raw) | np.isnan(calibrated)
    return np.where(is_missing, np.nan, raw), np.where(is_missing, np.nan, calibrated)


def _compare_with_champion(estimate: Estimate, champion: Estimate | None) -> dict[str, float]:
    difference = Estimate(np.nan, np.array([np.nan])) if champion is None else paired_difference(estimate, champion)
    probability_better = np.nan if np.isnan(difference.value) else difference.probability_positive
    return {**make_interval_columns("auroc_difference", difference), "chance_better": probability_better}
