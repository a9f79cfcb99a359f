"""The tables of the report's plots and of DVC's plots: a row a point."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from sklearn.metrics import roc_curve

from abstain.learning.evaluation.reviewed_split import ReviewedSplit
from abstain.learning.metrics import weighted_metrics as metrics

BINS = 20
SLICE_BINS = 5
"""Bins of a slice's probabilities, which has fewer answers."""
MAX_SLICES_PER_PLOT = 4
"""The most slices that remain distinguishable in one plot."""


def build_plot_tables(
    reviewed: ReviewedSplit, served: str, compared_scorers: Sequence[str], min_rows: int
) -> dict[str, pd.DataFrame]:
    """The tables of this module by name: of the scorer `served`, and of `compared_scorers` where scorers are compared.

    A product's reliability is drawn where its effective sample size is at least `min_rows`.
    """
    correct, weight, scores = reviewed.correct, reviewed.weight, reviewed.scores[list(compared_scorers)]
    raw, probability = reviewed.get_raw_scores(served), reviewed.get_probabilities(served)
    return {
        "roc": roc(correct, scores, weight),
        "risk_coverage": risk_coverage(correct, scores, weight),
        "reliability": reliability(correct, raw, probability, weight),
        "reliability_by_product": reliability_by(reviewed.rows["product"], correct, probability, weight, min_rows),
        "confidence": histogram(correct, raw, weight),
    }


def roc(correct: np.ndarray, scores: pd.DataFrame, weight: np.ndarray) -> pd.DataFrame:
    """`scorer`, `false_positive_rate`, `true_positive_rate`; an answer without a score is the last to be shown."""
    parts = []
    for name in scores:
        false_positive, true_positive, _ = roc_curve(correct, _known(scores[name]), sample_weight=weight)
        parts.append(
            pd.DataFrame({"scorer": name, "false_positive_rate": false_positive, "true_positive_rate": true_positive})
        )
    return pd.concat(parts, ignore_index=True)


def risk_coverage(correct: np.ndarray, scores: pd.DataFrame, weight: np.ndarray) -> pd.DataFrame:
    """`scorer`, `coverage`, `risk`: the share of errors among the shown answers, by rising coverage."""
    parts = []
    for name in scores:
        coverage, risk = metrics.risk_coverage(correct, scores[name].to_numpy(), weight)
        parts.append(pd.DataFrame({"scorer": name, "coverage": coverage, "risk": risk}))
    return pd.concat(parts, ignore_index=True)


def reliability(correct: np.ndarray, raw: np.ndarray, calibrated: np.ndarray, weight: np.ndarray) -> pd.DataFrame:
    """`kind` (raw or calibrated) and the columns of `metrics.reliability`, a row a bin of confidence."""
    bins = {"raw": raw, "calibrated": calibrated}
    return pd.DataFrame(
        [{"kind": kind, **row} for kind, of in bins.items() for row in metrics.reliability(correct, of, weight)]
    )


def reliability_by(
    stratum: pd.Series, correct: np.ndarray, calibrated: np.ndarray, weight: np.ndarray, min_rows: int
) -> pd.DataFrame:
    """`kind`, the slice of `stratum` (rows,), and the columns of `metrics.reliability`, a row each of `SLICE_BINS` bins.

    Of the slices with an effective sample size of at least `min_rows`, the `MAX_SLICES_PER_PLOT` largest.
    """
    slices = {str(name): (stratum == name).to_numpy() for name in stratum.value_counts().index}
    enough = {name: of for name, of in slices.items() if metrics.effective_sample_size(weight[of]) >= min_rows}
    rows = [
        {"kind": name, **row}
        for name, of in list(enough.items())[:MAX_SLICES_PER_PLOT]
        for row in metrics.reliability(correct[of], calibrated[of], weight[of], SLICE_BINS)
    ]
    return pd.DataFrame(rows, columns=["kind", "confidence", "accuracy", "rows", "share"])


def histogram(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray) -> pd.DataFrame:
    """`bin_low`, `bin_high`, and the share of all answers that is `correct` and `incorrect` in it."""
    edges = np.linspace(0, 1, BINS + 1)
    table = pd.DataFrame({"bin_low": edges[:-1], "bin_high": edges[1:]})
    for name, label in (("correct", 1), ("incorrect", 0)):
        of = correct == label
        table[name] = np.histogram(confidence[of], edges, weights=weight[of])[0] / weight.sum()
    return table


def spearman(scores: pd.DataFrame, names: Sequence[str]) -> dict[str, object]:
    """`names` and the `matrix` of their rank correlations, of the answers that all of them score."""
    known = scores[list(names)].dropna()
    return {"names": list(names), "matrix": known.rank().corr().to_numpy().tolist()}


def _known(scores: pd.Series) -> np.ndarray:
    return np.asarray(scores.fillna(-1.0).to_numpy())
