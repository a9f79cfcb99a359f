"""Weighted metrics of a confidence, the same for every scorer.

`correct` is 0/1 and `confidence` higher where an answer is more likely correct, both (rows,).

Notes:

* `weight` is (rows,), how many answers of the whole each row stands for, and a metric then is a float; or it is
  (draws, rows), and a metric is (draws,), all draws computed at once: a bootstrap draw is the number of times each
  row was drawn, which is a weight (`bootstrap`). Where some kinds of answers were reviewed more often than others, only
  weighted figures estimate those of all answers (`row_weights`; Horvitz-Thompson, in Hajek's ratio form). Without
  weights, as with equal ones, every row stands for itself.
* Undefined figures (an AUROC of one class, a precision of no answers) are nan.
* A nan confidence means that the scorer has no score: the answer is withheld, so it ranks below all others, and its
  probability of being correct counts as 0. Where no answer has a confidence, every figure is nan.

`auroc`, `auprc`, `aurc` and the `error_recall` family depend on the order alone, so any scale will do; `brier`, `ece`
and `reliability` need a probability and raise `ValueError` for anything else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol

import numpy as np

Weight = np.ndarray | None


class Metric(Protocol):
    """A float with a `weight` of (rows,) or none, (draws,) with one of (draws, rows)."""

    def __call__(self, correct: np.ndarray, confidence: np.ndarray, weight: Weight = None, **options: float) -> Any: ...


def _metric(figure: Callable[..., np.ndarray]) -> Metric:
    """`figure`, written for weights (draws, rows) and rows that have a confidence, as the metric of all of them."""

    @wraps(figure)
    def metric(correct: np.ndarray, confidence: np.ndarray, weight: Weight = None, **options: float) -> Any:
        confidence = np.asarray(confidence, dtype=float)
        drawn = np.ones(len(confidence)) if weight is None else weight
        if np.isnan(confidence).all():  # of no rows, too
            values = np.full(len(np.atleast_2d(drawn)), np.nan)
        else:
            values = figure(np.asarray(correct), confidence, np.atleast_2d(drawn), **options)
        return float(values[0]) if drawn.ndim == 1 else values

    return metric


def row_weights(inclusion_probability: np.ndarray) -> np.ndarray:
    """1 / inclusion probability (rows,), scaled so that the largest is 1; a row drawn in an unknown way is alone.

    A row whose probability is nan stands for itself, like one that was taken with certainty.
    """
    weight = 1 / np.where(np.isnan(inclusion_probability), 1.0, inclusion_probability)
    return np.asarray(weight / weight.max(initial=1.0))


def effective_sample_size(weight: np.ndarray) -> float:
    """The effective sample size (Kish): (sum w)^2 / sum w^2; 0 of no rows."""
    if not len(weight):
        return 0.0
    weight = weight / weight.max()  # so that equal weights give whole numbers
    return float(weight.sum() ** 2 / (weight**2).sum())


def weighted_mean(values: np.ndarray, weight: Weight = None) -> Any:
    """The weighted mean of `values` (rows,), as a metric gives it; nan of nothing."""
    drawn = np.ones(len(values)) if weight is None else weight
    means = _divide(_sum(np.atleast_2d(drawn), values), np.atleast_2d(drawn).sum(axis=1))
    return float(means[0]) if drawn.ndim == 1 else means


@_metric
def auroc(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Area under the ROC curve: the chance that a correct answer outscores an incorrect one; ties count half."""
    tp, fp = _cumulative_counts(correct, confidence, weight)
    # Trapezes: between two confidences, the added incorrect answers times the correct ones above, half of the new.
    above = np.diff(tp, axis=1, prepend=0)
    np.subtract(tp, above / 2, out=above)
    above *= np.diff(fp, axis=1, prepend=0)
    return _divide(above.sum(axis=1), tp[:, -1] * fp[:, -1])


