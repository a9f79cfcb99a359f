"""The leaderboard: every scorer of the same answers, by the same metrics, with paired intervals by group.

Two baselines stand in it from the first version on, because a probe that cannot beat them knows nothing:
`base_rate`, the training set's share of right answers for every row, and `length_only`, a logistic regression
on the answer's length, which alone can look like confidence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from abstain.decide.threshold import operating_point
from abstain.evaluate import metrics

METRICS: dict[str, metrics.Metric] = {
    "auroc": metrics.auroc,
    "auprc": metrics.auprc,
    "brier": metrics.brier,
    "ece": metrics.ece,
    "aurc": metrics.aurc,
}


@dataclass(frozen=True)
class Baselines:
    """The two baselines, fitted on the training split."""

    base_rate: float
    length_model: LogisticRegression

    def scores(self, answer_tokens: np.ndarray) -> dict[str, np.ndarray]:
        """Confidences by name, each (rows,), for answers of `answer_tokens` tokens."""
        return {
            "length_only": self.length_model.predict_proba(_length_features(answer_tokens))[:, 1],
            "base_rate": np.full(len(answer_tokens), self.base_rate),
        }


def fit_baselines(answer_tokens: np.ndarray, correct: np.ndarray, weight: np.ndarray) -> Baselines:
    """Fit on the training split: token counts (rows,), 0/1 labels (rows,) and weights (rows,)."""
    model = make_pipeline(StandardScaler(), LogisticRegression())
    model.fit(_length_features(answer_tokens), correct, logisticregression__sample_weight=weight)
    return Baselines(float(np.average(correct, weights=weight)), model)


def leaderboard(
    correct: np.ndarray,
    confidences: dict[str, np.ndarray],
    groups: np.ndarray,
    draws: int,
    seed: int,
    weight: metrics.Weight = None,
) -> pd.DataFrame:
    """One row a scorer: each metric of `METRICS`, and the AUROC's 95 % interval by group bootstrap, all weighted."""
    sampled = metrics.bootstrap(metrics.auroc, correct, confidences, groups, draws, seed, weight)
    rows = []
    for name, confidence in confidences.items():
        low, high = metrics.interval(sampled[name])
        values = {metric: function(correct, confidence, weight) for metric, function in METRICS.items()}
        rows.append({"scorer": name, **values, "auroc_low": low, "auroc_high": high})
    return pd.DataFrame(rows)


def reviewed(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows that an expert judged: thumbs say useful, not correct, and are no test."""
    return frame[frame["source"] == "sme"]


def threshold_table(
    correct: np.ndarray, confidence: np.ndarray, tuned: float, weight: metrics.Weight = None
) -> pd.DataFrame:
    """Precision, recall and mask rate, weighted, at 0.0, 0.1 ... 0.9 and at the tuned threshold (paper, table 2)."""
    thresholds = sorted({*(step / 10 for step in range(10)), tuned})
    points = [operating_point(confidence, correct, t, weight) for t in thresholds]
    return pd.DataFrame(
        {
            "threshold": [p.threshold for p in points],
            "precision": [p.precision for p in points],
            "recall": [p.recall for p in points],
            "display_rate": [p.display_rate for p in points],
            "mask_rate": [1 - p.display_rate for p in points],
            "tuned": [p.threshold == tuned for p in points],
        }
    )


def _length_features(answer_tokens: np.ndarray) -> np.ndarray:
    return np.column_stack([answer_tokens, np.log1p(answer_tokens)])
