"""Fusion: logistic stacking of all scorers into one confidence (Wolpert 1992).

Notes:

* It is fitted on out-of-fold confidences of the training answers. In-sample confidences would put all weight on the
  trained probes.
* Logistic regression on the scores' log-odds, with the regularisation that grouped cross-validation chooses. The report
  shows its coefficients, the weights of the scores; it is stored as JSON.
* Coefficients of scores are not negative (Breiman, *Stacked Regressions*, 1996); those of the missing-score indicators
  may have either sign. Every score means "higher is more likely correct", so a negative weight would fit noise of the
  training answers; an unconstrained regression fits more of it, the more scores are uninformative.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.labels import Labels

if TYPE_CHECKING:
    import pandas as pd

CLIP_MARGIN = 1e-4
"""Scores are kept this far from 0 and 1, whose log-odds are infinite."""
MIN_LOG_ODDS_RANGE = 1e-6
"""Log-odds that differ by less are equal."""
REGULARIZATION_STRENGTHS = tuple(10.0**power for power in (-4, -3.5, -3, -2.5, -2, -1.5, -1, -0.5, 0, 0.5, 1))
FOLDS = 5
_BY_SCORE = ("names", "mean", "scale", "coefficient", "missing")


@dataclass(frozen=True)
class Fusion:
    """The fitted fusion: per score `mean` and `scale` of its log-odds, `coefficient`, and that of being `missing_coefficient`."""

    names: tuple[str, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    coefficient: tuple[float, ...]
    missing_coefficient: tuple[float, ...]
    intercept: float
    strength: float

    @property
    def coefficients(self) -> dict[str, float]:
        """The weight of each score, per standard deviation of that score's log-odds."""
        return dict(zip(self.names, self.coefficient, strict=True))

    @property
    def coefficients_if_missing(self) -> dict[str, float]:
        """Per score, the term added to the log-odds of an answer where that score is missing."""
        return dict(zip(self.names, self.missing_coefficient, strict=True))

    def drop_unused(self) -> Fusion:
        """The same fusion of the scores with a weight alone, by themselves or by being missing; all of them if none."""
        used = [at for at in range(len(self.names)) if self.coefficient[at] or self.missing_coefficient[at]]
        if not used:
            return self
        parts: dict[str, Any] = {name: tuple(getattr(self, name)[at] for at in used) for name in _BY_SCORE}
        return replace(self, **parts)

    def score(self, scores: pd.DataFrame) -> np.ndarray:
        """Confidences, float64 (rows,), of answers whose scores are the columns `names`, nan where one is missing."""
        z = _inputs(scores, self.names, np.array(self.mean), np.array(self.scale)) @ np.array(
            [*self.coefficient, *self.missing_coefficient]
        )
        return np.asarray(1 / (1 + np.exp(-(z + self.intercept))))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Fusion:
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in content.items()}
        return cls(**fields)


@dataclass(frozen=True)
class FittedFusion:
    """A fusion, fitted to all rows; `out_of_fold`, float64 (rows,), their confidences by fusions of the same strength
    that were not fitted to their group, nan where the other groups' answers are all correct, or all incorrect."""

    fusion: Fusion
    out_of_fold: np.ndarray


