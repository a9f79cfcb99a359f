"""Reviewed answers with the scores of every scorer: the input of all evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, get_args

import numpy as np
import pandas as pd

from abstain.core.errors import AbstainError
from abstain.data.store.splits import split_by_sampling
from abstain.learning.evaluation.selective_prediction import ScoredAnswers
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import BootstrapConfig, bootstrap, make_interval_columns
from abstain.learning.metrics.calibration import Calibrator, Method, fit_calibrator


@dataclass(frozen=True)
class ReviewedSplit:
    """Reviewed answers of one split.

    Attributes:
        rows: of the data set. scores: (rows, scorers), raw confidences, nan where a scorer has no score.
        calibrated: the same as probabilities.
    """

    rows: pd.DataFrame
    scores: pd.DataFrame
    calibrated: pd.DataFrame

    @cached_property
    def correct(self) -> np.ndarray:
        """0/1, (rows,)."""
        return self.rows["correct"].to_numpy(int)

    @cached_property
    def weight(self) -> np.ndarray:
        """`metrics.row_weights` of the rows."""
        return metrics.row_weights(self.rows["inclusion_probability"].to_numpy(float))

    @cached_property
    def groups(self) -> np.ndarray:
        return self.rows["group"].to_numpy()

    @property
    def counts(self) -> dict[str, Any]:
        """The number of rows, the number of unevenly sampled ones, and the effective sample size."""
        return {
            "rows": len(self.rows),
            "drawn_unevenly": int((self.weight < 1).sum()),
            "effective_sample_size": metrics.effective_sample_size(self.weight),
        }

    def split_by_sampling(self, of_all: bool = True) -> tuple[ReviewedSplit, ReviewedSplit]:
        """The answers that count, and those apart from them (`splits.by_how_chosen`)."""
        counted, apart = (
            ReviewedSplit(rows, self.scores.loc[rows.index], self.calibrated.loc[rows.index])
            for rows in split_by_sampling(self.rows, of_all)
        )
        return counted, apart

    def get_raw_scores(self, name: str) -> np.ndarray:
        """The raw confidences of the scorer `name`, float64 (rows,)."""
        return self.scores[name].to_numpy(float)

    def get_confidences(self, name: str) -> ScoredAnswers:
        """The answers with the confidences of the scorer `name`."""
        return ScoredAnswers(self.correct, self.get_raw_scores(name), self.weight)

    def get_scored_rows(self, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Raw confidence, `correct` and `weight` of the answers that the scorer `name` has a score of, each (rows,)."""
        confidence = self.get_raw_scores(name)
        known = ~np.isnan(confidence)
        return confidence[known], self.correct[known], self.weight[known]

    def get_probabilities(self, name: str) -> np.ndarray:
        """The calibrated probability of the scorer `name`, float64 (rows,)."""
        return self.calibrated[name].to_numpy(float)

    def summarize_shown(self, name: str, threshold: float, resamples: BootstrapConfig) -> dict[str, float]:
        """The answers that `name` shows from `threshold` on: their number, `shown`, their effective sample size,
        `shown_n_eff`, and 95 % intervals, by groups, of their precision and of the error rate: `precision_low`,
        `precision_high`, `error_rate_low`, `error_rate_high`.

        An interval of width 0 is nan: where all shown answers are correct, they are in every draw.
        """
        shown = (self.get_raw_scores(name) >= threshold).astype(float)
        figures = {
            "precision": partial(metrics.precision, self.correct, shown, threshold=1.0),
            "error_rate": partial(metrics.weighted_mean, shown * (1 - self.correct)),
        }
        found = bootstrap(figures, self.groups, resamples.draws, resamples.seed, self.weight)
        row = {"shown": int(shown.sum()), "shown_n_eff": metrics.effective_sample_size(self.weight[shown == 1])}
        for metric, of in found.items():
            low, high = of.interval if np.ptp(of.interval) > 0 else (np.nan, np.nan)
            row |= {f"{metric}_low": low, f"{metric}_high": high}
        return row


def calibrate_scores(
    validation: ReviewedSplit, scores: Mapping[str, pd.DataFrame], method: Method
) -> dict[str, pd.DataFrame]:
    """Probabilities in place of `scores` (split -> (rows, scorers)), by calibrators fitted on the validation split.

    An answer without a score has no probability. A scorer that scored too few of the validation split's answers to be
    calibrated has no probabilities at all.
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
    resamples: BootstrapConfig,
) -> list[dict[str, Any]]:
    """ECE and Brier score of `name` on the hold-out, with 95 % intervals, a row a method that is fitted on validation.

    `uncalibrated`: scorers whose raw confidences are shown beside them.
    """
    probabilities: dict[str, np.ndarray] = {}
    for method in get_args(Method):
        try:
            fitted = fit_calibrator(method, *validation.get_scored_rows(name))
            probabilities[method] = fitted.apply(holdout.get_raw_scores(name))
        except AbstainError:  # too few answers of a kind for this one: its row stays, without figures
            probabilities[method] = np.full(len(holdout.rows), np.nan)
    probabilities |= {f"none, {other}": holdout.get_raw_scores(other) for other in uncalibrated}
    metric: dict[str, Callable[..., Any]] = {"ece": metrics.ece, "brier": metrics.brier}
    figures = {
        (method, figure): partial(function, holdout.correct, probability)
        for method, probability in probabilities.items()
        for figure, function in metric.items()
    }
    found = bootstrap(figures, holdout.groups, resamples.draws, resamples.seed, holdout.weight)
    rows = []
    for method in probabilities:
        row: dict[str, Any] = {"method": method}
        for figure in metric:
            row |= make_interval_columns(figure, found[method, figure])
        rows.append(row)
    return rows
