"""Audits of a confidence: how it changes without the context, and with the answer to another question."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import BootstrapConfig, bootstrap, make_interval_columns, paired_difference


def context_removed(
    correct: np.ndarray,
    scores: pd.DataFrame,
    changed: pd.DataFrame,
    weight: np.ndarray,
    groups: np.ndarray,
    resamples: BootstrapConfig,
) -> list[dict[str, Any]]:
    """A row a scorer: AUROC and mean confidence with the context, and of the same answers without it.

    `scores`, `changed`: (rows, scorers) of the same answers, nan without a score. A scorer that ranks answers as well
    without the context does not use it to check them: `auroc_lost`, the paired difference on the same resamples, has a
    95 % interval by `groups`.
    """
    figures = {
        (name, kind): partial(metrics.auroc, correct, of[name].to_numpy())
        for name in scores
        for kind, of in (("own", scores), ("changed", changed))
    }
    found = bootstrap(figures, groups, resamples.draws, resamples.seed, weight)
    return [
        {
            "scorer": name,
            "auroc": found[name, "own"].value,
            "auroc_changed": found[name, "changed"].value,
            **make_interval_columns("auroc_lost", paired_difference(found[name, "own"], found[name, "changed"])),
            "mean": _mean(scores[name], weight),
            "mean_changed": _mean(changed[name], weight),
        }
        for name in scores
    ]


def answers_shuffled(
    correct: np.ndarray, scores: pd.DataFrame, changed: pd.DataFrame, weight: np.ndarray, threshold: dict[str, float]
) -> list[dict[str, Any]]:
    """A row a scorer: how well correct answers outscore shuffled ones to the same questions.

    `auroc_against_shuffled` compares correct answers with the shuffled answers to the same questions; `shown_changed`
    is the share of shuffled answers that a scorer with a `threshold` would show.
    """
    chosen = correct == 1
    labels = np.repeat([1, 0], chosen.sum())
    both = np.tile(weight[chosen], 2)
    rows = []
    for name in scores:
        own, other = scores[name].to_numpy()[chosen], changed[name].to_numpy()[chosen]
        row: dict[str, Any] = {
            "scorer": name,
            "auroc_against_shuffled": metrics.auroc(labels, np.concatenate([own, other]), both),
            "mean_correct": _mean(scores[name][chosen], weight[chosen]),
            "mean_changed": _mean(changed[name][chosen], weight[chosen]),
            "shown_changed": None,
        }
        if name in threshold:
            row["shown_changed"] = metrics.coverage(
                correct, changed[name].to_numpy(), weight, threshold=threshold[name]
            )
        rows.append(row)
    return rows


def _mean(scores: pd.Series, weight: np.ndarray) -> float:
    known = scores.notna().to_numpy()
    return float(metrics.weighted_mean(scores.to_numpy()[known], weight[known]))
