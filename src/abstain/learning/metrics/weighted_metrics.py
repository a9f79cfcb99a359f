"""Weighted metrics of a confidence, the same for every scorer.

`correct` is 0 or 1, and `confidence` is higher if an answer is more likely correct. Both are (rows,).

Notes:

* `weight` is either (rows,), the number of answers that each row represents, and the metric is a float; or it is
  (n_resamples, rows), and the metric is (n_resamples,), computed for all resamples at once: a bootstrap resample is the
  number of times each row was drawn, which is a weight (`bootstrap`). If some kinds of answers were reviewed more often
  than others, only weighted metrics estimate those of all answers (`row_weights`; the Horvitz-Thompson estimator in
  Hajek's ratio form). Without weights every row counts once.
* Undefined metrics (an AUROC of one class, a precision of no answers) are nan.
* A nan confidence means that the scorer has no score. The answer is withheld, so it ranks below all others, and its
  probability of being correct counts as 0. If no answer has a confidence, every metric is nan.

`auroc`, `auprc`, `aurc` and the `error_recall` family depend only on the order, so any scale will do; `brier`, `ece`
and `reliability` need a probability and raise `ValueError` for other values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol

import numpy as np

Weight = np.ndarray | None


class Metric(Protocol):
    """A weighted metric: a float for `weight` (rows,) or None, (n_resamples,) for `weight` (n_resamples, rows)."""

    def __call__(self, correct: np.ndarray, confidence: np.ndarray, weight: Weight = None, **options: float) -> Any: ...


def _metric(compute: Callable[..., np.ndarray]) -> Metric:
    """Extend a function of weights (n_resamples, rows) and finite confidences to a `Metric`."""

    @wraps(compute)
    def metric(correct: np.ndarray, confidence: np.ndarray, weight: Weight = None, **options: float) -> Any:
        correct, confidence = np.asarray(correct), np.asarray(confidence, dtype=float)
        weights = np.ones(len(confidence)) if weight is None else np.asarray(weight, dtype=float)
        _validate_rows(correct, confidence, weights)
        if np.isnan(confidence).all():  # also without rows
            values = np.full(len(np.atleast_2d(weights)), np.nan)
        else:
            values = compute(correct, confidence, np.atleast_2d(weights), **options)
        return float(values[0]) if weights.ndim == 1 else values

    signature = inspect.signature(compute)
    parameters = dict(signature.parameters)
    parameters["weight"] = parameters["weight"].replace(default=None, annotation="Weight")
    metric.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=list(parameters.values()), return_annotation="float | np.ndarray"
    )
    return metric


def row_weights(inclusion_probability: np.ndarray) -> np.ndarray:
    """Turn inclusion probabilities into sampling weights.

    Args:
        inclusion_probability: (rows,) in (0, 1]; nan where it is unknown. Such a row represents only itself, like a row
            that was included with certainty.

    Returns:
        (rows,) weights 1 / probability, scaled so that the largest is 1.
    """
    weight = 1 / np.where(np.isnan(inclusion_probability), 1.0, inclusion_probability)
    return np.asarray(weight / weight.max(initial=1.0))


def effective_sample_size(weight: np.ndarray) -> float:
    """Compute Kish's effective sample size, n_eff = (sum w)^2 / sum w^2.

    Args:
        weight: (rows,) sampling weights > 0.

    Returns:
        A float in [1, rows]; 0 without rows.
    """
    if not len(weight):
        return 0.0
    weight = weight / weight.max()  # so that equal weights give whole numbers
    return float(weight.sum() ** 2 / (weight**2).sum())


def weighted_mean(values: np.ndarray, weight: Weight = None) -> Any:
    """Compute the weighted mean, sum w x / sum w.

    Args:
        values: (rows,).
        weight: (rows,) or (n_resamples, rows); None means equal weights.

    Returns:
        A float, or (n_resamples,); nan if the weights sum to 0.
    """
    weights = np.ones(len(values)) if weight is None else weight
    means = _divide(_weighted_sum(np.atleast_2d(weights), values), np.atleast_2d(weights).sum(axis=1))
    return float(means[0]) if weights.ndim == 1 else means


@_metric
def auroc(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Compute the area under the ROC curve: P(correct outscores incorrect) + P(tie) / 2.

    Args:
        correct: (rows,) 0 or 1.
        confidence: (rows,) on any scale; nan ranks below all others.
        weight: (rows,) or (n_resamples, rows); None means equal weights.

    Returns:
        A float in [0, 1], or (n_resamples,); nan if one class is missing.

    Examples:
        >>> auroc(np.array([0, 0, 1, 1]), np.array([0.1, 0.4, 0.35, 0.8]))
        0.75
    """
    tp, fp = _cumulative_counts(correct, confidence, weight)
    # Each added incorrect answer is outscored by the correct ones above it, and ties with those added with it (half).
    area = np.diff(tp, axis=1, prepend=0)
    np.subtract(tp, area / 2, out=area)
    area *= np.diff(fp, axis=1, prepend=0)
    return _divide(area.sum(axis=1), tp[:, -1] * fp[:, -1])


