"""Audits of a confidence: how it changes without the context, and with the answer to another question."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import BootstrapConfig, bootstrap, make_interval_columns, paired_difference


def audit_context_removed(
    correct: np.ndarray,
    scores: pd.DataFrame,
    changed_scores: pd.DataFrame,
    weight: np.ndarray,
    groups: np.ndarray,
    resampling: BootstrapConfig,
) -> list[dict[str, Any]]:
    """Compare AUROC and mean confidence of the same answers with and without the context.

    A scorer that ranks answers as well without the context does not use it to check them.

    Args:
        correct: (rows,) 0 or 1.
        scores: (rows, scorers) confidences with the context; nan without a score.
        changed_scores: (rows, scorers) confidences without the context; nan without a score.
        weight: (rows,) sampling weights.
        groups: (rows,) group ids of the bootstrap.
        resampling: Number of resamples and seed.

    Returns:
        A row for each scorer: `scorer`, `auroc`, `auroc_changed`, `mean` and `mean_changed`, and `auroc_lost`, the
        paired difference on the same resamples with its 95 % interval.
    """
    statistics = {
        (name, variant): partial(metrics.auroc, correct, table[name].to_numpy())
        for name in scores
        for variant, table in (("original", scores), ("changed", changed_scores))
    }
    estimates = bootstrap(statistics, groups, n_resamples=resampling.n_resamples, seed=resampling.seed, weight=weight)
    return [
        {
            "scorer": name,
            "auroc": estimates[name, "original"].value,
            "auroc_changed": estimates[name, "changed"].value,
            **make_interval_columns(
                "auroc_lost", paired_difference(estimates[name, "original"], estimates[name, "changed"])
            ),
            "mean": _compute_mean(scores[name], weight),
            "mean_changed": _compute_mean(changed_scores[name], weight),
        }
        for name in scores
    ]


def audit_answers_shuffled(
    correct: np.ndarray,
    scores: pd.DataFrame,
    changed_scores: pd.DataFrame,
    weight: np.ndarray,
    thresholds: dict[str, float],
) -> list[dict[str, Any]]:
    """Measure how well correct answers outscore shuffled answers to the same questions.

    Args:
        correct: (rows,) 0 or 1.
        scores: (rows, scorers) confidences of the original answers; nan without a score.
        changed_scores: (rows, scorers) confidences of the shuffled answers; nan without a score.
        weight: (rows,) sampling weights.
        thresholds: Scorer -> threshold, for the scorers that have one.

    Returns:
        A row for each scorer: `auroc_against_shuffled` of the correct answers against the shuffled ones, the mean
        confidences of both, and `shown_changed`, the share of shuffled answers that the threshold would show, None
        without a threshold.
    """
    is_correct = correct == 1
    labels = np.repeat([1, 0], is_correct.sum())
    weights = np.tile(weight[is_correct], 2)
    rows = []
    for name in scores:
        original, shuffled = scores[name].to_numpy()[is_correct], changed_scores[name].to_numpy()[is_correct]
        row: dict[str, Any] = {
            "scorer": name,
            "auroc_against_shuffled": metrics.auroc(labels, np.concatenate([original, shuffled]), weights),
            "mean_correct": _compute_mean(scores[name][is_correct], weight[is_correct]),
            "mean_changed": _compute_mean(changed_scores[name][is_correct], weight[is_correct]),
            "shown_changed": None,
        }
        if name in thresholds:
            row["shown_changed"] = metrics.coverage(
                correct, changed_scores[name].to_numpy(), weight, threshold=thresholds[name]
            )
        rows.append(row)
    return rows


def _compute_mean(scores: pd.Series, weight: np.ndarray) -> float:
    has_score = scores.notna().to_numpy()
    return float(metrics.weighted_mean(scores.to_numpy()[has_score], weight[has_score]))
