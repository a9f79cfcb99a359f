"""Reviewed answers with the scores of every scorer: the input of all evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, get_args

import numpy as np
import pandas as pd

from abstain.core.errors import AbstainError
from abstain.data.store.splits import split_by_sampling
from abstain.learning.evaluation.records import CalibratorMetrics, ServedMetrics, SplitMetrics
from abstain.learning.evaluation.selective_prediction import ScoredAnswers, evaluate_at_threshold
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import (
    BootstrapConfig,
    Estimate,
    Key,
    Statistic,
    bootstrap,
    make_interval_columns,
)
from abstain.learning.metrics.calibration import Calibrator, Method, fit_calibrator


@dataclass(frozen=True)
class ReviewedSplit:
    """Reviewed answers of one split.

    Attributes:
        rows: Rows of the data set.
        scores: (rows, scorers) raw confidences; nan where a scorer has no score.
        calibrated: (rows, scorers) probabilities; nan where there is none.
        sampling_weight: (rows,) weights; None computes them from the inclusion probabilities.
    """

    rows: pd.DataFrame
    scores: pd.DataFrame
    calibrated: pd.DataFrame
    sampling_weight: np.ndarray | None = None

    @cached_property
    def correct(self) -> np.ndarray:
        """The labels, int (rows,), 0 or 1."""
        return self.rows["correct"].to_numpy(int)

    @cached_property
    def weight(self) -> np.ndarray:
        """The sampling weights, (rows,) (`weighted_metrics.row_weights`)."""
        if self.sampling_weight is not None:
            return self.sampling_weight
        return metrics.row_weights(self.rows["inclusion_probability"].to_numpy(float))

    @cached_property
    def groups(self) -> np.ndarray:
        """The group ids, (rows,)."""
        return self.rows["group"].to_numpy()

    @property
    def counts(self) -> SplitMetrics:
        """The number of rows, the number of unevenly sampled ones, and the effective sample size."""
        return SplitMetrics(
            rows=len(self.rows),
            sampled_unevenly=int((self.weight < 1).sum()),
            effective_sample_size=metrics.effective_sample_size(self.weight),
        )

    def bootstrap(self, statistics: Mapping[Key, Statistic], resampling: BootstrapConfig) -> dict[Key, Estimate]:
        """Estimate statistics of these answers, weighted, on resamples of their groups (`bootstrap.bootstrap`)."""
        return bootstrap(
            statistics, self.groups, n_resamples=resampling.n_resamples, seed=resampling.seed, weight=self.weight
        )

    def subset(self, mask: np.ndarray) -> ReviewedSplit:
        """Select the rows where `mask`, bool (rows,), is true; they keep their weights."""
        return ReviewedSplit(self.rows[mask], self.scores[mask], self.calibrated[mask], self.weight[mask])

    def split_by_sampling(self, sampled_only: bool = True) -> tuple[ReviewedSplit, ReviewedSplit]:
        """Separate the answers that represent all answers from self-selected ones (`splits.split_by_sampling`).

        Args:
            sampled_only: False keeps self-selected reviews in the first part, for a guarantee that does not cover all
                answers.

        Returns:
            The answers to evaluate, and the others.
        """
        representative, self_selected = (
            ReviewedSplit(rows, self.scores.loc[rows.index], self.calibrated.loc[rows.index])
            for rows in split_by_sampling(self.rows, sampled_only)
        )
        return representative, self_selected

    def get_raw_scores(self, name: str) -> np.ndarray:
        """Return the raw confidences of a scorer, float64 (rows,); nan without a score."""
        return self.scores[name].to_numpy(float)

    def get_scored_answers(self, name: str) -> ScoredAnswers:
        """Return the answers with the raw confidences of a scorer."""
        return ScoredAnswers(self.correct, self.get_raw_scores(name), self.weight)

    def get_scored_rows(self, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return raw confidence, label and weight of the answers that a scorer has a score for."""
        confidence = self.get_raw_scores(name)
        has_score = ~np.isnan(confidence)
        return confidence[has_score], self.correct[has_score], self.weight[has_score]

    def get_probabilities(self, name: str) -> np.ndarray:
        """Return the calibrated probabilities of a scorer, float64 (rows,); nan where there is none."""
        return self.calibrated[name].to_numpy(float)

    def evaluate_served(
        self, name: str, threshold: float, resampling: BootstrapConfig, rouge: np.ndarray | None = None
    ) -> ServedMetrics:
        """Evaluate a threshold, with 95 % intervals of the precision and of the error rate by groups.

        An interval of width 0 is undefined: if all shown answers are correct, they are correct in every resample.

        Args:
            name: The scorer.
            threshold: Answers with confidence >= `threshold` are shown.
            resampling: Number of resamples and seed.
            rouge: As in `evaluate_at_threshold`.

        Returns:
            The metrics.
        """
        shown = (self.get_raw_scores(name) >= threshold).astype(float)
        statistics = {
            "precision": partial(metrics.precision, self.correct, shown, threshold=1.0),
            "error_rate": partial(metrics.weighted_mean, shown * (1 - self.correct)),
        }
        bounds: dict[str, Any] = {}
        for metric, estimate in self.bootstrap(statistics, resampling).items():
            low, high = estimate.interval if np.ptp(estimate.interval) > 0 else (np.nan, np.nan)
            bounds |= {f"{metric}_low": low, f"{metric}_high": high}
        return ServedMetrics(
            **evaluate_at_threshold(self.get_scored_answers(name), threshold, rouge).to_dict(),
            shown=int(shown.sum()),
            shown_n_eff=metrics.effective_sample_size(self.weight[shown == 1]),
            shown_groups=len(np.unique(self.groups[shown == 1])),
            **bounds,
        )


