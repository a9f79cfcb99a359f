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

from functools import partial

import numpy as np

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.learning.evaluation.records import ScorerMetrics
from abstain.learning.evaluation.reviewed_split import ReviewedSplit
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import (
    BootstrapConfig,
    Estimate,
    Statistic,
    make_interval_columns,
    paired_difference,
)

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
    reviewed: ReviewedSplit, resampling: BootstrapConfig, champion: str | None
) -> dict[str, ScorerMetrics]:
    """Build the leaderboard, with a row for each scorer in the order of the scores.

    Args:
        reviewed: The evaluated answers. A scorer without any probability has no `CALIBRATION_METRICS`.
        resampling: Number of resamples and seed.
        champion: The scorer that the others are compared with, or None.

    Returns:
        Scorer -> row, with every metric and its 95 % interval. Undefined values are None; so is the champion's
        difference to itself.

    Raises:
        AbstainError: The champion is not among the scorers.
        ValueError: A calibrated value is not a probability.
    """
    names = [str(name) for name in reviewed.scores]
    if champion is not None and champion not in names:
        raise AbstainError(
            Code.UNKNOWN_NAME, f"no scorer '{champion}' to compare with: choose one of {', '.join(sorted(names))}"
        )
    unscored: dict[str, int] = {}
    statistics: dict[tuple[str, str], Statistic] = {}
    for name in names:
        raw, probability = _align_missing(reviewed, name)
        unscored[name] = int(np.isnan(raw).sum())
        for functions, confidence in ((RANKING_METRICS, raw), (CALIBRATION_METRICS, probability)):
            for metric, function in functions.items():
                statistics[name, metric] = partial(function, reviewed.correct, confidence)
    estimates = reviewed.bootstrap(statistics, resampling)
    board = {}
    for name in names:
        columns: dict[str, float] = {}
        for metric in (*RANKING_METRICS, *CALIBRATION_METRICS):
            columns |= make_interval_columns(metric, estimates[name, metric])
        difference = Estimate(np.nan, np.array([np.nan]))
        if champion not in (None, name):
            difference = paired_difference(estimates[name, "auroc"], estimates[str(champion), "auroc"])
        board[name] = ScorerMetrics(
            unscored=unscored[name],
            chance_better=np.nan if np.isnan(difference.value) else difference.probability_positive,
            **make_interval_columns("auroc_difference", difference),
            **columns,
        )
    return board


def _align_missing(reviewed: ReviewedSplit, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return confidences and probabilities, both float (rows,), nan where either is nan.

    A scorer without a calibrator keeps its raw confidences.
    """
    raw = reviewed.get_raw_scores(name)
    calibrated = reviewed.get_probabilities(name) if name in reviewed.calibrated else np.full(len(raw), np.nan)
    if np.isnan(calibrated).all():
        return raw, calibrated
    is_missing = np.isnan(raw) | np.isnan(calibrated)
    return np.where(is_missing, np.nan, raw), np.where(is_missing, np.nan, calibrated)
