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
    """Evaluate showing every answer with confidence >= `threshold`, a row of the paper's tables 2 and 4.

    Args:
        correct: (rows,) 0 or 1.
        confidence: (rows,); an answer without a score, nan, is withheld.
        threshold: The threshold.
        weight: (rows,) sampling weights; None means equal weights.
        rouge: (rows,) ROUGE-L against the ideal answer, in [0, 1]; nan without one. None leaves ROUGE out.

    Returns:
        `threshold`, `precision`, `recall`, `coverage`, `abstention_rate` = 1 - coverage, and `accuracy` and `f1` of
        shown as the prediction of correct. With `rouge` also its means over shown and withheld answers, `rouge_shown`
        and `rouge_withheld`, and the numbers of answers in these means, `rouge_shown_answers` and
        `rouge_withheld_answers`. A value without any answers is nan.
    """
    metric_functions = (metrics.precision, metrics.recall, metrics.coverage, metrics.accuracy, metrics.f1)
    precision, recall, shown, accuracy, f1 = (
        metric(correct, confidence, weight, threshold=threshold) for metric in metric_functions
    )
    row = {"threshold": threshold, "precision": precision, "recall": recall, "coverage": shown}
    row |= {"abstention_rate": 1 - shown, "accuracy": accuracy, "f1": f1}
    if rouge is None:
        return row
    has_ideal_answer, shown_rows = ~np.isnan(rouge), confidence >= threshold
    for name, mask in (("shown", has_ideal_answer & shown_rows), ("withheld", has_ideal_answer & ~shown_rows)):
        row[f"rouge_{name}"] = metrics.weighted_mean(rouge[mask], None if weight is None else weight[mask])
        row[f"rouge_{name}_answers"] = int(mask.sum())
    return row


@dataclass(frozen=True)
class ScoredAnswers:
    """Reviewed answers with the confidences of one scorer.

    Attributes:
        correct: (rows,) 0 or 1.
        confidence: (rows,); nan without a score.
        weight: (rows,) sampling weights.
    """

    correct: np.ndarray
    confidence: np.ndarray
    weight: np.ndarray


def evaluate_at_tuned_threshold(
    validation: ScoredAnswers, holdout: ScoredAnswers, params: ThresholdParams, rouge: np.ndarray | None = None
) -> dict[str, Any]:
    """Evaluate the hold-out at the heuristic threshold of the validation split.

    Args:
        validation: Answers to tune the threshold on.
        holdout: Answers to evaluate.
        params: Metric, target and `min_shown` of the threshold.
        rouge: (hold-out rows,) ROUGE-L against the ideal answer; nan without one. None leaves ROUGE out.

    Returns:
        The row of `evaluate_at_threshold` and an empty `note`; only a `note` with the reason if the target cannot be
        met on validation.
    """
    has_score = ~np.isnan(validation.confidence)
    try:
        tuned = tune_threshold(
            validation.confidence[has_score], validation.correct[has_score], params, validation.weight[has_score]
        )
    except AbstainError as error:
        return {"note": str(error)}
    row = evaluate_at_threshold(holdout.correct, holdout.confidence, tuned.threshold, holdout.weight, rouge)
    return {**row, "note": ""}


def build_threshold_table(
    correct: np.ndarray,
    confidence: np.ndarray,
    marked_thresholds: Mapping[str, float],
    weight: metrics.Weight = None,
    rouge: np.ndarray | None = None,
) -> pd.DataFrame:
    """Evaluate the thresholds 0.0, 0.1 ... 0.9 and the marked ones, in rising order (the paper's table 2).

    Args:
        correct: (rows,) 0 or 1.
        confidence: (rows,); nan without a score.
        marked_thresholds: Name -> threshold. Each name has its own row, also if two have the same threshold.
        weight: (rows,) sampling weights; None means equal weights.
        rouge: (rows,) ROUGE-L against the ideal answer; nan without one. None leaves ROUGE out.

    Returns:
        The rows of `evaluate_at_threshold`, and `mark`, the name of a marked threshold or "".

    Raises:
        ValueError: A marked threshold is nan: a missing guarantee has no threshold to show.
    """
    for name, threshold in marked_thresholds.items():
        if np.isnan(threshold):
            raise ValueError(f"threshold '{name}' is nan")
    grid = [(threshold, "") for threshold in GRID if threshold not in marked_thresholds.values()]
    rows = sorted([*grid, *((threshold, name) for name, threshold in marked_thresholds.items())])
    return pd.DataFrame(
        [
            {**evaluate_at_threshold(correct, confidence, threshold, weight, rouge), "mark": mark}
            for threshold, mark in rows
        ]
    )