def calibrate_scores(
    validation: ReviewedSplit, scores: Mapping[str, pd.DataFrame], method: Method
) -> dict[str, pd.DataFrame]:
    """Replace confidences by probabilities, with calibrators fitted on the validation split.

    Args:
        validation: The validation split.
        scores: Split -> (rows, scorers) raw confidences.
        method: The calibration method.

    Returns:
        Split -> (rows, scorers) probabilities. An answer without a score has no probability. A scorer with too few
        scored validation answers is left out.
    """
    calibrators: dict[Any, Calibrator] = {}
    for name in validation.scores:
        with suppress(AbstainError):
            calibrators[name] = fit_calibrator(method, *validation.get_scored_rows(str(name)))
    return {
        split: pd.DataFrame(
            {name: calibrators[name].apply(table[name].to_numpy(float)) for name in calibrators}, table.index
        )
        for split, table in scores.items()
    }


def compare_calibrators(
    validation: ReviewedSplit,
    holdout: ReviewedSplit,
    name: str,
    uncalibrated: list[str],
    resampling: BootstrapConfig,
) -> list[CalibratorMetrics]:
    """Compare the calibration methods by ECE and Brier score on the hold-out.

    Args:
        validation: The split on which calibrators are fitted.
        holdout: The split on which they are evaluated.
        name: The scorer.
        uncalibrated: Scorers whose raw confidences are listed for comparison.
        resampling: Number of resamples and seed.

    Returns:
        A row for each method; its metrics are undefined if it needs more answers.
    """
    probabilities: dict[str, np.ndarray] = {}
    for method in get_args(Method):
        try:
            fitted = fit_calibrator(method, *validation.get_scored_rows(name))
            probabilities[method] = fitted.apply(holdout.get_raw_scores(name))
        except AbstainError:  # too few answers of a class: the row of this method has no values
            probabilities[method] = np.full(len(holdout.rows), np.nan)
    probabilities |= {f"none, {scorer}": holdout.get_raw_scores(scorer) for scorer in uncalibrated}
    statistics = {
        (method, name): partial(function, holdout.correct, probability)
        for method, probability in probabilities.items()
        for name, function in (("ece", metrics.ece), ("brier", metrics.brier))
    }
    estimates = holdout.bootstrap(statistics, resampling)
    return [
        CalibratorMetrics(
            method=method,
            **make_interval_columns("ece", estimates[method, "ece"]),
            **make_interval_columns("brier", estimates[method, "brier"]),
        )
        for method in probabilities
    ]
