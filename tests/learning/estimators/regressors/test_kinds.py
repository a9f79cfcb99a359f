import numpy as np
import pytest

from abstain.config.params import RegressorKind
from abstain.learning.estimators.regressors.columns import to_matrix
from abstain.learning.estimators.regressors.kinds import PENALTIES, REGRESSOR_ALGORITHMS, RegressorTrainingSet
from tests.learning.estimators.regressors.builders import PARAMS, make_planted
from tests.tolerance import assert_near

every_kind = pytest.mark.parametrize("kind", REGRESSOR_ALGORITHMS)


def make_training_set(rows: int, seed: int) -> RegressorTrainingSet:
    features, score, _ = make_planted(rows, seed)
    return RegressorTrainingSet(to_matrix(features, list(features)), score, np.ones(rows))


@pytest.mark.parametrize("kind", ["gradient_boosting", "linear"])
def test_predict_path_step_equals_fit_of_step(kind: RegressorKind) -> None:
    train, other = make_training_set(80, 1), make_training_set(30, 2).features
    entry = REGRESSOR_ALGORITHMS[kind]
    path, steps = entry.predict_path(train, other, PARAMS), entry.list_steps(PARAMS)
    assert path.shape == (len(steps), 30)
    for place in (0, 7, len(steps) - 1):
        np.testing.assert_allclose(path[place], entry.fit(train, steps[place], PARAMS).predict(other), atol=1e-12)


def test_predict_path_forest_uses_share_of_trees() -> None:
    train, other = make_training_set(80, 1), make_training_set(30, 2).features
    entry = REGRESSOR_ALGORITHMS["random_forest"]
    (path,) = entry.predict_path(train, other, PARAMS)
    assert entry.list_steps(PARAMS) == (40,)
    assert_near(path, entry.fit(train, 10, PARAMS).predict(other))
    assert len(entry.fit(train, 40, PARAMS).named_steps["regressor"].estimators_) == 40


@every_kind
def test_regressors_impute_training_median(kind: RegressorKind) -> None:
    train = make_training_set(80, 1)
    entry = REGRESSOR_ALGORITHMS[kind]
    pipeline = entry.fit(train, entry.list_steps(PARAMS)[-1] if kind == "linear" else 20, PARAMS)
    missing = np.full((1, 8), np.nan, np.float32)
    median = np.nanmedian(train.features, axis=0, keepdims=True)
    assert pipeline.predict(missing) == pytest.approx(pipeline.predict(median), abs=1e-6)


@every_kind
def test_regressors_follow_relative_weights(kind: RegressorKind) -> None:
    """A region in which half of the rows say 0 and half say 1, the latter with thrice the weight."""
    features = np.repeat(np.arange(4, dtype=np.float32), 60)[:, None]
    target = np.tile([0.0, 1.0], 120)
    weight = np.where(target == 1, 3.0, 1.0)
    entry = REGRESSOR_ALGORITHMS[kind]
    step = {"random_forest": 40, "gradient_boosting": 150, "linear": PENALTIES[-1]}[kind]
    asked = features[::60]
    heavy = entry.fit(RegressorTrainingSet(features, target, weight), step, PARAMS).predict(asked)
    np.testing.assert_allclose(heavy, 0.75, atol=0.1)
    same = entry.fit(RegressorTrainingSet(features, target, weight / 7), step, PARAMS).predict(asked)
    np.testing.assert_allclose(heavy, same, atol=1e-9)


@every_kind
def test_regressors_accept_empty_column(kind: RegressorKind) -> None:
    train = make_training_set(40, 1)
    train.features[:, 3] = np.nan
    entry = REGRESSOR_ALGORITHMS[kind]
    assert np.isfinite(
        entry.fit(train, entry.list_steps(PARAMS)[0], PARAMS).predict(make_training_set(10, 2).features)
    ).all()
