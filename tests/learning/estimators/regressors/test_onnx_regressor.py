from pathlib import Path

import numpy as np
import onnx
import pandas as pd
import pytest

from abstain.config.params import RegressorKind
from abstain.core.errors import AbstainError
from abstain.learning.estimators.regressors.columns import to_matrix
from abstain.learning.estimators.regressors.fitting import FittedRegressor, fit_regressor
from abstain.learning.estimators.regressors.kinds import REGRESSOR_ALGORITHMS, RegressorTrainingSet
from abstain.learning.estimators.regressors.onnx_regressor import (
    BATCH,
    OnnxRegressor,
    measure_parity,
    to_onnx_regressor,
)
from tests.learning.estimators.regressors.builders import PARAMS, make_planted
from tests.tolerance import assert_near

every_kind = pytest.mark.parametrize("kind", REGRESSOR_ALGORITHMS)


@pytest.fixture(scope="module")
def fits() -> dict[str, FittedRegressor]:
    features, score, groups = make_planted(150, 1)
    return {
        kind: fit_regressor(kind, "cosine", features, score, np.ones(150), groups, PARAMS)
        for kind in REGRESSOR_ALGORITHMS
    }


@pytest.mark.heavy
@every_kind
def test_onnx_regressor_file_round_trip(fits: dict[str, FittedRegressor], kind: RegressorKind, tmp_path: Path) -> None:
    fitted, file = fits[kind].regressor, tmp_path / "folder" / f"{kind}.onnx"
    fitted.save(file)
    loaded = OnnxRegressor(file.read_bytes())
    assert file.stat().st_size == fitted.n_bytes
    assert loaded.metadata == fitted.metadata
    assert (loaded.kind, loaded.target, loaded.columns) == (kind, "cosine", tuple(f"nll_{n}" for n in range(8)))
    assert (loaded.metadata["rows"], set(loaded.metadata["versions"])) == (150, {"scikit-learn", "skl2onnx"})
    others, _, _ = make_planted(60, 2)
    assert np.array_equal(loaded.predict(others), fitted.predict(others))
    onnx.checker.check_model(onnx.load(file), full_check=True)


@pytest.mark.heavy
@every_kind
def test_onnx_regressor_matches_scikit_learn(fits: dict[str, FittedRegressor], kind: RegressorKind) -> None:
    features, score, _ = make_planted(150, 1)
    values, regressor, entry = to_matrix(features, list(features)), fits[kind].regressor, REGRESSOR_ALGORITHMS[kind]
    pipeline, elsewhere = (
        entry.fit(RegressorTrainingSet(values, target, np.ones(150)), regressor.metadata["step"], PARAMS)
        for target in (score, 1 - score)
    )
    assert fits[kind].parity <= 1e-6
    for missing in (0.0, 0.5, 0.9):
        assert measure_parity(pipeline, regressor, make_planted(200, 5, missing=missing)[0]) <= 1e-6
    assert measure_parity(elsewhere, regressor, features) > 0.1


@pytest.mark.parametrize("kind", ["random_forest", "gradient_boosting"])
def test_to_onnx_regressor_separates_neighbouring_floats(kind: RegressorKind) -> None:
    """Two values of a feature that differ in their last bit decide the score: a threshold rounded to float32 is one of them."""
    low = np.float32(5.1)
    high = np.nextafter(low, np.float32(6))
    values = np.tile(np.array([low, high, low * 2, high * 2], np.float32), 30)[:, None]
    score, features = np.tile([0.1, 0.9, 0.2, 0.8], 30), pd.DataFrame(values, columns=["a"])
    pipeline = REGRESSOR_ALGORITHMS[kind].fit(RegressorTrainingSet(values, score, np.ones(120)), 200, PARAMS)
    regressor = to_onnx_regressor(pipeline, {"kind": kind, "target": "cosine", "columns": ["a"]})
    assert measure_parity(pipeline, regressor, features) <= 1e-5  # 200 equal trees round alike
    np.testing.assert_allclose(regressor.predict(features), score, atol=0.05)


@pytest.mark.heavy
@every_kind
def test_onnx_regressor_predict_is_batch_invariant(fits: dict[str, FittedRegressor], kind: RegressorKind) -> None:
    regressor = fits[kind].regressor
    features, _, _ = make_planted(BATCH + 30, 4)
    together = regressor.predict(features)
    assert together.shape == (BATCH + 30,) and together.dtype == np.float64
    picked = [0, 1, BATCH - 1, BATCH, BATCH + 29]
    alone = np.concatenate([regressor.predict(features[at : at + 1]) for at in picked])
    np.testing.assert_allclose(alone, together[picked], atol=1e-6)
    shuffled = features[features.columns[::-1]].assign(unheard_of="text")
    assert_near(regressor.predict(shuffled), together, np.float32)
    assert regressor.predict(features[:0]).shape == (0,)
    with pytest.raises(AbstainError, match="have 0 columns 'nll_3', and a regressor needs one: compute them anew"):
        regressor.predict(features.drop(columns="nll_3"))
    extrapolated = np.concatenate([regressor.predict(features * scale) for scale in (1e4, -1e4)])
    assert extrapolated.min() >= 0 and extrapolated.max() <= 1
    assert kind != "linear" or {0.0, 1.0} <= set(extrapolated)
