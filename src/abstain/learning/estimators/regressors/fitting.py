"""Grouped cross-validation of a correctness regressor on the training answers, with out-of-fold scores.

The rules are those of the probes (`cross_validation`): the validation split is not used, folds consist of whole groups,
and the step of a kind's path with the least loss over all held-out answers is kept, for the folds and for the exported
regressor. The loss is the paper's mean squared error (section 4.2), weighted.
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
from abstain.learning.estimators.regressors.onnx_regressor import OnnxRegressor, parity, to_onnx_regressor


@dataclass(frozen=True)
class FittedRegressor:
    """A regressor, fitted on all rows; `out_of_fold`, float64 (rows,) in [0, 1], their scores by regressors that were
    not fitted on their group; the columns that were `dropped`, each with its reason; and `parity`, the largest
    difference between scikit-learn's and the file's scores of the rows."""

    regressor: OnnxRegressor
    out_of_fold: np.ndarray
    dropped: Mapping[str, str]
    parity: float


def regressor_fit(params: Params) -> RegressorFit:
    """How the regressors of `params` are fitted, by the one seed of all training."""
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
    """Fit a regressor of `kind` to a correctness score (section 3.4.2 of the paper).

    Args:
        target_name: what `target` is called, for the file and for messages.
        features: (rows, columns) of numbers, nan where one is missing.
        target: (rows,) in [0, 1], nan where it is unknown. weight: (rows,). groups: (rows,).

    Rows of unknown target or of weight 0 are not fitted on, but get an out-of-fold score; rows without a single feature
    are not fitted on either, and have none (nan).
    Deterministic under `params.seed`, with any number of cores.

    Raises `AbstainError` where the target is unknown, constant or known in fewer than two groups, and for features
    that hold no numbers or do not vary; `ValueError` for targets outside of [0, 1].
    """
    target, weight = np.asarray(target, dtype=float), np.asarray(weight, dtype=float)
    read = features.notna().any(axis=1).to_numpy()
    counts = ~np.isnan(target) & (weight > 0) & read
    _check(target_name, target[counts])
    fold = assign_folds(target_name, groups, counts, params)
    columns, dropped = select_columns(features[counts])
    values = to_matrix(features, columns)
    train = RegressorTrainingSet(values[counts], target[counts].clip(0, 1), weight[counts])
    entry = REGRESSOR_ALGORITHMS[kind]
    steps = entry.steps(params)
    paths = np.empty((len(steps), len(values)))
    with threadpool_limits(1):  # the order of a sum, and so its last bits, depends on the number of threads
        for number in range(int(fold.max()) + 1):
            held_out = fold == number
            paths[:, held_out] = entry.path(train.subset(~held_out[counts]), values[held_out], params)
        np.clip(paths, 0, 1, out=paths)
        losses = (train.weight * (paths[:, counts] - train.target) ** 2).sum(axis=1)
        kept = int(losses.argmin())
        pipeline = entry.fit(train, steps[kept], params)
        described = {
            "kind": kind,
            "target": target_name,
            "columns": columns,
            "step": steps[kept],
            "rows": int(counts.sum()),
            "folds": int(fold.max()) + 1,
        }
        regressor = to_onnx_regressor(pipeline, described)
        out_of_fold = np.where(read, paths[kept], np.nan)
        return FittedRegressor(regressor, out_of_fold, dropped, parity(pipeline, regressor, features))


def assign_folds(target_name: str, groups: np.ndarray, counts: np.ndarray, params: RegressorFit) -> np.ndarray:
    """The fold of every row, int64 (rows,), counted from 0: `params.folds` of them, of whole groups.

    There are no more folds than groups with rows that count; groups without such rows are in the first one. Raises
    `AbstainError` where there are fewer than two groups.
    """
    named = np.asarray(groups)[counts]
    of_known = len(np.unique(named))
    if of_known < 2:
        raise AbstainError(
            Code.TOO_FEW_LABELS,
            f"a regressor is tried on groups that it has not seen, and the target {target_name} is known in only "
            f"{of_known}: bring feedback on more groups, or change split.seed",
        )
    folds = GroupKFold(min(params.folds, of_known), shuffle=True, random_state=params.seed)
    number_of: dict[object, int] = {}
    for number, (_, held_out) in enumerate(folds.split(named, groups=named)):
        number_of |= dict.fromkeys(named[held_out], number)
    return np.array([number_of.get(group, 0) for group in groups], dtype=np.int64)


def _check(name: str, known: np.ndarray) -> None:
    remedy = "bring other feedback, or take it out of regressors.targets"
    if not len(known):
        raise AbstainError(Code.TOO_FEW_LABELS, f"the target {name} is known for no training answer: {remedy}")
    if known.min() < -1e-6 or known.max() > 1 + 1e-6:  # a cosine may be a rounding error above 1
        raise ValueError(f"{name} is {known.min():g} to {known.max():g}, a correctness score lies in [0, 1]")
    if not is_varying(known):
        raise AbstainError(
            Code.NOT_TRAINABLE, f"the target {name} is {known[0]:g} for all {len(known)} training answers: {remedy}"
        )
