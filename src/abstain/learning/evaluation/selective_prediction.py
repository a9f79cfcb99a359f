"""Selective prediction: which answers a threshold shows and how good they are (the paper's tables 2 and 4, weighted).

Huang et al., section 4: answers with a confidence below the threshold are withheld; shown answers should be correct
more often, and closer to the reviewer's ideal answer, than withheld ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from abstain.config.params import ThresholdParams
from abstain.core.errors import AbstainError
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.thresholds.selection import tune_threshold

GRID = tuple(step / 10 for step in range(10))


def evaluate_at_threshold(
    correct: np.ndarray,
    confidence: np.ndarray,
    threshold: float,
    weight: metrics.Weight = None,
    rouge: np.ndarray | None = None,
) -> dict[str, float]:
    """One row of the paper's tables 2 and 4: the result of showing every answer with confidence >= `threshold`.

    Args:
        correct: (rows,) of 0/1. confidence: (rows,), nan without a score: such an answer is withheld.
        weight: (rows,), None for equal ones. rouge: (rows,) in [0, 1], nan where there is no ideal answer (`rouge`).

    Returns `threshold`, `precision`, `recall`, `coverage`, `abstention_rate`, and `accuracy` and `f1` of taking what is
    shown for correct; with `rouge`, also its mean over shown and over withheld answers, `rouge_shown` and
    `rouge_withheld`, and of how many answers each is the mean, `rouge_shown_answers` and `rouge_withheld_answers`. A
    figure of nothing is nan.
    """
    judged = (metrics.precision, metrics.recall, metrics.coverage, metrics.accuracy, metrics.f1)
    precision, recall, shown, accuracy, f1 = (
        metric(correct, confidence, weight, threshold=threshold) for metric in judged
    )
    row = {"threshold": threshold, "precision": precision, "recall": recall, "coverage": shown}
    row |= {"abstention_rate": 1 - shown, "accuracy": accuracy, "f1": f1}
    if rouge is None:
        return row
    known, shown_rows = ~np.isnan(rouge), confidence >= threshold
    for name, part in (("shown", known & shown_rows), ("withheld", known & ~shown_rows)):
        row[f"rouge_{name}"] = metrics.weighted_mean(rouge[part], None if weight is None else weight[part])
        row[f"rouge_{name}_answers"] = int(part.sum())
    return row


@dataclass(frozen=True)
class ScoredAnswers:
    """Reviewed answers and one scorer's confidence: `correct` of 0/1, `confidence`, nan without a score, and `weight`,
    each (rows,)."""

    correct: np.ndarray
    confidence: np.ndarray
    weight: np.ndarray


def evaluate_at_tuned_threshold(
    validation: ScoredAnswers, holdout: ScoredAnswers, params: ThresholdParams, rouge: np.ndarray | None = None
) -> dict[str, Any]:
    """`evaluate_at_threshold` of the hold-out at the heuristic threshold of `validation`, and an empty `note`.

    Where the target is out of reach on validation, the row has only a `note` that states it.
    """
    known = ~np.isnan(validation.confidence)
    try:
        tuned = tune_threshold(
            validation.confidence[known], validation.correct[known], params, validation.weight[known]
        )
    except AbstainError as error:
        return {"note": str(error)}
    row = evaluate_at_threshold(holdout.correct, holdout.confidence, tuned.threshold, holdout.weight, rouge)
    return {**row, "note": ""}


def build_threshold_table(
    correct: np.ndarray,
    confidence: np.ndarray,
    thresholds_marked: Mapping[str, float],
    weight: metrics.Weight = None,
    rouge: np.ndarray | None = None,
) -> pd.DataFrame:
    """`evaluate_at_threshold` at 0.0, 0.1 ... 0.9 and at the marked ones, in rising order (the paper's table 2).

    `mark` is the name of a marked threshold, "" elsewhere. Every name has one row, two of one threshold each their own.
    Raises `ValueError` when a marked threshold is nan: a guarantee that cannot be made has no threshold to show.
    """
    for name, threshold in thresholds_marked.items():
        if np.isnan(threshold):
            raise ValueError(f"threshold '{name}' is nan")
    plain = [(threshold, "") for threshold in GRID if threshold not in thresholds_marked.values()]
    rows = sorted([*plain, *((threshold, name) for name, threshold in thresholds_marked.items())])
    return pd.DataFrame(
        [
            {**evaluate_at_threshold(correct, confidence, threshold, weight, rouge), "mark": mark}
            for threshold, mark in rows
        ]
    )
