"""Grouped cross-validation of a correctness regressor on the training answers, with out-of-fold scores.

The rules are those of the probes (`cross_validation`): the validation split is not used, folds consist of whole groups,
and the step of the path with the smallest loss over all held-out answers is selected, for the folds and for the
exported regressor. The loss is the mean squared error of Zhang et al. (section 4.2), weighted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from sklearn.model_selection import GroupKFold
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from abstain.config.params import Params, RegressorFit, RegressorKind, RegressorTraining
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.learning.estimators.regressors.columns import is_varying, select_columns, to_matrix
from abstain.learning.estimators.regressors.kinds import REGRESSOR_ALGORITHMS, RegressorTrainingSet
from abstain.learning.estimators.regressors.onnx_regressor import OnnxRegressor, measure_parity, to_onnx_regressor


@dataclass(frozen=True)
class FittedRegressor:
    """A regressor with its out-of-fold scores.

    Attributes:
        regressor: Fitted on all rows.
        out_of_fold: float64 (rows,) scores in [0, 1] by regressors that were not fitted on the row's group.
        dropped: Dropped column -> its only value in training; None if it is missing in all rows.
        parity: Largest difference between the scores of scikit-learn and of the ONNX file.
    """

    regressor: OnnxRegressor
    out_of_fold: np.ndarray
    dropped: Mapping[str, float | None]
    parity: float


def make_regressor_fit(params: Params) -> RegressorFit:
    """Return the fitting parameters of the regressors, with the seed that all training shares.

    Args:
        params: All parameters.

    Returns:
        The fitting parameters.
    """
    return RegressorFit(
        **params.regressors.model_dump(include=set(RegressorTraining.model_fields)), seed=params.probe.seed
    )


def fit_regressor(
    kind: RegressorKind,
    target_name: str,
    features: pd.DataFrame,
    target: np.ndarray,
    weight: np.ndarray,
    groups: np.ndarray,
    params: RegressorFit,
) -> FittedRegressor:
    """Fit a regressor to a correctness score (section 3.4.2 of the paper).

    The step of the path is selected by the smallest sum_i w_i (predicted_i - target_i)^2 over held-out rows. Rows with
    an unknown target or weight 0 are not fitted, but get an out-of-fold score. Rows without any feature are not fitted,
    and their out-of-fold score is nan. Deterministic under `params.seed`, with any number of cores.

    Args:
        kind: Key of `REGRESSOR_ALGORITHMS`.
        target_name: Name of the target, for the file and for messages.
        features: (rows, columns) of numbers; nan where a value is missing.
        target: (rows,) correctness scores in [0, 1]; nan where they are unknown.
        weight: (rows,) training weights >= 0.
        groups: (rows,) group ids; a group is never split between folds.
        params: Hyperparameters, number of folds and seed.

    Returns:
        The regressor and its out-of-fold scores.

    Raises:
        AbstainError: The target is unknown, constant or known in fewer than two groups, or features are not numbers or
            do not vary.
        ValueError: A target is outside of [0, 1].
    """
    target, weight = np.asarray(target, dtype=float), np.asarray(weight, dtype=float)
    has_features = features.notna().any(axis=1).to_numpy()
    is_fitted = ~np.isnan(target) & (weight > 0) & has_features
    _check_target(target_name, target[is_fitted])
    fold = assign_folds(target_name, groups, is_fitted, params)
    columns, dropped = select_columns(features[is_fitted])
    values = to_matrix(features, columns)
    train = RegressorTrainingSet(values[is_fitted], target[is_fitted].clip(0, 1), weight[is_fitted])
    algorithm = REGRESSOR_ALGORITHMS[kind]
    steps = algorithm.list_steps(params)
    paths = np.empty((len(steps), len(values)))
    with threadpool_limits(1):  # the order of a sum, and so its last bits, depends on the number of threads
        for fold_number in range(int(fold.max()) + 1):
            held_out = fold == fold_number
            paths[:, held_out] = algorithm.predict_path(train.subset(~held_out[is_fitted]), values[held_out], params)
        np.clip(paths, 0, 1, out=paths)
        losses = (train.weight * (paths[:, is_fitted] - train.target) ** 2).sum(axis=1)
        selected = int(losses.argmin())
        pipeline = algorithm.fit(train, steps[selected], params)
        metadata = {
            "kind": kind,
            "target": target_name,
            "columns": columns,
            "step": steps[selected],
            "rows": int(is_fitted.sum()),
            "folds": int(fold.max()) + 1,
        }
        regressor = to_onnx_regressor(pipeline, metadata)
        out_of_fold = np.where(has_features, paths[selected], np.nan)
        return FittedRegressor(regressor, out_of_fold, dropped, measure_parity(pipeline, regressor, features))


def assign_folds(target_name: str, groups: np.ndarray, is_fitted: np.ndarray, params: RegressorFit) -> np.ndarray:
    """Assign rows to `params.folds` folds of whole groups.

    There are no more folds than groups with fitted rows; groups without fitted rows are in the first fold.

    Args:
        target_name: Name of the target, for the message.
        groups: (rows,) group ids.
        is_fitted: bool (rows,) rows to fit on.
        params: Number of folds and seed.

    Returns:
        int64 (rows,) fold numbers, from 0.

    Raises:
        AbstainError: Fewer than two groups have fitted rows.
    """
    fitted_groups = np.asarray(groups)[is_fitted]
    n_groups = len(np.unique(fitted_groups))
    if n_groups < 2:
        raise AbstainError(
            Code.TOO_FEW_LABELS,
            f"a regressor is tried on groups that it has not seen, and the target {target_name} is known in only "
            f"{n_groups}: bring feedback on more groups, or change split.seed",
        )
    folds = GroupKFold(min(params.folds, n_groups), shuffle=True, random_state=params.seed)
    fold_by_group: dict[object, int] = {}
    for fold_number, (_, held_out) in enumerate(folds.split(fitted_groups, groups=fitted_groups)):
        fold_by_group |= dict.fromkeys(fitted_groups[held_out], fold_number)
    return np.array([fold_by_group.get(group, 0) for group in groups], dtype=np.int64)


def _check_target(name: str, values: np.ndarray) -> None:
    remedy = "bring other feedback, or take it out of regressors.targets"
    if not len(values):
        raise AbstainError(Code.TOO_FEW_LABELS, f"the target {name} is known for no training answer: {remedy}")
    if values.min() < -1e-6 or values.max() > 1 + 1e-6:  # a cosine may be a rounding error above 1
        raise ValueError(f"{name} is {values.min():g} to {values.max():g}, a correctness score lies in [0, 1]")
    if not is_varying(values):
        raise AbstainError(
            Code.NOT_TRAINABLE, f"the target {name} is {values[0]:g} for all {len(values)} training answers: {remedy}"
        )
