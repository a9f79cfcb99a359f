"""Metrics of a confidence, and how sure they are: one vocabulary for every scorer.

`correct` is 0/1, `confidence` in [0, 1], both of shape (rows,). A metric that is not defined for the rows at
hand (an AUROC of one class) is nan, never a made-up figure.

`weight` (rows,) says how many answers of the whole each row stands for, `row_weights`: where reviewers were given some
kinds of answers more often than others, only weighted figures are those of all answers (Horvitz-Thompson, in Hajek's
ratio form). Without weights every row stands for itself, and equal weights give the same figures to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score

Weight = np.ndarray | None
Metric = Callable[[np.ndarray, np.ndarray, Weight], float]


def row_weights(inclusion_probability: np.ndarray) -> np.ndarray:
    """1 / inclusion probability (rows,), scaled so that the largest is 1; a row drawn in an unknown way is alone.

    A row whose probability is nan stands for itself, like one that was taken with certainty.
    """
    weight = 1 / np.where(np.isnan(inclusion_probability), 1.0, inclusion_probability)
    return np.asarray(weight / weight.max(initial=1.0))


def effective_rows(weight: np.ndarray) -> float:
    """How many equally weighted rows say as much (Kish): (sum w)^2 / sum w^2; 0 of none."""
    if not len(weight):
        return 0.0
    weight = weight / weight.max()  # so that equal weights give whole numbers
    return float(weight.sum() ** 2 / (weight**2).sum())


def mean(values: np.ndarray, weight: Weight = None) -> float:
    """The weighted mean; nan of nothing."""
    return float(np.average(values, weights=weight)) if len(values) else float("nan")


def auroc(correct: np.ndarray, confidence: np.ndarray, weight: Weight = None) -> float:
    """Area under the ROC curve: the chance that a right answer outscores a wrong one."""
    if len(np.unique(correct)) < 2:
        return float("nan")
    return float(roc_auc_score(correct, confidence, sample_weight=weight))


def auprc(correct: np.ndarray, confidence: np.ndarray, weight: Weight = None) -> float:
    """Average precision; the base rate is its chance level."""
    if not correct.any():
        return float("nan")
    return float(average_precision_score(correct, confidence, sample_weight=weight))


def brier(correct: np.ndarray, confidence: np.ndarray, weight: Weight = None) -> float:
    """Mean squared difference between confidence and outcome; lower is better."""
    return float(np.average((confidence - correct) ** 2, weights=weight))


def reliability(
    correct: np.ndarray, confidence: np.ndarray, weight: Weight = None, bins: int = 10
) -> list[dict[str, float]]:
    """Per equal-width confidence bin that holds rows: mean confidence, accuracy, rows."""
    where = _bins(confidence, bins)
    return [
        {
            "confidence": mean(confidence[where == b], _part(weight, where == b)),
            "accuracy": mean(correct[where == b], _part(weight, where == b)),
            "rows": int((where == b).sum()),
        }
        for b in np.unique(where)
    ]


def ece(correct: np.ndarray, confidence: np.ndarray, weight: Weight = None, bins: int = 10) -> float:
    """Expected calibration error: the rows' mean gap between confidence and accuracy over equal-width bins."""
    where = _bins(confidence, bins)
    counted = np.ones(len(correct)) if weight is None else weight
    held = [counted[where == b].sum() for b in np.unique(where)]
    table = reliability(correct, confidence, weight, bins)
    gaps = (w * abs(b["confidence"] - b["accuracy"]) for b, w in zip(table, held, strict=True))
    return float(sum(gaps) / counted.sum())


def risk_coverage(correct: np.ndarray, confidence: np.ndarray, weight: Weight = None) -> tuple[np.ndarray, np.ndarray]:
    """Coverage and selective risk as answers are shown from the most confident on; both (rows,).

    Equally confident answers are shown together, so the curve does not depend on the order of the rows.
    """
    order = np.argsort(-confidence, kind="stable")
    ordered = np.ones(len(correct)) if weight is None else weight[order]
    shown, wrong = np.cumsum(ordered), np.cumsum(ordered * (1 - correct[order]))
    _, tied = np.unique(-confidence, return_counts=True)
    ends = np.cumsum(tied) - 1
    return shown / shown[-1:], np.repeat(wrong[ends] / shown[ends], tied)


def aurc(correct: np.ndarray, confidence: np.ndarray, weight: Weight = None) -> float:
    """Area under the risk-coverage curve; lower is better."""
    risk = risk_coverage(correct, confidence, weight)[1]
    return mean(risk, _part(weight, np.argsort(-confidence, kind="stable")))


def bootstrap(
    metric: Metric,
    correct: np.ndarray,
    confidences: dict[str, np.ndarray],
    groups: np.ndarray,
    draws: int,
    seed: int,
    weight: Weight = None,
) -> dict[str, np.ndarray]:
    """`metric` of every scorer on the same resamples: name -> (draws,), some of them nan.

    Whole groups are drawn with replacement, because answers about one document err together; a row keeps its weight.
    The draws are paired: differences between two scorers may be taken draw by draw.
    """
    generator = np.random.default_rng(seed)
    rows_of = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    values: dict[str, list[float]] = {name: [] for name in confidences}
    for _ in range(draws):
        drawn = generator.integers(len(rows_of), size=len(rows_of))
        rows = np.concatenate([rows_of[i] for i in drawn])
        own = _part(weight, rows)
        for name, confidence in confidences.items():
            values[name].append(metric(correct[rows], confidence[rows], own))
    return {name: np.array(column) for name, column in values.items()}


def interval(draws: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """The central percentile interval of bootstrap `draws`, nan draws left out."""
    known = draws[~np.isnan(draws)]
    if not len(known):
        return float("nan"), float("nan")
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _part(weight: Weight, rows: np.ndarray) -> Weight:
    return None if weight is None else weight[rows]


def _bins(confidence: np.ndarray, bins: int) -> np.ndarray:
    return np.asarray(np.minimum((confidence * bins).astype(int), bins - 1))
