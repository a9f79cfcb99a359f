"""Audits of a confidence: how it changes without the context, and with the answer to another question."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import pandas as pd

from abstain.learning.evaluation.records import AnswersShuffled, ContextRemoved
from abstain.learning.evaluation.reviewed_split import ReviewedSplit
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import BootstrapConfig, make_interval_columns, paired_difference


def audit_context_removed(
    reviewed: ReviewedSplit, changed_scores: pd.DataFrame, resampling: BootstrapConfig
) -> list[ContextRemoved]:
    """Compare AUROC and mean confidence of the same answers with and without the context.

    A scorer that ranks answers as well without the context does not use it to check them.

    Args:
        reviewed: The answers with their scores.
        changed_scores: (rows, scorers) confidences without the context; nan without a score.
        resampling: Number of resamples and seed.

    Returns:
        A row for each scorer; `auroc_lost` is the paired difference on the same resamples.
    """
    statistics = {
        (name, variant): partial(metrics.auroc, reviewed.correct, table[name].to_numpy())
        for name in reviewed.scores
        for variant, table in (("original", reviewed.scores), ("changed", changed_scores))
    }
    estimates = reviewed.bootstrap(statistics, resampling)
    return [
        ContextRemoved(
            scorer=str(name),
            auroc=estimates[name, "original"].value,
            auroc_changed=estimates[name, "changed"].value,
            mean=_compute_mean(reviewed.scores[name], reviewed.weight),
            mean_changed=_compute_mean(changed_scores[name], reviewed.weight),
            **make_interval_columns(
                "auroc_lost", paired_difference(estimates[name, "original"], estimates[name, "changed"])
            ),
        )
        for name in reviewed.scores
    ]


def audit_answers_shuffled(
    reviewed: ReviewedSplit, changed_scores: pd.DataFrame, thresholds: Mapping[str, float]
) -> list[AnswersShuffled]:
    """Measure how well correct answers outscore shuffled answers to the same questions.

    Args:
        reviewed: The answers with their scores.
        changed_scores: (rows, scorers) confidences of the shuffled answers; nan without a score.
        thresholds: Scorer -> threshold, for the scorers that have one.

    Returns:
        A row for each scorer.
    """
    correct, weight = reviewed.subset(reviewed.correct == 1), reviewed.weight
    changed_correct = changed_scores[reviewed.correct == 1]
    labels, weights = np.repeat([1, 0], len(correct.rows)), np.tile(correct.weight, 2)
    rows = []
    for name in map(str, reviewed.scores):
        both = np.concatenate([correct.scores[name], changed_correct[name]])
        shown_changed = None
        if name in thresholds:
            changed = changed_scores[name].to_numpy()
            shown_changed = metrics.coverage(reviewed.correct, changed, weight, threshold=thresholds[name])
        rows.append(
            AnswersShuffled(
                scorer=name,
                auroc_against_shuffled=metrics.auroc(labels, both, weights),
                mean_correct=_compute_mean(correct.scores[name], correct.weight),
                mean_changed=_compute_mean(changed_correct[name], correct.weight),
                shown_changed=shown_changed,
            )
        )
    return rows


def _compute_mean(scores: pd.Series, weight: np.ndarray) -> float:
    has_score = scores.notna().to_numpy()
    return float(metrics.weighted_mean(scores.to_numpy()[has_score], weight[has_score]))