def fit_fusion(scores: pd.DataFrame, labels: Labels) -> FittedFusion:
    """Fit to training answers: `scores` (rows, scorers) in [0, 1] or nan, out of fold by scorers that learn from them.

    Raises `AbstainError` where the answers are all correct, or all incorrect.
    """
    labels.require_both_classes()
    # Of the clipped log-odds: a score that is below `CLIP_MARGIN` on all training answers separates none of them.
    names = tuple(name for name in scores.columns if np.ptp(_drop_nan(_log_odds(scores, (name,)))) > MIN_LOG_ODDS_RANGE)
    if not names:
        raise AbstainError(Code.NOT_TRAINABLE, "no scorer separates any two answers: nothing to fuse")
    known = _log_odds(scores, names)
    mean = np.nanmean(known, axis=0)
    scale = np.nanstd(known, axis=0)
    inputs = _inputs(scores, names, mean, scale)
    folds = _folds(labels.groups)

    def held_out(strength: float) -> np.ndarray:
        """Log-odds, (rows,), by a fusion that was fitted without the row's fold."""
        found = np.full(len(inputs), np.nan)
        for fold in np.unique(folds):
            learnt, held = folds != fold, folds == fold
            if len(np.unique(labels.correct[learnt & (labels.weight > 0)])) == 2:
                coefficients, intercept = _fit(inputs[learnt], labels.subset(learnt), strength, len(names))
                found[held] = inputs[held] @ coefficients + intercept
        return found

    def loss(odds: np.ndarray) -> float:
        known = ~np.isnan(odds)
        sign = 2.0 * labels.correct[known] - 1
        return float(labels.weight[known] @ np.logaddexp(0, -sign * odds[known]))

    with threadpool_limits(1):  # the order of a sum, and so its last bits, depends on the number of threads
        tried = {strength: held_out(strength) for strength in REGULARIZATION_STRENGTHS}
        strength = min(tried, key=lambda one: loss(tried[one]))
        found, intercept = _fit(inputs, labels, strength, len(names))
    coefficients = found.tolist()
    fusion = Fusion(
        names=names,
        mean=tuple(mean.tolist()),
        scale=tuple(scale.tolist()),
        coefficient=tuple(coefficients[: len(names)]),
        missing_coefficient=tuple(coefficients[len(names) :]),
        intercept=intercept,
        strength=strength,
    )
    return FittedFusion(fusion, 1 / (1 + np.exp(-tried[strength])))


def _fit(inputs: np.ndarray, labels: Labels, strength: float, scores: int) -> tuple[np.ndarray, float]:
    """Coefficients (columns,), the first `scores` of them not negative, and the intercept, which has no penalty.

    They minimise the weighted logistic loss times `strength`, plus half of the coefficients' squares.
    """
    from scipy.optimize import minimize
    from scipy.special import expit

    columns = inputs.shape[1]
    sign, share = 2.0 * labels.correct - 1, strength * labels.weight

    def objective(values: np.ndarray) -> tuple[float, np.ndarray]:
        coefficients, margin = values[:-1], sign * (inputs @ values[:-1] + values[-1])
        slope = -share * sign * expit(-margin)
        value = share @ np.logaddexp(0, -margin) + coefficients @ coefficients / 2
        return float(value), np.append(inputs.T @ slope + coefficients, slope.sum())

    bounds = [(0, None)] * scores + [(None, None)] * (columns - scores + 1)
    options = {"maxiter": 2000, "ftol": 1e-12, "gtol": 1e-8}
    found = minimize(objective, np.zeros(columns + 1), jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return found.x[:-1], float(found.x[-1])


def _log_odds(scores: pd.DataFrame, names: tuple[str, ...]) -> np.ndarray:
    values = scores[list(names)].to_numpy(float).clip(CLIP_MARGIN, 1 - CLIP_MARGIN)
    return np.asarray(np.log(values / (1 - values)))


def _drop_nan(values: np.ndarray) -> np.ndarray:
    """The values that are not nan, or one 0 where there are none."""
    known = values[~np.isnan(values)]
    return known if len(known) else np.zeros(1)


def _inputs(scores: pd.DataFrame, names: tuple[str, ...], mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """(rows, 2 x scorers): standardised log-odds, 0 where one is missing, and an indicator column of missing ones."""
    standardised = (_log_odds(scores, names) - mean) / scale
    gone = np.isnan(standardised)
    return np.hstack([np.where(gone, 0.0, standardised), gone.astype(float)])


def _folds(groups: np.ndarray) -> np.ndarray:
    from sklearn.model_selection import GroupKFold

    number = min(FOLDS, len(np.unique(groups)))
    folds = np.zeros(len(groups), int)
    if number > 1:
        for fold, (_, held) in enumerate(GroupKFold(number).split(groups, groups=groups)):
            folds[held] = fold
    return folds
