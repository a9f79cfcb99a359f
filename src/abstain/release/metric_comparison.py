"""Paired metrics of candidate and champion on the hold-out, with intervals; reported, not judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import Statistic, paired_difference
from abstain.release.evaluation_set import CANDIDATE, EvaluationSet, Measured


@dataclass(frozen=True)
class MetricComparison:
    """One metric of candidate and champion on the same answers.

    Attributes:
        metric: Name of the metric.
        candidate: The candidate's value.
        champion: The champion's value.
        difference: Candidate minus champion.
        low: Lower bound of the difference (95 %, by groups).
        high: Upper bound.
    """

    metric: str
    candidate: Measured
    champion: Measured
    difference: Measured
    low: Measured
    high: Measured


def compare_metrics(evaluation: EvaluationSet, champion: str) -> list[MetricComparison]:
    """Compare ranking and calibration metrics of candidate and champion.

    The metrics are AUROC, AURC, errors caught if 15 % of the answers are withheld, their share of the errors that could
    be caught, and the Brier score of the calibrated probabilities. The Brier score is left out if one of the two has no
    probabilities.

    Args:
        evaluation: Answers with the confidences of both.
        champion: Name of the champion's column.

    Returns:
        One comparison for each metric.
    """
    statistics: dict[str, dict[str, Statistic]] = {
        name: {
            scorer: partial(metric, evaluation.correct, evaluation.confidences[scorer])
            for scorer in (CANDIDATE, champion)
        }
        for name, metric in (
            ("AUROC", metrics.auroc),
            ("AURC", metrics.aurc),
            ("errors caught, 15 % withheld", metrics.error_recall),
            ("share of the errors that could be caught", metrics.error_recall_vs_best),
        )
    }
    probabilities_by_scorer = {CANDIDATE: evaluation.probabilities, champion: evaluation.champion_probability}
    available = {scorer: np.asarray(values) for scorer, values in probabilities_by_scorer.items() if values is not None}
    if len(available) == len(probabilities_by_scorer):
        statistics["Brier score"] = {
            scorer: partial(metrics.brier, evaluation.correct, values) for scorer, values in available.items()
        }
    return compare_statistics(evaluation, champion, statistics)


def compare_statistics(
    evaluation: EvaluationSet, champion: str, statistics: Mapping[str, Mapping[str, Statistic]]
) -> list[MetricComparison]:
    """Compare statistics of candidate and champion on the same resamples of groups.

    Args:
        evaluation: Answers with the confidences of both.
        champion: Name of the champion's column.
        statistics: Name -> scorer -> statistic.

    Returns:
        One comparison for each statistic.
    """
    rows = []
    for name, statistic_by_scorer in statistics.items():
        estimates = evaluation.bootstrap(statistic_by_scorer)
        candidate_estimate, champion_estimate = estimates[CANDIDATE], estimates[champion]
        difference = paired_difference(candidate_estimate, champion_estimate)
        rows.append(
            MetricComparison(
                name, candidate_estimate.value, champion_estimate.value, difference.value, *difference.interval
            )
        )
    return rows
