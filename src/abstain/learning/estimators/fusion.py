"""Fusion: logistic stacking of all scorers into one confidence (Wolpert 1992).

Notes:

* It is fitted on out-of-fold confidences of the training answers. In-sample confidences would put all weight on the
  trained probes.
* It is a logistic regression on the log-odds of the scores, with the regularisation that grouped cross-validation
  selects. The report shows its coefficients; it is stored as JSON.
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
"""Scores are clipped to this distance from 0 and 1, where log-odds are infinite."""
MIN_LOG_ODDS_RANGE = 1e-6
"""Log-odds with a smaller range are constant."""
REGULARIZATION_STRENGTHS = tuple(10.0**power for power in (-4, -3.5, -3, -2.5, -2, -1.5, -1, -0.5, 0, 0.5, 1))
FOLDS = 5
_PER_SCORE_FIELDS = ("names", "mean", "scale", "coefficient", "missing_coefficient")


@dataclass(frozen=True)
class Fusion:
    """A fitted fusion.

    With z_j = (logit(s_j) - mean_j) / scale_j of the scores s_j, clipped by `CLIP_MARGIN`, and m_j = 0, or z_j = 0 and
    m_j = 1 where s_j is missing:

        confidence = sigmoid(intercept + sum_j (coefficient_j z_j + missing_coefficient_j m_j))

    Attributes:
        names: (scorers,) names of the scores.
        mean: (scorers,) mean log-odds on the training answers.
        scale: (scorers,) standard deviation of the log-odds.
        coefficient: (scorers,) weights, >= 0.
        missing_coefficient: (scorers,) weights of the missing-score indicators.
        intercept: The intercept.
        strength: Inverse regularisation strength C that cross-validation selected.
    """

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
        """Per score, the term added to the log-odds of an answer if that score is missing."""
        return dict(zip(self.names, self.missing_coefficient, strict=True))

    def drop_unused(self) -> Fusion:
        """Drop scores whose two weights are 0; keep all of them if there is no other.

        Returns:
            The reduced fusion, with the same confidences.
        """
        used = [index for index in range(len(self.names)) if self.coefficient[index] or self.missing_coefficient[index]]
        if not used:
            return self
        columns: dict[str, Any] = {
            name: tuple(getattr(self, name)[index] for index in used) for name in _PER_SCORE_FIELDS
        }
        return replace(self, **columns)

    def score(self, scores: pd.DataFrame) -> np.ndarray:
        """Compute the confidences of answers.

        Args:
            scores: (rows, columns) with a column for each of `names`, in [0, 1]; nan where a score is missing.

        Returns:
            float64 (rows,) in (0, 1).
        """
        z = _make_inputs(scores, self.names, np.array(self.mean), np.array(self.scale)) @ np.array(
            [*self.coefficient, *self.missing_coefficient]
        )
        return np.asarray(1 / (1 + np.exp(-(z + self.intercept))))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Fusion:
        """Restore a fusion from the output of `to_dict`.

        Args:
            content: The fields as JSON values.

        Returns:
            The fusion.
        """
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in content.items()}
        return cls(**fields)


@dataclass(frozen=True)
class FittedFusion:
    """A fusion with its out-of-fold confidences.

    Attributes:
        fusion: Fitted on all rows.
        out_of_fold: float64 (rows,) confidences by fusions of the same strength that were not fitted on the row's
            group; nan where the answers of the other groups are all correct, or all incorrect.
    """

    fusion: Fusion
    out_of_fold: np.ndarray


def fit_fusion(scores: pd.DataFrame, labels: Labels) -> FittedFusion:
    """Fit a fusion to the scores of training answers.

    It minimizes strength * sum_i w_i log(1 + exp(-y_i f_i)) + |coefficients|^2 / 2 with y_i in {-1, 1} and the log-odds
    f_i of `Fusion`. The strength is the one of `REGULARIZATION_STRENGTHS` with the smallest out-of-fold loss.

    Args:
        scores: (rows, scorers) in [0, 1] or nan; out of fold if the scorer was fitted on these answers.
        labels: Labels, weights and groups of the rows.

    Returns:
        The fusion and its out-of-fold confidences.

    Raises:
        AbstainError: The answers are all correct, or all incorrect, or no score differs between answers.
    """
    labels.require_both_classes()
    # The clipped log-odds are tested: a score below `CLIP_MARGIN` on all training answers does not distinguish them.
    names = tuple(name for name in scores.columns if np.ptp(_drop_nan(_log_odds(scores, (name,)))) > MIN_LOG_ODDS_RANGE)
    if not names:
        raise AbstainError(Code.NOT_TRAINABLE, "no scorer separates any two answers: nothing to fuse")
    log_odds = _log_odds(scores, names)
    mean = np.nanmean(log_odds, axis=0)
    scale = np.nanstd(log_odds, axis=0)
    inputs = _make_inputs(scores, names, mean, scale)
    folds = _assign_folds(labels.groups)

    def predict_held_out(strength: float) -> np.ndarray:
        """Log-odds, (rows,), by a fusion that was fitted without the row's fold."""
        predictions = np.full(len(inputs), np.nan)
        for fold in np.unique(folds):
            is_train, is_held_out = folds != fold, folds == fold
            if len(np.unique(labels.correct[is_train & (labels.weight > 0)])) == 2:
                coefficients, intercept = _fit_logistic(inputs[is_train], labels.subset(is_train), strength, len(names))
                predictions[is_held_out] = inputs[is_held_out] @ coefficients + intercept
        return predictions

    def loss(predictions: np.ndarray) -> float:
        finite = ~np.isnan(predictions)
        sign = 2.0 * labels.correct[finite] - 1
        return float(labels.weight[finite] @ np.logaddexp(0, -sign * predictions[finite]))

    with threadpool_limits(1):  # the order of a sum, and so its last bits, depends on the number of threads
        predictions_by_strength = {strength: predict_held_out(strength) for strength in REGULARIZATION_STRENGTHS}
        strength = min(predictions_by_strength, key=lambda candidate: loss(predictions_by_strength[candidate]))
        fitted, intercept = _fit_logistic(inputs, labels, strength, len(names))
    coefficients = fitted.tolist()
    fusion = Fusion(
        names=names,
        mean=tuple(mean.tolist()),
        scale=tuple(scale.tolist()),
        coefficient=tuple(coefficients[: len(names)]),
        missing_coefficient=tuple(coefficients[len(names) :]),
        intercept=intercept,
        strength=strength,
    )
    return FittedFusion(fusion, 1 / (1 + np.exp(-predictions_by_strength[strength])))


