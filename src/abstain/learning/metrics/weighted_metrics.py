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
        confidence = np.asarray(confidence, dtype=float)
        weights = np.ones(len(confidence)) if weight is None else weight
        if np.isnan(confidence).all():  # also without rows
            values = np.full(len(np.atleast_2d(weights)), np.nan)
        else:
            values = compute(np.asarray(correct), confidence, np.atleast_2d(weights), **options)
        return float(values[0]) if weights.ndim == 1 else values

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
    """
    tp, fp = _cumulative_counts(correct, confidence, weight)
    # Trapezes: between two confidences, the added incorrect answers times the correct ones above, and half
    # of the correct ones that are added.
    above = np.diff(tp, axis=1, prepend=0)
    np.subtract(tp, above / 2, out=above)
    above *= np.diff(fp, axis=1, prepend=0)
    return _divide(above.sum(axis=1), tp[:, -1] * fp[:, -1])


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
    precision = _divide(tp, tp + fp, otherwise=0.0)
    return _divide((np.diff(tp, axis=1, prepend=0) * precision).sum(axis=1), tp[:, -1])


@_metric
def aurc(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Compute the area under the risk-coverage curve, the mean of the risk over all coverages; lower is better.

    Args:
        correct: (rows,) 0 or 1.
        confidence: (rows,) on any scale; nan ranks below all others.
        weight: (rows,) or (n_resamples, rows); None means equal weights.

    Returns:
        A float in [0, 1], or (n_resamples,).
    """
    tp, fp = _cumulative_counts(correct, confidence, weight)
    shown = tp + fp
    risk = _divide(fp, shown, otherwise=0.0)
    return _divide((np.diff(shown, axis=1, prepend=0) * risk).sum(axis=1), shown[:, -1])


@_metric
def error_recall(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, share: float = 0.15) -> np.ndarray:
    """Compute the share of all errors that is caught by withholding the least confident answers.

    Args:
        correct: (rows,) 0 or 1.
        confidence: (rows,) on any scale; nan ranks below all others.
        weight: (rows,) or (n_resamples, rows); None means equal weights.
        share: Largest share of answers to withhold, in [0, 1). The actual share is `abstained_share`.

    Returns:
        A float in [0, 1], or (n_resamples,); nan if no answer is withheld.
    """
    errors, withheld = _withheld_shares(correct, confidence, weight, share)
    return np.where(withheld > 0, errors, np.nan)


@_metric
def abstained_share(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, share: float = 0.15) -> np.ndarray:
    """Compute the share of answers that is withheld if at most `share` may be, the least confident first.

    Equally confident answers are withheld together or not at all, so the result may be much less than `share`, or 0.

    Args:
        correct: (rows,) 0 or 1.
        confidence: (rows,) on any scale; nan ranks below all others.
        weight: (rows,) or (n_resamples, rows); None means equal weights.
        share: Largest share of answers to withhold, in [0, 1).

    Returns:
        A float in [0, `share`], or (n_resamples,).
    """
    _, withheld = _withheld_shares(correct, confidence, weight, share)
    return withheld


@_metric
def error_recall_over_random(
    correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, share: float = 0.15
) -> np.ndarray:
    """Compute `error_recall` / `abstained_share`: the gain over withholding as many answers at random.

    Args:
        correct: (rows,) 0 or 1.
        confidence: (rows,) on any scale; nan ranks below all others.
        weight: (rows,) or (n_resamples, rows); None means equal weights.
        share: Largest share of answers to withhold, in [0, 1).

    Returns:
        A float >= 0, 1 for a random order, or (n_resamples,); nan if no answer is withheld.
    """
    errors, withheld = _withheld_shares(correct, confidence, weight, share)
    return _divide(errors, withheld)


@_metric
def error_recall_vs_best(
    correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, share: float = 0.15
) -> np.ndarray:
    """Compute `error_recall` as a share of its largest possible value.

    With an error rate e and a withheld share s the largest value is min(1, s / e): with 40 % errors, 15 % withheld
    answers catch at most 37.5 % of them.

    Args:
        correct: (rows,) 0 or 1.
        confidence: (rows,) on any scale; nan ranks below all others.
        weight: (rows,) or (n_resamples, rows); None means equal weights.
        share: Largest share of answers to withhold, in [0, 1).

    Returns:
        A float in [0, 1], or (n_resamples,); nan if no answer is withheld.
    """
    errors, withheld = _withheld_shares(correct, confidence, weight, share)
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
def ece(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, bins: int = 10) -> np.ndarray:
    """Compute the expected calibration error, sum_b (W_b / W) |accuracy_b - mean probability_b|, over equal-width bins.

    Args:
        correct: (rows,) 0 or 1.
        confidence: (rows,) probabilities in [0, 1]; nan counts as 0.
        weight: (rows,) or (n_resamples, rows); None means equal weights.
        bins: Number of bins.

    Returns:
        A float in [0, 1], or (n_resamples,).

    Raises:
        ValueError: A confidence is outside of [0, 1].
    """
    probability = _validate_probability(confidence)
    bin_index = _assign_bins(probability, bins)
    gap, total = probability - correct, np.zeros(len(weight))
    for b in np.unique(bin_index):
        total += abs(_weighted_sum(np.compress(bin_index == b, weight, axis=1), gap[bin_index == b]))
    return _divide(total, weight.sum(axis=1))


