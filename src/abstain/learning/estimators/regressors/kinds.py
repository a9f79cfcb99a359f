"""The kinds of correctness regressors; each is a path of growing capacity, of which `fitting` selects a step.

Zhang et al. use a random forest of 2100 trees (section 3.4.2); boosted trees and a ridge regression are alternatives.

Notes:

* Missing values are imputed by the training rows' median for every kind: the same node in every ONNX file.
* The forests of the folds share the number of trees: it changes the smoothness of a forest, not its mean prediction,
  and with 2100 trees in each of five folds fitting would take five times as long.
* Boosting is scikit-learn's `GradientBoosting`, not the histogram variant: skl2onnx 1.20 cannot convert the latter with
  current protobuf, and may round its thresholds to the wrong side of a feature. With thousands of rows the former is
  fast enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Protocol

import numpy as np
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Ridge
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from abstain.config.params import RegressorFit, RegressorKind

MAX_ROUNDS = 300
"""Largest number of boosting rounds; cross-validation selects the number."""
PENALTIES = np.logspace(1, -4, 11)
"""Ridge penalties per row of weight 1, strongest first: a data set of any size is penalised alike."""


@dataclass(frozen=True)
class RegressorTrainingSet:
    """The training set of a regressor.

    Attributes:
        features: float32 (rows, columns); nan where a value is missing.
        target: (rows,) correctness scores in [0, 1].
        weight: (rows,) training weights > 0.
    """

    features: np.ndarray
    target: np.ndarray
    weight: np.ndarray

    def subset(self, mask: np.ndarray) -> RegressorTrainingSet:
        """Select rows.

        Args:
            mask: bool (rows,).

        Returns:
            The selected rows.
        """
        return RegressorTrainingSet(self.features[mask], self.target[mask], self.weight[mask])


class RegressorAlgorithm(Protocol):
    """A kind of regressor: pipelines from features with nan to a score that may still be outside of [0, 1]."""

    def list_steps(self, params: RegressorFit) -> tuple[float, ...]:
        """Return the hyperparameter values of the path, in order of growing capacity.

        Args:
            params: Hyperparameters.

        Returns:
            The values.
        """

    def predict_path(self, train: RegressorTrainingSet, held_out: np.ndarray, params: RegressorFit) -> np.ndarray:
        """Fit every step of the path and predict held-out rows.

        Args:
            train: The training set.
            held_out: float32 (held-out rows, columns).
            params: Hyperparameters.

        Returns:
            (steps, held-out rows) scores.
        """

    def fit(self, train: RegressorTrainingSet, step: float, params: RegressorFit) -> Pipeline:
        """Fit the pipeline of one step on the whole training set.

        Args:
            train: The training set.
            step: A value of `list_steps`.
            params: Hyperparameters.

        Returns:
            The fitted pipeline.
        """


class RandomForest:
    """The paper's random forest; its path has one step, the number of trees."""

    def list_steps(self, params: RegressorFit) -> tuple[float, ...]:
        return (params.trees,)

    def predict_path(self, train: RegressorTrainingSet, held_out: np.ndarray, params: RegressorFit) -> np.ndarray:
        forest = self.fit(train, ceil(params.trees / params.folds), params)
        return np.asarray(forest.predict(held_out))[None]

    def fit(self, train: RegressorTrainingSet, step: float, params: RegressorFit) -> Pipeline:
        forest = RandomForestRegressor(
            int(step),
            max_features=params.max_features,
            min_samples_leaf=params.min_leaf,
            random_state=params.seed,
            n_jobs=-1,
        )
        pipeline = _fit_pipeline(train, ("regressor", forest))
        forest.n_jobs = 1  # threads would sum the trees in any order, which changes the last bits
        return pipeline


class DefaultForest(RandomForest):
    """With scikit-learn's defaults, all features at each split and leaves of one row; the paper states none."""

    def fit(self, train: RegressorTrainingSet, step: float, params: RegressorFit) -> Pipeline:
        return super().fit(train, step, params.model_copy(update={"max_features": 1.0, "min_leaf": 1}))


class GradientBoosting:
    """Shallow trees, each on half of the rows; the steps of the path are the boosting rounds."""

    def list_steps(self, params: RegressorFit) -> tuple[float, ...]:
        return tuple(range(1, MAX_ROUNDS + 1))

    def predict_path(self, train: RegressorTrainingSet, held_out: np.ndarray, params: RegressorFit) -> np.ndarray:
        imputer, booster = (transformer for _, transformer in self.fit(train, MAX_ROUNDS, params).steps)
        return np.stack(list(booster.staged_predict(imputer.transform(held_out))))

    def fit(self, train: RegressorTrainingSet, step: float, params: RegressorFit) -> Pipeline:
        booster = GradientBoostingRegressor(
            n_estimators=int(step),
            learning_rate=0.05,
            max_depth=4,
            subsample=0.5 if len(train.target) > 1 else 1.0,
            max_features=params.max_features,
            min_samples_leaf=params.min_leaf,
            random_state=params.seed,
        )
        return _fit_pipeline(train, ("regressor", booster))


class Linear:
    """Ridge regression on standardized features; the steps of the path are ever weaker penalties."""

    def list_steps(self, params: RegressorFit) -> tuple[float, ...]:
        return tuple(PENALTIES.tolist())

    def predict_path(self, train: RegressorTrainingSet, held_out: np.ndarray, params: RegressorFit) -> np.ndarray:
        return np.stack([self.fit(train, step, params).predict(held_out) for step in self.list_steps(params)])

    def fit(self, train: RegressorTrainingSet, step: float, params: RegressorFit) -> Pipeline:
        # In float64: hundreds of features that nearly repeat each other are too much for float32's normal equations.
        float64_train = RegressorTrainingSet(train.features.astype(np.float64), train.target, train.weight)
        return _fit_pipeline(
            float64_train, ("scale", StandardScaler()), ("regressor", Ridge(alpha=step * len(train.target)))
        )


REGRESSOR_ALGORITHMS: Mapping[RegressorKind, RegressorAlgorithm] = {
    "random_forest": RandomForest(),
    "default_forest": DefaultForest(),
    "gradient_boosting": GradientBoosting(),
    "linear": Linear(),
}


def _fit_pipeline(train: RegressorTrainingSet, *steps: tuple[str, Any]) -> Pipeline:
    """Fit a median imputer and then `steps`, all of them with weights scaled to mean 1.

    In a fold a column may have no value at all; it is imputed by 0 there.
    """
    imputer = SimpleImputer(strategy="median", keep_empty_features=True)
    weight = train.weight / train.weight.mean()
    pipeline = Pipeline([("fill", imputer), *steps])
    return pipeline.fit(train.features, train.target, **{f"{name}__sample_weight": weight for name, _ in steps})
