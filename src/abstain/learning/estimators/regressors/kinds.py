"""The kinds of correctness regressors, by name; each is a path of growing capacity, of which `fitting` chooses a step.

The paper's is a random forest of 2100 trees (section 3.4.2); boosted trees and a ridge regression challenge it.

Notes:

* Missing values are imputed by the training rows' median for every kind: the same node in every ONNX file.
* The forests of the folds share the number of trees: it changes the smoothness of a forest, not its mean prediction,
  and with 2100 trees in each of five folds fitting would take five times as long.
* Boosting is scikit-learn's `GradientBoosting`, not the histogram variant: skl2onnx 1.20 writes no file of the latter
  with current protobuf, and may round its thresholds to the wrong side of a feature. With thousands of rows the former
  is fast enough.
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

ROUNDS = 300
"""Most trees that are boosted; how many is chosen on the folds."""
PENALTIES = np.logspace(1, -4, 11)
"""Ridge penalties from the strongest on, a row of weight 1: a data set of any size is penalised alike."""


@dataclass(frozen=True)
class RegressorTrainingSet:
    """The training set: `features` float32 (rows, columns), `target` in [0, 1] and `weight` above 0, (rows,)."""

    features: np.ndarray
    target: np.ndarray
    weight: np.ndarray

    def subset(self, chosen: np.ndarray) -> RegressorTrainingSet:
        return RegressorTrainingSet(self.features[chosen], self.target[chosen], self.weight[chosen])


class RegressorAlgorithm(Protocol):
    """A kind of regressor: pipelines from features with nan to a score that need not lie in [0, 1] yet."""

    def steps(self, params: RegressorFit) -> tuple[float, ...]:
        """The hyperparameter values of the path, in order of growing capacity."""

    def path(self, train: RegressorTrainingSet, held_out: np.ndarray, params: RegressorFit) -> np.ndarray:
        """Scores (steps, held-out rows) of `held_out`, features (rows, columns), at every step."""

    def fit(self, train: RegressorTrainingSet, step: float, params: RegressorFit) -> Pipeline:
        """The pipeline at `step`, fitted on all of `train`."""


class RandomForest:
    """The paper's; its path is of one step."""

    def steps(self, params: RegressorFit) -> tuple[float, ...]:
        return (params.trees,)

    def path(self, train: RegressorTrainingSet, held_out: np.ndarray, params: RegressorFit) -> np.ndarray:
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
        forest.n_jobs = 1  # threads that ask the trees add up in any order, and the last bits with it
        return pipeline


class GradientBoosting:
    """Shallow trees, each on half of the rows; the steps of the path are the boosting rounds."""

    def steps(self, params: RegressorFit) -> tuple[float, ...]:
        return tuple(range(1, ROUNDS + 1))

    def path(self, train: RegressorTrainingSet, held_out: np.ndarray, params: RegressorFit) -> np.ndarray:
        fill, boosted = (part for _, part in self.fit(train, ROUNDS, params).steps)
        return np.stack(list(boosted.staged_predict(fill.transform(held_out))))

    def fit(self, train: RegressorTrainingSet, step: float, params: RegressorFit) -> Pipeline:
        boosted = GradientBoostingRegressor(
            n_estimators=int(step),
            learning_rate=0.05,
            max_depth=4,
            subsample=0.5 if len(train.target) > 1 else 1.0,
            max_features=params.max_features,
            min_samples_leaf=params.min_leaf,
            random_state=params.seed,
        )
        return _fit_pipeline(train, ("regressor", boosted))


class Linear:
    """Ridge regression on standardised features; the steps of the path are ever weaker penalties."""

    def steps(self, params: RegressorFit) -> tuple[float, ...]:
        return tuple(PENALTIES.tolist())

    def path(self, train: RegressorTrainingSet, held_out: np.ndarray, params: RegressorFit) -> np.ndarray:
        return np.stack([self.fit(train, step, params).predict(held_out) for step in self.steps(params)])

    def fit(self, train: RegressorTrainingSet, step: float, params: RegressorFit) -> Pipeline:
        # In float64: hundreds of features that nearly repeat each other are too much for float32's normal equations.
        exact = RegressorTrainingSet(train.features.astype(np.float64), train.target, train.weight)
        return _fit_pipeline(exact, ("scale", StandardScaler()), ("regressor", Ridge(alpha=step * len(train.target))))


REGRESSOR_ALGORITHMS: Mapping[RegressorKind, RegressorAlgorithm] = {
    "random_forest": RandomForest(),
    "gradient_boosting": GradientBoosting(),
    "linear": Linear(),
}


def _fit_pipeline(train: RegressorTrainingSet, *parts: tuple[str, Any]) -> Pipeline:
    """Median, then `parts`, all of them fitted to weights whose mean is 1.

    In a fold a column may have no value at all: it is 0 there.
    """
    fill = SimpleImputer(strategy="median", keep_empty_features=True)
    weight = train.weight / train.weight.mean()
    pipeline = Pipeline([("fill", fill), *parts])
    return pipeline.fit(train.features, train.target, **{f"{name}__sample_weight": weight for name, _ in parts})
