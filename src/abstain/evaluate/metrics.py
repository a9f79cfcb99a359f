"""Metrics of a confidence, and how sure they are: one vocabulary for every scorer.

`correct` is 0/1, `confidence` in [0, 1], both of shape (rows,). A metric that is not defined for the rows at
hand (an AUROC of one class) is nan, never a made-up figure.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score

Metric = Callable[[np.ndarray, np.ndarray], float]


def auroc(correct: np.ndarray, confidence: np.ndarray) -> float:
    """Area under the ROC curve: the chance that a right answer outscores a wrong one."""
    return float(roc_auc_score(correct, confidence)) if len(np.unique(correct)) == 2 else float("nan")


def auprc(correct: np.ndarray, confidence: np.ndarray) -> float:
    """Average precision; the base rate is its chance level."""
    return float(average_precision_score(correct, confidence)) if correct.any() else float("nan")


def brier(correct: np.ndarray, confidence: np.ndarray) -> float:
    """Mean squared difference between confidence and outcome; lower is better."""
    return float(np.mean((confidence - correct) ** 2))


def reliability(correct: np.ndarray, confidence: np.ndarray, bins: int = 10) -> list[dict[str, float]]:
    """Per equal-width confidence bin that holds rows: mean confidence, accuracy, rows."""
    where = np.minimum((confidence * bins).astype(int), bins - 1)
    return [
        {
            "confidence": float(confidence[where == b].mean()),
            "accuracy": float(correct[where == b].mean()),
            "rows": int((where == b).sum()),
        }
        for b in np.unique(where)
    ]


def ece(correct: np.ndarray, confidence: np.ndarray, bins: int = 10) -> float:
    """Expected calibration error: the rows' mean gap between confidence and accuracy over equal-width bins."""
    table = reliability(correct, confidence, bins)
    return float(sum(b["rows"] * abs(b["confidence"] - b["accuracy"]) for b in table) / len(correct))


def risk_coverage(correct: np.ndarray, confidence: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coverage and selective risk as answers are shown from the most confident on; both (rows,).

    Equally confident answers are shown together, so the curve does not depend on the order of the rows.
    """
    ordered = correct[np.argsort(-confidence, kind="stable")]
    _, tied = np.unique(-confidence, return_counts=True)
    ends = np.cumsum(tied)
    risk = np.cumsum(1 - ordered)[ends - 1] / ends
    return np.arange(1, len(confidence) + 1) / len(confidence), np.repeat(risk, tied)


def aurc(correct: np.ndarray, confidence: np.ndarray) -> float:
    """Area under the risk-coverage curve; lower is better."""
    return float(risk_coverage(correct, confidence)[1].mean())


def bootstrap(
    metric: Metric,
    correct: np.ndarray,
    confidences: dict[str, np.ndarray],
    groups: np.ndarray,
    draws: int,
    seed: int,
) -> dict[str, np.ndarray]:
    """`metric` of every scorer on the same resamples: name -> (draws,), some of them nan.

    Whole groups are drawn with replacement, because answers about one document err together. The draws are
    paired: differences between two scorers may be taken draw by draw.
    """
    generator = np.random.default_rng(seed)
    rows_of = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    values: dict[str, list[float]] = {name: [] for name in confidences}
    for _ in range(draws):
        drawn = generator.integers(len(rows_of), size=len(rows_of))
        rows = np.concatenate([rows_of[i] for i in drawn])
        for name, confidence in confidences.items():
            values[name].append(metric(correct[rows], confidence[rows]))
    return {name: np.array(column) for name, column in values.items()}


def interval(draws: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """The central percentile interval of bootstrap `draws`, nan draws left out."""
    known = draws[~np.isnan(draws)]
    if not len(known):
        return float("nan"), float("nan")
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