def _fit_logistic(inputs: np.ndarray, labels: Labels, strength: float, n_scores: int) -> tuple[np.ndarray, float]:
    """Return coefficients (columns,), the first `n_scores` of them not negative, and the intercept.

    They minimize the weighted logistic loss times `strength`, plus half of the squared coefficients; the intercept has
    no penalty.
    """
    from scipy.optimize import minimize
    from scipy.special import expit

    columns = inputs.shape[1]
    sign, scaled_weight = 2.0 * labels.correct - 1, strength * labels.weight

    def objective(values: np.ndarray) -> tuple[float, np.ndarray]:
        coefficients, margin = values[:-1], sign * (inputs @ values[:-1] + values[-1])
        slope = -scaled_weight * sign * expit(-margin)
        value = scaled_weight @ np.logaddexp(0, -margin) + coefficients @ coefficients / 2
        return float(value), np.append(inputs.T @ slope + coefficients, slope.sum())

    bounds = [(0, None)] * n_scores + [(None, None)] * (columns - n_scores + 1)
    options = {"maxiter": 2000, "ftol": 1e-12, "gtol": 1e-8}
    optimum = minimize(objective, np.zeros(columns + 1), jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return optimum.x[:-1], float(optimum.x[-1])


def _log_odds(scores: pd.DataFrame, names: tuple[str, ...]) -> np.ndarray:
    values = scores[list(names)].to_numpy(float).clip(CLIP_MARGIN, 1 - CLIP_MARGIN)
    return np.asarray(np.log(values / (1 - values)))


def _drop_nan(values: np.ndarray) -> np.ndarray:
    """Return the finite values, or a single 0 if there are none."""
    finite = values[~np.isnan(values)]
    return finite if len(finite) else np.zeros(1)


def _make_inputs(scores: pd.DataFrame, names: tuple[str, ...], mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return (rows, 2 x scorers): standardized log-odds, 0 where a score is missing, and missing-score indicators."""
    standardized = (_log_odds(scores, names) - mean) / scale
    is_missing = np.isnan(standardized)
    return np.hstack([np.where(is_missing, 0.0, standardized), is_missing.astype(float)])


def _assign_folds(groups: np.ndarray) -> np.ndarray:
    from sklearn.model_selection import GroupKFold

    n_folds = min(FOLDS, len(np.unique(groups)))
    folds = np.zeros(len(groups), int)
    if n_folds > 1:
        for fold, (_, held_out) in enumerate(GroupKFold(n_folds).split(groups, groups=groups)):
            folds[held_out] = fold
    return folds
