"""Metrics of estimated correctness scores, as in tables 2 to 12 of Zhang et al. (section 4.2).

`true` is the correctness score of each answer, nan where it is unknown; `predicted` is the regressor's estimate of it.
Both are (rows,) in [0, 1]. t is a threshold on the true score that defines a correct answer; it is applied to the
prediction as well.

Notes:

* Correct means a score of at least t, for true and predicted scores, as for shown answers. The paper's "exceeds t"
  differs for scores of exactly t, and at t = 1 no label and no ROUGE would be correct.
* Accuracy and F1 depend on the share of correct answers at t more than on the regressor: if 9 in 10 are correct, to
  predict correct for all has an F1 of 0.95. So this share (`positive`) is reported with them.
* The AUROC of one class is nan, with a `note` that names the class; accuracy and F1 are still computed.
* A nan prediction counts as 0 and ranks below all others if there are others (`weighted_metrics`). A row whose true
  score is unknown is left out; the column `labelled` is the number of rows with a true score.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.result_record import ResultRecord, Value
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import BootstrapConfig, Statistic, bootstrap, make_interval_columns


class EstimateMetrics(ResultRecord):
    """A regressor as a row of the paper's tables: statistics of `make_statistics` with `NAME_low` and `NAME_high`.

    Attributes:
        threshold: t.
        labelled: Number of rows with a true score.
        note: The reason for an undefined AUROC; None if it is defined.
    """

    __pydantic_extra__: dict[str, Value]
    threshold: float
    labelled: int
    note: str | None
    mse: Value
    positive: Value
    auroc: Value
    accuracy: Value
    f1: Value


def make_statistics(
    true: np.ndarray,
    predicted: np.ndarray,
    threshold: float,
    buffer: float | None = None,
    constant: float | None = None,
) -> dict[str, Statistic]:
    """Make the statistics of the paper's tables as functions of weights, the input of `bootstrap`.

    * mse: mean of (predicted - true)^2
    * positive: share of answers with true >= t
    * auroc: AUROC of the predictions for true >= t
    * accuracy, f1: of predicted >= t against true >= t
    * with a buffer b (table 11): withheld, the share of predictions within [t - b, t + b], and accuracy_buffered and
      f1_buffered of the other answers
    * with a constant c, such as the mean of the training answers: mse_constant, that of always predicting c, and
      mse_difference = mse - mse_constant

    Args:
        true: (rows,) true correctness scores in [0, 1]; nan where they are unknown.
        predicted: (rows,) estimated scores in [0, 1]; nan where there is none.
        threshold: t.
        buffer: b >= 0; None leaves the buffered statistics out.
        constant: c; None leaves its statistics out.

    Returns:
        Name -> statistic; undefined values are nan.

    Raises:
        ValueError: A score is outside of [0, 1], or the buffer is negative.
    """
    true, predicted = _validate_scores(true), _validate_scores(predicted)
    is_labelled = ~np.isnan(true)
    true, predicted = true[is_labelled], predicted[is_labelled]
    correct = (true >= threshold).astype(int)
    error = (np.where(np.isnan(predicted) & ~np.isnan(predicted).all(), 0.0, predicted) - true) ** 2
    labelled_statistics: dict[str, Statistic] = {
        "mse": partial(metrics.weighted_mean, error),
        "positive": partial(metrics.weighted_mean, correct),
        "auroc": partial(metrics.auroc, correct, predicted),
        "accuracy": partial(metrics.accuracy, correct, predicted, threshold=threshold),
        "f1": partial(metrics.f1, correct, predicted, threshold=threshold),
    }
    if constant is not None:
        error_of_constant = (constant - true) ** 2
        labelled_statistics["mse_constant"] = partial(metrics.weighted_mean, error_of_constant)
        labelled_statistics["mse_difference"] = partial(metrics.weighted_mean, error - error_of_constant)
    statistics = {name: _restrict_to(is_labelled, statistic) for name, statistic in labelled_statistics.items()}
    if buffer is None:
        return statistics
    if buffer < 0:
        raise ValueError(f"a buffer of {buffer:g} withholds nothing: it is at least 0")
    withheld = (predicted >= threshold - buffer) & (predicted <= threshold + buffer)
    unbuffered = np.flatnonzero(is_labelled)[~withheld]
    buffered = {"accuracy": metrics.accuracy, "f1": metrics.f1}
    for name, metric in buffered.items():
        statistic = partial(metric, correct[~withheld], predicted[~withheld], threshold=threshold)
        statistics[f"{name}_buffered"] = _restrict_to(unbuffered, statistic)
    return {**statistics, "withheld": _restrict_to(is_labelled, partial(metrics.weighted_mean, withheld))}


def evaluate_estimates(
    true: np.ndarray,
    predicted: np.ndarray,
    threshold: float,
    groups: np.ndarray,
    weight: metrics.Weight,
    resampling: BootstrapConfig,
    buffer: float | None = None,
    constant: float | None = None,
) -> EstimateMetrics:
    """Evaluate a regressor as a row of the paper's tables.

    Args:
        true: (rows,) true correctness scores in [0, 1]; nan where they are unknown.
        predicted: (rows,) estimated scores in [0, 1]; nan where there is none.
        threshold: t.
        groups: (rows,) group ids of the bootstrap.
        weight: (rows,) sampling weights; None means equal weights.
        resampling: Number of resamples and seed.
        buffer: b of `make_statistics`; None leaves the buffered statistics out.
        constant: c of `make_statistics`; None leaves its statistics out.

    Returns:
        Every statistic of `make_statistics` with its 95 % interval.

    Raises:
        ValueError: A score is outside of [0, 1], or the buffer is negative.
    """
    estimates = bootstrap(
        make_statistics(true, predicted, threshold, buffer, constant),
        groups,
        n_resamples=resampling.n_resamples,
        seed=resampling.seed,
        weight=weight,
    )
    columns: dict[str, float] = {}
    for name, estimate in estimates.items():
        columns |= make_interval_columns(name, estimate)
    return EstimateMetrics(
        threshold=threshold,
        labelled=int((~np.isnan(np.asarray(true, dtype=float))).sum()),
        note=_explain_undefined(columns["positive"], columns["auroc"], threshold),
        **columns,
    )


def tune_t(
    true: np.ndarray,
    predicted: np.ndarray,
    candidates: Sequence[float],
    weight: metrics.Weight = None,
    min_class_share: float = 0.2,
) -> float:
    """Choose t for a base model on its training answers.

    The paper tunes t for each base model and "selected the t that gave the F1 and AUROC scores" (appendix A.2). Here it
    is the candidate with the largest (F1 + AUROC) / 2 among those that leave both classes at least `min_class_share` of
    the answers, by weight; ties go to the lowest. The share is needed because F1 rises with the number of correct
    answers, for any regressor: in the paper's table 12 the mean would choose t = 0.89, and the paper's other tables are
    at 0.92 and 0.95.

    Args:
        true: (rows,) true correctness scores in [0, 1]; nan where they are unknown.
        predicted: (rows,) out-of-fold estimates in [0, 1].
        candidates: Values of t to compare.
        weight: (rows,) sampling weights; None means equal weights.
        min_class_share: Smallest weighted share of each class, in [0, 0.5].

    Returns:
        The chosen t.

    Raises:
        AbstainError: No candidate leaves both classes that share.
    """
    row_weight = np.ones(len(true)) if weight is None else np.asarray(weight, dtype=float)
    positive_shares: dict[float, float] = {}
    mean_scores: dict[float, float] = {}
    for t in sorted(candidates):
        values = {name: statistic(row_weight) for name, statistic in make_statistics(true, predicted, t).items()}
        positive_shares[t] = values["positive"]
        mean_score = (values["f1"] + values["auroc"]) / 2
        if min(positive_shares[t], 1 - positive_shares[t]) >= min_class_share and not np.isnan(mean_score):
            mean_scores[t] = mean_score
    if not mean_scores:
        shares = (
            ", ".join(f"{share:.0%} reach {t:g}" for t, share in positive_shares.items()) or "there are no candidates"
        )
        raise AbstainError(
            Code.NOT_TRAINABLE,
            f"no candidate for t leaves both classes {min_class_share:.0%} of the training answers ({shares}): give "
            "candidates nearer to the median of the correctness score",
        )
    return float(max(mean_scores, key=lambda t: mean_scores[t]))


def _restrict_to(rows: np.ndarray, statistic: Statistic) -> Statistic:
    """Make a statistic of some rows (a mask or indices) accept the weights of all rows."""
    return lambda weight: statistic(weight[..., rows])


def _validate_scores(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values, dtype=float)
    finite = values[~np.isnan(values)]
    if len(finite) and (finite.min() < -1e-6 or finite.max() > 1 + 1e-6):  # a cosine may be a rounding error above 1
        raise ValueError(f"{finite.min():g} to {finite.max():g} is no range of correctness scores: they lie in [0, 1]")
    return np.asarray(values.clip(0, 1))


def _explain_undefined(positive: float, auroc: float, threshold: float) -> str | None:
    if np.isnan(positive):
        return "no answer that counts has a true score"
    if positive in (0.0, 1.0):
        return f"{'all' if positive else 'no'} answers reach t = {threshold:g}: there is no AUROC of one class"
    return "no answer has a predicted score" if np.isnan(auroc) else None
