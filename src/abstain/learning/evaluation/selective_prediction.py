"""Selective prediction: which answers a threshold shows and how good they are (the paper's tables 2 and 4, weighted).

Huang et al., section 4: answers with a confidence below the threshold are withheld; shown answers should be correct
more often, and closer to the reviewer's ideal answer, than withheld ones.

Reviewers write an ideal answer more often for an incorrect answer than for a correct one. So the mean ROUGE of shown
answers would be that of other answers than their precision: those with an ideal answer. Each of them is weighted by
1 / P(ideal answer | correct or not), as estimated from all reviewed answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from abstain.config.params import ThresholdParams
from abstain.core.errors import AbstainError
from abstain.learning.evaluation.records import OwnThreshold, ThresholdMetrics
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import BootstrapConfig, Statistic, bootstrap, make_interval_columns
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
    statistics = _make_statistics(answers, threshold, rouge)
    values: dict[str, Any] = {name: statistic(answers.weight) for name, statistic in statistics.items()}
    if rouge is not None:
        has_ideal_answer, is_shown = ~np.isnan(rouge), answers.confidence >= threshold
        values["rouge_shown_answers"] = int((has_ideal_answer & is_shown).sum())
        values["rouge_withheld_answers"] = int((has_ideal_answer & ~is_shown).sum())
    return ThresholdMetrics(threshold=threshold, abstention_rate=1 - values["coverage"], **values)


def _make_statistics(answers: ScoredAnswers, threshold: float, rouge: np.ndarray | None) -> dict[str, Statistic]:
    """Return the metrics at a threshold as functions of the weights, by name."""
    functions = {
        "precision": metrics.precision,
        "recall": metrics.recall,
        "coverage": metrics.coverage,
        "accuracy": metrics.accuracy,
        "f1": metrics.f1,
    }
    statistics: dict[str, Statistic] = {
        name: partial(metric, answers.correct, answers.confidence, threshold=threshold)
        for name, metric in functions.items()
    }
    if rouge is not None:
        is_shown = answers.confidence >= threshold
        for name, selected in (("rouge_shown", is_shown), ("rouge_withheld", ~is_shown)):
            statistics[name] = partial(_compute_mean_rouge, rouge, answers.correct, selected)
    return statistics


def _compute_mean_rouge(
    rouge: np.ndarray, correct: np.ndarray, selected: np.ndarray, weight: np.ndarray
) -> float | np.ndarray:
    """Compute the mean ROUGE of the selected answers for one weighting, or for several.

    It is nan if a class of them, correct or incorrect, has no ideal answer to estimate it from.
    """
    weights = np.atleast_2d(weight)
    sums, counts = np.zeros(len(weights)), np.zeros(len(weights))
    for label in (0, 1):
        of_class, answered = correct == label, (correct == label) & ~np.isnan(rouge)
        chosen = answered & selected
        with np.errstate(divide="ignore", invalid="ignore"):
            inverse = weights[:, of_class].sum(1) / weights[:, answered].sum(1)
            has_any = weights[:, of_class & selected].sum(1) > 0
            sums += np.where(has_any, inverse * (weights[:, chosen] @ rouge[chosen]), 0.0)
            counts += np.where(has_any, inverse * weights[:, chosen].sum(1), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        means = sums / counts
    return means if weight.ndim > 1 else float(means[0])


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
    answers: ScoredAnswers,
    groups: np.ndarray,
    marked_thresholds: Mapping[str, float],
    resampling: BootstrapConfig,
    rouge: np.ndarray | None = None,
) -> pd.DataFrame:
    """Evaluate the thresholds 0.0, 0.1 ... 0.9 and the marked ones, in rising order (the paper's table 2).

    Args:
        answers: The answers.
        groups: (rows,) group ids.
        marked_thresholds: Name -> threshold. Each name has its own row, also if two have the same threshold.
        resampling: Number of resamples and seed.
        rouge: As in `evaluate_at_threshold`.

    Returns:
        The columns of `ThresholdMetrics`, `NAME_low` and `NAME_high` with the 95 % interval of each metric by groups,
        and `mark`, the name of a marked threshold or "".

    Raises:
        ValueError: A marked threshold is nan: a missing guarantee has no threshold to show.
    """
    for name, threshold in marked_thresholds.items():
        if np.isnan(threshold):
            raise ValueError(f"threshold '{name}' is nan")
    grid = [(threshold, "") for threshold in GRID if threshold not in marked_thresholds.values()]
    rows = sorted([*grid, *((threshold, name) for name, threshold in marked_thresholds.items())])
    estimates = bootstrap(
        {
            (threshold, name): statistic
            for threshold in {threshold for threshold, _ in rows}
            for name, statistic in _make_statistics(answers, threshold, rouge).items()
        },
        groups,
        n_resamples=resampling.n_resamples,
        seed=resampling.seed,
        weight=answers.weight,
    )
    table = []
    for threshold, mark in rows:
        values = evaluate_at_threshold(answers, threshold, rouge).to_dict()
        for (of_threshold, name), estimate in estimates.items():
            if of_threshold == threshold:
                values |= make_interval_columns(name, estimate)
        table.append({**values, "mark": mark})
    return pd.DataFrame(table)
