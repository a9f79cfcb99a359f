"""Metrics of estimated correctness scores: the figures of the paper's tables 2 to 12 (section 4.2).

`true` is the correctness score of each answer, nan where it is unknown, `predicted` the regressor's, both (rows,) in
[0, 1]; t is a threshold on the true score that calls an answer correct, and on the prediction as well.

Notes:

* Correct means a score of at least t, for true and predicted scores, as for shown answers. The paper's "exceeds t"
  differs for scores of exactly t, and at t = 1 would call no verdict and no ROUGE correct.
* Accuracy and F1 depend on the share of correct answers at t more than on the regressor: at 9 in 10, predicting correct
  for all has an F1 of 0.95. So this share (`positive`) is reported beside them.
* An AUROC of one class is nan, with a `note` that names the class; accuracy and F1 are still given.
* A prediction that is nan counts as 0 and ranks below all others, where there are others (`metrics`); a row whose true
  score is unknown is left out, and `judged` is the number of the rows that count.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import BootstrapConfig, Statistic, bootstrap, make_interval_columns


def make_statistics(
    true: np.ndarray, predicted: np.ndarray, threshold: float, buffer: float | None = None
) -> dict[str, Statistic]:
    """`mse`, `positive`, `auroc`, `accuracy` and `f1` by name, each of weights, as `bootstrap` wants it.

    With a `buffer` b, those of table 11, too: predictions within [t - b, t + b] are withheld, `withheld` is the share
    of them, `accuracy_buffered` and `f1_buffered` are of the rest. What is not defined is nan.

    Raises `ValueError` for scores outside of [0, 1] and a buffer that is negative.
    """
    true, predicted = _scores(true), _scores(predicted)
    known = ~np.isnan(true)
    true, predicted = true[known], predicted[known]
    correct = (true >= threshold).astype(int)
    error = (np.where(np.isnan(predicted) & ~np.isnan(predicted).all(), 0.0, predicted) - true) ** 2
    of_known = {
        "mse": partial(metrics.weighted_mean, error),
        "positive": partial(metrics.weighted_mean, correct),
        "auroc": partial(metrics.auroc, correct, predicted),
        "accuracy": partial(metrics.accuracy, correct, predicted, threshold=threshold),
        "f1": partial(metrics.f1, correct, predicted, threshold=threshold),
    }
    found = {name: _restrict_to(known, figure) for name, figure in of_known.items()}
    if buffer is None:
        return found
    if buffer < 0:
        raise ValueError(f"a buffer of {buffer:g} withholds nothing: it is at least 0")
    withheld = (predicted >= threshold - buffer) & (predicted <= threshold + buffer)
    rest = np.flatnonzero(known)[~withheld]
    buffered = {"accuracy": metrics.accuracy, "f1": metrics.f1}
    for name, metric in buffered.items():
        figure = partial(metric, correct[~withheld], predicted[~withheld], threshold=threshold)
        found[f"{name}_buffered"] = _restrict_to(rest, figure)
    return {**found, "withheld": _restrict_to(known, partial(metrics.weighted_mean, withheld))}


def evaluate_estimates(
    true: np.ndarray,
    predicted: np.ndarray,
    threshold: float,
    groups: np.ndarray,
    weight: metrics.Weight,
    resamples: BootstrapConfig,
    buffer: float | None = None,
) -> dict[str, Any]:
    """A row of the paper's tables: every one of `make_statistics` with its 95 % interval by bootstrap of `groups`, (rows,).

    `f1`, `f1_low`, `f1_high` and so on; `threshold`, `judged` (rows whose true score is known) and `note`, None or why
    there is no AUROC. `weight`: (rows,), None for equal ones.
    """
    found = bootstrap(
        make_statistics(true, predicted, threshold, buffer), groups, resamples.draws, resamples.seed, weight
    )
    judged = int((~np.isnan(np.asarray(true, dtype=float))).sum())
    row: dict[str, Any] = {"threshold": threshold, "judged": judged}
    for name, estimate in found.items():
        row |= make_interval_columns(name, estimate)
    return {**row, "note": _note(found["positive"].value, found["auroc"].value, threshold)}


def tune_t(
    true: np.ndarray,
    predicted: np.ndarray,
    candidates: Sequence[float],
    weight: metrics.Weight = None,
    least_share: float = 0.2,
) -> float:
    """t for one base model, by its training answers: `predicted`, (rows,), must be out of fold.

    The paper tunes t for each base model and "selected the t that gave the F1 and AUROC scores" (appendix A.2). Here it
    is the candidate with the best mean of the two among those that leave both classes at least `least_share` of the
    answers, by weight; the lowest of equally good ones. The share is needed because F1 rises with the number of correct
    answers, for any regressor: of the paper's table 12 the mean alone would take t = 0.89, and the paper's other
    tables are at 0.92 and 0.95.

    Raises `AbstainError` where no candidate leaves both classes that share.
    """
    own = np.ones(len(true)) if weight is None else np.asarray(weight, dtype=float)
    positive: dict[float, float] = {}
    merit: dict[float, float] = {}
    for t in sorted(candidates):
        found = {name: figure(own) for name, figure in make_statistics(true, predicted, t).items()}
        positive[t] = found["positive"]
        of_both = (found["f1"] + found["auroc"]) / 2
        if min(positive[t], 1 - positive[t]) >= least_share and not np.isnan(of_both):
            merit[t] = of_both
    if not merit:
        shares = ", ".join(f"{share:.0%} reach {t:g}" for t, share in positive.items()) or "there are no candidates"
        raise AbstainError(
            Code.NOT_TRAINABLE,
            f"no candidate for t leaves both classes {least_share:.0%} of the training answers ({shares}): give "
            "candidates nearer to the median of the correctness score",
        )
    return float(max(merit, key=lambda t: merit[t]))


def _restrict_to(rows: np.ndarray, figure: Statistic) -> Statistic:
    """`figure` of `rows`, a mask or places, as a figure of all: it is given their weights alone."""
    return lambda weight: figure(weight[..., rows])


def _scores(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values, dtype=float)
    known = values[~np.isnan(values)]
    if len(known) and (known.min() < -1e-6 or known.max() > 1 + 1e-6):  # a cosine may be a rounding error above 1
        raise ValueError(f"{known.min():g} to {known.max():g} is no range of correctness scores: they lie in [0, 1]")
    return np.asarray(values.clip(0, 1))


def _note(positive: float, auroc: float, threshold: float) -> str | None:
    if np.isnan(positive):
        return "no answer that counts has a true score"
    if positive in (0.0, 1.0):
        return f"{'all' if positive else 'no'} answers reach t = {threshold:g}: there is no AUROC of one class"
    return "no answer has a predicted score" if np.isnan(auroc) else None
