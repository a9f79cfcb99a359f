"""The tables of the report's plots and of DVC's plots, with a row for each point.

`correct`, 0 or 1, `weight`, the sampling weights, and confidences are (rows,); `scores` is (rows, scorers), with nan
where a scorer has no score.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from sklearn.metrics import roc_curve

from abstain.learning.evaluation.records import RankCorrelation
from abstain.learning.evaluation.reviewed_split import ReviewedSplit
from abstain.learning.metrics import weighted_metrics as metrics

BINS = 20
SLICE_BINS = 5
"""Number of bins for the probabilities of a slice, which has fewer answers."""
MAX_SLICES_PER_PLOT = 4
"""Largest number of slices that remain distinguishable in one plot."""


def build_plot_tables(
    reviewed: ReviewedSplit, served: str, compared_scorers: Sequence[str], min_n_eff: int
) -> dict[str, pd.DataFrame]:
    """Build the tables of this module.

    Args:
        reviewed: The evaluated answers.
        served: Name of the served scorer, for the plots of one scorer.
        compared_scorers: Names of the scorers in the plots that compare scorers.
        min_n_eff: Smallest effective sample size of a product in the reliability plot.

    Returns:
        Plot name -> table.
    """
    correct, weight, scores = reviewed.correct, reviewed.weight, reviewed.scores[list(compared_scorers)]
    raw, probability = reviewed.get_raw_scores(served), reviewed.get_probabilities(served)
    return {
        "roc": make_roc_table(correct, scores, weight),
        "risk_coverage": make_risk_coverage_table(correct, scores, weight),
        "reliability": make_reliability_table(correct, raw, probability, weight),
        "reliability_by_product": make_slice_reliability_table(
            reviewed.rows["product"], correct, probability, weight, min_n_eff
        ),
        "confidence": make_confidence_histogram(correct, raw, weight),
    }


def make_roc_table(correct: np.ndarray, scores: pd.DataFrame, weight: np.ndarray) -> pd.DataFrame:
    """Make the table of ROC curves; an answer without a score is the last to be shown."""
    tables = []
    for name in scores:
        false_positive, true_positive, _ = roc_curve(correct, _fill_missing(scores[name]), sample_weight=weight)
        tables.append(
            pd.DataFrame({"scorer": name, "false_positive_rate": false_positive, "true_positive_rate": true_positive})
        )
    return pd.concat(tables, ignore_index=True)


def make_risk_coverage_table(correct: np.ndarray, scores: pd.DataFrame, weight: np.ndarray) -> pd.DataFrame:
    """Make the table of risk-coverage curves; risk is the share of errors among the shown answers."""
    tables = []
    for name in scores:
        coverage, risk = metrics.risk_coverage(correct, scores[name].to_numpy(), weight)
        tables.append(pd.DataFrame({"scorer": name, "coverage": coverage, "risk": risk}))
    return pd.concat(tables, ignore_index=True)


def make_reliability_table(
    correct: np.ndarray, raw: np.ndarray, calibrated: np.ndarray, weight: np.ndarray
) -> pd.DataFrame:
    """Make the table of the reliability diagram before and after calibration, by `kind`."""
    bins = {"raw": raw, "calibrated": calibrated}
    return pd.DataFrame(
        [
            {"kind": kind, **row}
            for kind, probabilities in bins.items()
            for row in metrics.reliability(correct, probabilities, weight)
        ]
    )


def make_slice_reliability_table(
    stratum: pd.Series, correct: np.ndarray, calibrated: np.ndarray, weight: np.ndarray, min_n_eff: int
) -> pd.DataFrame:
    """Make the table of the reliability diagrams of slices, by `kind`, with `SLICE_BINS` bins each.

    Args:
        stratum: (rows,) slice of each row; the `MAX_SLICES_PER_PLOT` largest slices are taken.
        correct: 0 or 1.
        calibrated: Probabilities.
        weight: Sampling weights.
        min_n_eff: Smallest effective sample size of a slice.

    Returns:
        `kind` and the columns of `weighted_metrics.reliability`.
    """
    slices = {str(name): (stratum == name).to_numpy() for name in stratum.value_counts().index}
    large_slices = {
        name: mask for name, mask in slices.items() if metrics.effective_sample_size(weight[mask]) >= min_n_eff
    }
    rows = [
        {"kind": name, **row}
        for name, mask in list(large_slices.items())[:MAX_SLICES_PER_PLOT]
        for row in metrics.reliability(correct[mask], calibrated[mask], weight[mask], SLICE_BINS)
    ]
    return pd.DataFrame(rows, columns=["kind", "confidence", "accuracy", "rows", "share"])


def make_confidence_histogram(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray) -> pd.DataFrame:
    """Make the histogram of confidences; `correct` and `incorrect` are shares of all answers."""
    edges = np.linspace(0, 1, BINS + 1)
    table = pd.DataFrame({"bin_low": edges[:-1], "bin_high": edges[1:]})
    for name, label in (("correct", 1), ("incorrect", 0)):
        has_label = correct == label
        table[name] = np.histogram(confidence[has_label], edges, weights=weight[has_label])[0] / weight.sum()
    return table


def compute_rank_correlations(scores: pd.DataFrame, names: Sequence[str]) -> RankCorrelation:
    """Compute Spearman's rank correlations of scorers, over the answers that all of them score."""
    complete = scores[list(names)].dropna()
    return RankCorrelation(names=list(names), matrix=complete.rank().corr().to_numpy().tolist())


def _fill_missing(scores: pd.Series) -> np.ndarray:
    return np.asarray(scores.fillna(-1.0).to_numpy())