@_metric
def auprc(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Compute the average precision, sum_n (R_n - R_{n-1}) P_n over the distinct confidences.

    Its chance level is the base rate.

    Args:
        correct: (rows,) 0 or 1.
        confidence: (rows,) on any scale; nan ranks below all others.
        weight: (rows,) or (n_resamples, rows); None means equal weights.

    Returns:
        A float in [0, 1], or (n_resamples,); nan if no answer is correct.
    """
    tp, fp = _cumulative_counts(correct, confidence, weight)
    precision = _divide(tp, tp + fp, undefined=0.0)
    return _divide((np.diff(tp, axis=1, prepend=0) * precision).sum(axis=1), tp[:, -1])


@_metric
def aurc(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Compute the area under the risk-coverage curve, sum_n (C_n - C_{n-1}) r_n; lower is better.

    It is the mean of the risk r over all coverages C (Geifman, Uziel and El-Yaniv 2019).

    Args:
        correct: (rows,) 0 or 1.
        confidence: (rows,) on any scale; nan ranks below all others.
        weight: (rows,) or (n_resamples, rows); None means equal weights.

    Returns:
        A float in [0, 1], or (n_resamples,).
    """
    tp, fp = _cumulative_counts(correct, confidence, weight)
    shown = tp + fp
    risk = _divide(fp, shown, undefined=0.0)
    return _divide((np.diff(shown, axis=1, prepend=0) * risk).sum(axis=1), shown[:, -1])


@_metric
def error_recall(
    correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, *, max_withheld_share: float = 0.15
) -> np.ndarray:
    """Compute the share of all errors that is caught by withholding the least confident answers.

    Args:
        correct: (rows,) 0 or 1.
        confidence: (rows,) on any scale; nan ranks below all others.
        weight: (rows,) or (n_resamples, rows); None means equal weights.
        max_withheld_share: Largest share of answers to withhold, in [0, 1). The actual share is `withheld_share`.

    Returns:
        A float in [0, 1], or (n_resamples,); nan if no answer is withheld.
    """
    errors, withheld = _compute_withheld_shares(correct, confidence, weight, max_withheld_share)
    return np.where(withheld > 0, errors, np.nan)


@_metric
def withheld_share(
    correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, *, max_withheld_share: float = 0.15
) -> np.ndarray:
    """Compute the share of answers that is withheld if at most `max_withheld_share` may be, the least confident first.

    Equally confident answers are withheld together or not at all, so the result may be much smaller, or 0.

    Args:
        correct: (rows,) 0 or 1.
        confidence: (rows,) on any scale; nan ranks below all others.
        weight: (rows,) or (n_resamples, rows); None means equal weights.
        max_withheld_share: Largest share of answers to withhold, in [0, 1).

    Returns:
        A float in [0, `max_withheld_share`], or (n_resamples,).
    """
    _, withheld = _compute_withheld_shares(correct, confidence, weight, max_withheld_share)
    return withheld


@_metric
def error_recall_over_random(
    correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, *, max_withheld_share: float = 0.15
) -> np.ndarray:
    """Compute `error_recall` / `withheld_share`: the gain over withholding as many answers at random.

    Args:
        correct: (rows,) 0 or 1.
        confidence: (rows,) on any scale; nan ranks below all others.
        weight: (rows,) or (n_resamples, rows); None means equal weights.
        max_withheld_share: Largest share of answers to withhold, in [0, 1).

    Returns:
        A float >= 0, 1 for a random order, or (n_resamples,); nan if no answer is withheld.
    """
    errors, withheld = _compute_withheld_shares(correct, confidence, weight, max_withheld_share)
    return _divide(errors, withheld)


@_metric
def error_recall_vs_best(
    correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, *, max_withheld_share: float = 0.15
) -> np.ndarray:
    """Compute `error_recall` as a share of its largest possible value.

    With an error rate e and a withheld share s the largest value is min(1, s / e): with 40 % errors, 15 % withheld
    answers catch at most 37.5 % of them.

    Args:
        correct: (rows,) 0 or 1.
        confidence: (rows,) on any scale; nan ranks below all others.
        weight: (rows,) or (n_resamples, rows); None means equal weights.
        max_withheld_share: Largest share of answers to withhold, in [0, 1).

    Returns:
        A float in [0, 1], or (n_resamples,); nan if no answer is withheld.
    """
    errors, withheld = _compute_withheld_shares(correct, confidence, weight, max_withheld_share)
    error_rate = _divide(_weighted_sum(weight, 1 - correct), weight.sum(axis=1))
    return _divide(errors, np.minimum(1.0, _divide(withheld, error_rate)))


@_metric
def brier(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Compute the Brier score, the mean of (p - y)^2; lower is better.

    Args:
        correct: (rows,) y, 0 or 1.
        confidence: (rows,) p, probabilities in [0, 1]; nan counts as 0.
        weight: (rows,) or (n_resamples, rows); None means equal weights.

    Returns:
        A float in [0, 1], or (n_resamples,).

    Raises:
        ValueError: A confidence is outside of [0, 1].
    """
    return _divide(_weighted_sum(weight, (_validate_probability(confidence) - correct) ** 2), weight.sum(axis=1))


@_metric
def ece(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, *, n_bins: int = 10) -> np.ndarray:
    """Compute the expected calibration error, sum_b (W_b / W) |accuracy_b - mean probability_b|; lower is better.

    The bins have equal widths.

    Args:
        correct: (rows,) 0 or 1.
        confidence: (rows,) probabilities in [0, 1]; nan counts as 0.
        weight: (rows,) or (n_resamples, rows); None means equal weights.
        n_bins: Number of bins.

    Returns:
        A float in [0, 1], or (n_resamples,).

    Raises:
        ValueError: A confidence is outside of [0, 1].
    """
    probability = _validate_probability(confidence)
    bin_index = _assign_bins(probability, n_bins)
    gap, total = probability - correct, np.zeros(len(weight))
    for b in np.unique(bin_index):
        total += abs(_weighted_sum(np.compress(bin_index == b, weight, axis=1), gap[bin_index == b]))
    return _divide(total, weight.sum(axis=1))


@_metric
def accuracy(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, *, threshold: float = 0.5) -> np.ndarray:
    """Compute the share of answers that are correct and shown, or incorrect and withheld.

    Args:
        correct: (rows,) 0 or 1.
        confidence: (rows,); nan is withheld.
        weight: (rows,) or (n_resamples, rows); None means equal weights.
        threshold: Answers with confidence >= `threshold` are shown.

    Returns:
        A float in [0, 1], or (n_resamples,).
    """
    return _divide(_weighted_sum(weight, (confidence >= threshold) == (correct == 1)), weight.sum(axis=1))


@_metric
def f1(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, *, threshold: float = 0.5) -> np.ndarray:
    """Compute F1, the harmonic mean of precision and recall: 2 P R / (P + R).

    Args:
        correct: (rows,) 0 or 1.
        confidence: (rows,); nan is withheld.
        weight: (rows,) or (n_resamples, rows); None means equal weights.
        threshold: Answers with confidence >= `threshold` are shown.

    Returns:
        A float in [0, 1], or (n_resamples,); nan if no answer is shown and none is correct.
    """
    shown = confidence >= threshold
    return _divide(
        2 * _weighted_sum(weight, shown & (correct == 1)), _weighted_sum(weight, shown) + _weighted_sum(weight, correct)
    )


@_metric
def precision(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, *, threshold: float = 0.5) -> np.ndarray:
    """Compute the share of the shown answers that is correct.

    Args:
        correct: (rows,) 0 or 1.
        confidence: (rows,); nan is withheld.
        weight: (rows,) or (n_resamples, rows); None means equal weights.
        threshold: Answers with confidence >= `threshold` are shown.

    Returns:
        A float in [0, 1], or (n_resamples,); nan if no answer is shown.
    """
    shown = confidence >= threshold
    return _divide(_weighted_sum(weight, shown & (correct == 1)), _weighted_sum(weight, shown))


@_metric
def recall(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, *, threshold: float = 0.5) -> np.ndarray:
    """Compute the share of the correct answers that is shown.

    Args:
        correct: (rows,) 0 or 1.
        confidence: (rows,); nan is withheld.
        weight: (rows,) or (n_resamples, rows); None means equal weights.
        threshold: Answers with confidence >= `threshold` are shown.

    Returns:
        A float in [0, 1], or (n_resamples,); nan if no answer is correct.
    """
    return _divide(_weighted_sum(weight, (confidence >= threshold) & (correct == 1)), _weighted_sum(weight, correct))


@_metric
def coverage(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, *, threshold: float = 0.5) -> np.ndarray:
    """Compute the share of all answers that is shown.

    Args:
        correct: (rows,) 0 or 1; not used.
        confidence: (rows,); nan is withheld.
        weight: (rows,) or (n_resamples, rows); None means equal weights.
        threshold: Answers with confidence >= `threshold` are shown.

    Returns:
        A float in [0, 1], or (n_resamples,).
    """
    return _divide(_weighted_sum(weight, confidence >= threshold), weight.sum(axis=1))


def reliability(
    correct: np.ndarray, confidence: np.ndarray, weight: Weight = None, n_bins: int = 10
) -> list[dict[str, float]]:
    """Compute a reliability diagram: accuracy against mean probability in equal-width bins.

    Args:
        correct: (rows,) 0 or 1.
        confidence: (rows,) probabilities in [0, 1]; nan counts as 0.
        weight: (rows,) sampling weights; None means equal weights.
        n_bins: Number of bins.

    Returns:
        A dictionary for each bin with rows: `confidence` (mean probability), `accuracy` and `share` of all answers, all
        weighted, and `rows`, not weighted.

    Raises:
        ValueError: A confidence is outside of [0, 1].
    """
    probability = _validate_probability(np.asarray(confidence, dtype=float))
    bin_index = _assign_bins(probability, n_bins)
    weight = np.ones(len(bin_index)) if weight is None else weight
    return [
        {
            "confidence": weighted_mean(probability[bin_index == b], weight[bin_index == b]),
            "accuracy": weighted_mean(correct[bin_index == b], weight[bin_index == b]),
            "rows": int((bin_index == b).sum()),
            "share": weighted_mean(bin_index == b, weight),
        }
        for b in np.unique(bin_index)
    ]


def risk_coverage(correct: np.ndarray, confidence: np.ndarray, weight: Weight = None) -> tuple[np.ndarray, np.ndarray]:
    """Compute coverage and selective risk as answers are shown from the most confident on.

    Equally confident answers are shown together, so the curve does not depend on the order of the rows.

    Args:
        correct: (rows,) 0 or 1.
        confidence: (rows,) on any scale; nan ranks below all others.
        weight: (rows,) sampling weights; None means equal weights.

    Returns:
        Coverage, rising, and risk, the share of errors among the shown answers; both (rows,).
    """
    confidence = np.asarray(confidence, dtype=float)
    order, ends = _rank_rows(confidence)
    ordered_weight = np.ones(len(order)) if weight is None else weight[order]
    shown, errors = np.cumsum(ordered_weight), np.cumsum(ordered_weight * (1 - correct[order]))
    return shown / shown[-1:], np.repeat(errors[ends] / shown[ends], np.diff(ends, prepend=-1))


def _cumulative_counts(
    correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Count true and false positives if answers of at least each distinct confidence are shown, highest first.

    Both are (n_resamples, distinct confidences). Each is summed separately: a difference of sums could turn 0 incorrect
    answers into 1e-16, and an undefined metric into a defined one.
    """
    order, ends = _rank_rows(confidence)
    ordered_weight = np.take(weight, order, axis=1)
    sums = (np.cumsum(ordered_weight * indicator, axis=1) for indicator in (correct[order], 1 - correct[order]))
    tp, fp = (total if len(ends) == len(order) else total[:, ends] for total in sums)
    return tp, fp


def _rank_rows(confidence: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Order rows from the most confident to nan, and find the last index of each run of equal confidences."""
    order = np.argsort(-confidence, kind="stable")
    above, below = confidence[order[:-1]], confidence[order[1:]]
    differ = (above != below) & ~(np.isnan(above) & np.isnan(below))
    return order, np.append(np.flatnonzero(differ), np.arange(len(order))[-1:])


def _compute_withheld_shares(
    correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, max_withheld_share: float
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the withheld shares of the errors and of the answers; both (n_resamples,)."""
    tp, fp = _cumulative_counts(correct, confidence, weight)
    shown = tp + fp
    withheld = shown[:, -1:] - shown
    # A share that fits exactly must not fail by the rounding of sums.
    cut_index = (withheld > max_withheld_share * shown[:, -1:] * (1 + 1e-9)).sum(axis=1, keepdims=True)
    errors = fp[:, -1] - np.take_along_axis(fp, cut_index, axis=1)[:, 0]
    return _divide(errors, fp[:, -1]), _divide(np.take_along_axis(withheld, cut_index, axis=1)[:, 0], shown[:, -1])


def _weighted_sum(weight: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Sum `values` (rows,) under every resample. Not with `@`: its last bits may differ with the number of threads."""
    return np.asarray((weight * values).sum(axis=1))


def _divide(numerator: np.ndarray, denominator: np.ndarray, undefined: float = np.nan) -> np.ndarray:
    """Compute `numerator / denominator`, and `undefined` where the denominator is 0."""
    quotient = np.full(np.shape(denominator), undefined)
    np.divide(numerator, denominator, out=quotient, where=denominator > 0)
    return quotient


def _validate_rows(correct: np.ndarray, confidence: np.ndarray, weights: np.ndarray) -> None:
    if confidence.ndim != 1 or correct.shape != confidence.shape or weights.shape[-1:] != confidence.shape:
        raise ValueError(
            f"correct {correct.shape}, confidence {confidence.shape} and weight {weights.shape} differ in length"
        )
    if not ((correct == 0) | (correct == 1)).all():
        raise ValueError("a label is neither 0 nor 1")


def _validate_probability(confidence: np.ndarray) -> np.ndarray:
    finite = confidence[~np.isnan(confidence)]
    if len(finite) and (finite.min() < -1e-6 or finite.max() > 1 + 1e-6):
        limits = f"{finite.min():g} to {finite.max():g}"
        raise ValueError(f"confidences from {limits} are not probabilities in [0, 1]: calibrate them first")
    return np.clip(np.where(np.isnan(confidence), 0.0, confidence), 0, 1)


def _assign_bins(probability: np.ndarray, n_bins: int) -> np.ndarray:
    return np.asarray(np.minimum((probability * n_bins).astype(int), n_bins - 1))