@_metric
def accuracy(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, threshold: float = 0.5) -> np.ndarray:
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
def f1(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, threshold: float = 0.5) -> np.ndarray:
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
def precision(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, threshold: float = 0.5) -> np.ndarray:
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
def recall(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, threshold: float = 0.5) -> np.ndarray:
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
def coverage(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, threshold: float = 0.5) -> np.ndarray:
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
    correct: np.ndarray, confidence: np.ndarray, weight: Weight = None, bins: int = 10
) -> list[dict[str, float]]:
    """Compute a reliability diagram: accuracy against mean probability in equal-width bins.

    Args:
        correct: (rows,) 0 or 1.
        confidence: (rows,) probabilities in [0, 1]; nan counts as 0.
        weight: (rows,) sampling weights; None means equal weights.
        bins: Number of bins.

    Returns:
        A dictionary for each bin with rows: `confidence` (mean probability), `accuracy` and `share` of all answers, all
        weighted, and `rows`, not weighted.

    Raises:
        ValueError: A confidence is outside of [0, 1].
    """
    probability = _validate_probability(np.asarray(confidence, dtype=float))
    bin_index = _assign_bins(probability, bins)
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
    order, ends = _ranking(confidence)
    ordered = np.ones(len(order)) if weight is None else weight[order]
    shown, errors = np.cumsum(ordered), np.cumsum(ordered * (1 - correct[order]))
    return shown / shown[-1:], np.repeat(errors[ends] / shown[ends], np.diff(ends, prepend=-1))


def _cumulative_counts(
    correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Count true and false positives if answers of at least each distinct confidence are shown, highest first.

    Both are (n_resamples, distinct confidences). Each is summed separately: a difference of sums could turn 0 incorrect
    answers into 1e-16, and an undefined metric into a defined one.
    """
    order, ends = _ranking(confidence)
    ordered = np.take(weight, order, axis=1)
    sums = (np.cumsum(ordered * indicator, axis=1) for indicator in (correct[order], 1 - correct[order]))
    tp, fp = (total if len(ends) == len(order) else total[:, ends] for total in sums)
    return tp, fp


def _ranking(confidence: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Order rows from the most confident to nan, and find the last index of each run of equal confidences."""
    order = np.argsort(-confidence, kind="stable")
    above, below = confidence[order[:-1]], confidence[order[1:]]
    differ = (above != below) & ~(np.isnan(above) & np.isnan(below))
    return order, np.append(np.flatnonzero(differ), np.arange(len(order))[-1:])


def _withheld_shares(
    correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, share: float
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the shares of errors and of answers that are withheld if at most `share` may be; both (n_resamples,)."""
    tp, fp = _cumulative_counts(correct, confidence, weight)
    shown = tp + fp
    below = shown[:, -1:] - shown
    # A share that fits exactly must not fail by the rounding of sums.
    cut = (below > share * shown[:, -1:] * (1 + 1e-9)).sum(axis=1, keepdims=True)
    errors = fp[:, -1] - np.take_along_axis(fp, cut, axis=1)[:, 0]
    return _divide(errors, fp[:, -1]), _divide(np.take_along_axis(below, cut, axis=1)[:, 0], shown[:, -1])


def _weighted_sum(weight: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Sum `values` (rows,) under every resample. Not with `@`: its last bits may differ with the number of threads."""
    return np.asarray((weight * values).sum(axis=1))


def _divide(part: np.ndarray, whole: np.ndarray, otherwise: float = np.nan) -> np.ndarray:
    """Compute `part / whole`, and `otherwise` where the whole is 0."""
    quotient = np.full(np.shape(whole), otherwise)
    np.divide(part, whole, out=quotient, where=whole > 0)
    return quotient


def _validate_probability(confidence: np.ndarray) -> np.ndarray:
    finite = confidence[~np.isnan(confidence)]
    if len(finite) and (finite.min() < -1e-6 or finite.max() > 1 + 1e-6):
        raise ValueError(
            f"{finite.min():g} to {finite.max():g} is no range of probabilities: calibrate the scores first"
        )
    return np.clip(np.where(np.isnan(confidence), 0.0, confidence), 0, 1)


def _assign_bins(probability: np.ndarray, bins: int) -> np.ndarray:
    return np.asarray(np.minimum((probability * bins).astype(int), bins - 1))