@_metric
def auprc(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Average precision; the base rate is its chance level."""
    tp, fp = _cumulative_counts(correct, confidence, weight)
    precision = _divide(tp, tp + fp, otherwise=0.0)
    return _divide((np.diff(tp, axis=1, prepend=0) * precision).sum(axis=1), tp[:, -1])


@_metric
def aurc(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Area under the risk-coverage curve, the mean of `risk_coverage`'s risk; lower is better."""
    tp, fp = _cumulative_counts(correct, confidence, weight)
    shown = tp + fp
    risk = _divide(fp, shown, otherwise=0.0)
    return _divide((np.diff(shown, axis=1, prepend=0) * risk).sum(axis=1), shown[:, -1])


@_metric
def error_recall(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, share: float = 0.15) -> np.ndarray:
    """The share of all errors that are among the withheld answers (`abstained_share`); nan where none is withheld."""
    errors, withheld = _withheld_shares(correct, confidence, weight, share)
    return np.where(withheld > 0, errors, np.nan)


@_metric
def abstained_share(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, share: float = 0.15) -> np.ndarray:
    """The share of answers that are withheld where at most `share`, below 1, may be, the least confident first.

    Equally confident answers are withheld together or not at all, so it may be much less, or 0.
    """
    _, of_all = _withheld_shares(correct, confidence, weight, share)
    return of_all


@_metric
def error_recall_over_random(
    correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, share: float = 0.15
) -> np.ndarray:
    """The ratio of withheld errors to those withheld at random at the same coverage; nan where none is withheld."""
    errors, withheld = _withheld_shares(correct, confidence, weight, share)
    return _divide(errors, withheld)


@_metric
def error_recall_vs_best(
    correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, share: float = 0.15
) -> np.ndarray:
    """`error_recall` as a share of its largest possible value: with 40 % errors, 15 % withheld catch at most 37.5 %."""
    errors, withheld = _withheld_shares(correct, confidence, weight, share)
    wrong = _divide(_sum(weight, 1 - correct), weight.sum(axis=1))
    return _divide(errors, np.minimum(1.0, _divide(withheld, wrong)))


@_metric
def brier(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Mean squared difference between probability and outcome; lower is better."""
    return _divide(_sum(weight, (_probability(confidence) - correct) ** 2), weight.sum(axis=1))


@_metric
def ece(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, bins: int = 10) -> np.ndarray:
    """Expected calibration error: the rows' mean gap between probability and accuracy over equal-width bins."""
    probability = _probability(confidence)
    where = _bins(probability, bins)
    gap, total = probability - correct, np.zeros(len(weight))
    for b in np.unique(where):
        total += abs(_sum(np.compress(where == b, weight, axis=1), gap[where == b]))
    return _divide(total, weight.sum(axis=1))


@_metric
def accuracy(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, threshold: float = 0.5) -> np.ndarray:
    """The share of answers that are correct and shown, or incorrect and withheld, at `threshold`."""
    return _divide(_sum(weight, (confidence >= threshold) == (correct == 1)), weight.sum(axis=1))


@_metric
def f1(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, threshold: float = 0.5) -> np.ndarray:
    """The harmonic mean of `precision` and `recall`; nan where nothing is shown and nothing correct."""
    shown = confidence >= threshold
    return _divide(2 * _sum(weight, shown & (correct == 1)), _sum(weight, shown) + _sum(weight, correct))


@_metric
def precision(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, threshold: float = 0.5) -> np.ndarray:
    """The share of correct answers among those shown, with a confidence of at least `threshold`; nan of none."""
    shown = confidence >= threshold
    return _divide(_sum(weight, shown & (correct == 1)), _sum(weight, shown))


@_metric
def recall(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, threshold: float = 0.5) -> np.ndarray:
    """The share of the correct answers that is shown; nan where no answer is correct."""
    return _divide(_sum(weight, (confidence >= threshold) & (correct == 1)), _sum(weight, correct))


@_metric
def coverage(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, threshold: float = 0.5) -> np.ndarray:
    """The share of answers that is shown."""
    return _divide(_sum(weight, confidence >= threshold), weight.sum(axis=1))


def reliability(
    correct: np.ndarray, confidence: np.ndarray, weight: Weight = None, bins: int = 10
) -> list[dict[str, float]]:
    """Per equal-width bin of probability that holds rows: mean confidence, accuracy, rows, and their `share` of all
    answers. `weight` is (rows,), and weighs all of these but `rows`."""
    probability = _probability(np.asarray(confidence, dtype=float))
    where = _bins(probability, bins)
    weight = np.ones(len(where)) if weight is None else weight
    return [
        {
            "confidence": weighted_mean(probability[where == b], weight[where == b]),
            "accuracy": weighted_mean(correct[where == b], weight[where == b]),
            "rows": int((where == b).sum()),
            "share": weighted_mean(where == b, weight),
        }
        for b in np.unique(where)
    ]


def risk_coverage(correct: np.ndarray, confidence: np.ndarray, weight: Weight = None) -> tuple[np.ndarray, np.ndarray]:
    """Coverage and selective risk as answers are shown from the most confident on; both (rows,), as is `weight`.

    Equally confident answers are shown together, so the curve does not depend on the order of the rows.
    """
    confidence = np.asarray(confidence, dtype=float)
    order, ends = _ranking(confidence)
    ordered = np.ones(len(order)) if weight is None else weight[order]
    shown, errors = np.cumsum(ordered), np.cumsum(ordered * (1 - correct[order]))
    return shown / shown[-1:], np.repeat(errors[ends] / shown[ends], np.diff(ends, prepend=-1))


def _cumulative_counts(
    correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """True and false positives, where answers of at least each distinct confidence are shown, highest first.

    Both (draws, distinct confidences). Each is summed by itself: a difference of sums could turn 0 incorrect answers
    into 1e-16, and an undefined figure into a defined one.
    """
    order, ends = _ranking(confidence)
    ordered = np.take(weight, order, axis=1)
    sums = (np.cumsum(ordered * of_class, axis=1) for of_class in (correct[order], 1 - correct[order]))
    tp, fp = (total if len(ends) == len(order) else total[:, ends] for total in sums)
    return tp, fp


def _ranking(confidence: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows, most confident first and nan last, and the last place of each run of equally confident ones."""
    order = np.argsort(-confidence, kind="stable")
    above, below = confidence[order[:-1]], confidence[order[1:]]
    differ = (above != below) & ~(np.isnan(above) & np.isnan(below))
    return order, np.append(np.flatnonzero(differ), np.arange(len(order))[-1:])


def _withheld_shares(
    correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, share: float
) -> tuple[np.ndarray, np.ndarray]:
    """The shares of all errors and of all answers that are withheld where at most `share` may be; both (draws,)."""
    tp, fp = _cumulative_counts(correct, confidence, weight)
    shown = tp + fp
    below = shown[:, -1:] - shown
    # A share that fits exactly must not fail by the rounding of sums.
    first = (below > share * shown[:, -1:] * (1 + 1e-9)).sum(axis=1, keepdims=True)
    errors = fp[:, -1] - np.take_along_axis(fp, first, axis=1)[:, 0]
    return _divide(errors, fp[:, -1]), _divide(np.take_along_axis(below, first, axis=1)[:, 0], shown[:, -1])


def _sum(weight: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The sum of `values` (rows,) under every draw. Not `@`: its last bits may differ with the number of threads."""
    return np.asarray((weight * values).sum(axis=1))


def _divide(part: np.ndarray, whole: np.ndarray, otherwise: float = np.nan) -> np.ndarray:
    """`part / whole`, `otherwise` where the whole is nothing."""
    filled = np.full(np.shape(whole), otherwise)
    np.divide(part, whole, out=filled, where=whole > 0)
    return filled


def _probability(confidence: np.ndarray) -> np.ndarray:
    known = confidence[~np.isnan(confidence)]
    if len(known) and (known.min() < -1e-6 or known.max() > 1 + 1e-6):
        raise ValueError(f"{known.min():g} to {known.max():g} is no range of probabilities: calibrate the scores first")
    return np.clip(np.where(np.isnan(confidence), 0.0, confidence), 0, 1)


def _bins(probability: np.ndarray, bins: int) -> np.ndarray:
    return np.asarray(np.minimum((probability * bins).astype(int), bins - 1))
