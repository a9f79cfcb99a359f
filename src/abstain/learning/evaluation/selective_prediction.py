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
from abstain.learning.evaluation.records import OwnThreshold, ThresholdMetrics
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.thresholds.selection import tune_threshold

GRID = tuple(step / 10 for step in range(10))


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


def evaluate_at_threshold(
    answers: ScoredAnswers, threshold: float, rouge: np.ndarray | None = None
) -> ThresholdMetrics:
    """Evaluate showing every answer with confidence >= `threshold`, a row of the paper's tables 2 and 4.

    Args:
        answers: The answers; one without a score is withheld.
        threshold: The threshold.
        rouge: (rows,) ROUGE-L against the ideal answer, in [0, 1]; nan without one. None leaves ROUGE out.

    Returns:
        The metrics; accuracy and F1 are those of shown as the prediction of correct.
    """
    functions = {
        "precision": metrics.precision,
        "recall": metrics.recall,
        "coverage": metrics.coverage,
        "accuracy": metrics.accuracy,
        "f1": metrics.f1,
    }
    values = {
        name: metric(answers.correct, answers.confidence, answers.weight, threshold=threshold)
        for name, metric in functions.items()
    }
    similarities: dict[str, Any] = {}
    if rouge is not None:
        has_ideal_answer, is_shown = ~np.isnan(rouge), answers.confidence >= threshold
        for name, mask in (("shown", has_ideal_answer & is_shown), ("withheld", has_ideal_answer & ~is_shown)):
            similarities[f"rouge_{name}"] = metrics.weighted_mean(rouge[mask], answers.weight[mask])
            similarities[f"rouge_{name}_answers"] = int(mask.sum())
    return ThresholdMetrics(threshold=threshold, abstention_rate=1 - values["coverage"], **values, **similarities)


def evaluate_at_tuned_threshold(
    validation: ScoredAnswers, holdout: ScoredAnswers, params: ThresholdParams, rouge: np.ndarray | None = None
) -> OwnThreshold:
    """Evaluate the hold-out at the heuristic threshold of the validation split.

    Args:
        validation: Answers to tune the threshold on.
        holdout: Answers to evaluate.
        params: Metric, target and `min_shown` of the threshold.
        rouge: (hold-out rows,) ROUGE-L against the ideal answer; nan without one. None leaves ROUGE out.

    Returns:
        The metrics with an empty `note`; only a `note` with the reason if the target cannot be met on validation.
    """
    has_score = ~np.isnan(validation.confidence)
    try:
        tuned = tune_threshold(
            validation.confidence[has_score], validation.correct[has_score], params, validation.weight[has_score]
        )
    except AbstainError as error:
        return OwnThreshold(note=str(error))
    return OwnThreshold(note="", **evaluate_at_threshold(holdout, tuned.threshold, rouge).to_dict())


def build_threshold_table(
    answers: ScoredAnswers, marked_thresholds: Mapping[str, float], rouge: np.ndarray | None = None
) -> pd.DataFrame:
    """Evaluate the thresholds 0.0, 0.1 ... 0.9 and the marked ones, in rising order (the paper's table 2).

    Args:
        answers: The answers.
        marked_thresholds: Name -> threshold. Each name has its own row, also if two have the same threshold.
        rouge: As in `evaluate_at_threshold`.

    Returns:
        The columns of `ThresholdMetrics`, and `mark`, the name of a marked threshold or "".

    Raises:
        ValueError: A marked threshold is nan: a missing guarantee has no threshold to show.
    """
    for name, threshold in marked_thresholds.items():
        if np.isnan(threshold):
            raise ValueError(f"threshold '{name}' is nan")
    grid = [(threshold, "") for threshold in GRID if threshold not in marked_thresholds.values()]
    rows = sorted([*grid, *((threshold, name) for name, threshold in marked_thresholds.items())])
    return pd.DataFrame(
        [{**evaluate_at_threshold(answers, threshold, rouge).to_dict(), "mark": mark} for threshold, mark in rows]
    )
