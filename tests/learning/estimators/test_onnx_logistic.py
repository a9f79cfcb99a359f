import numpy as np
import pandas as pd
import pytest

from abstain.learning.estimators.fusion import Fusion
from abstain.learning.estimators.onnx_logistic import OnnxLogistic, fusion_to_onnx, logistic_to_onnx

FUSION = Fusion(("one", "two"), (0.3, -0.2), (1.5, 0.8), (0.7, 1.2), (-0.4, 0.1), intercept=0.25, strength=1.0)


def test_fusion_to_onnx_matches_fusion() -> None:
    """Scores of 0 and 1, whose log-odds are infinite, and missing ones among them."""
    drawn = np.random.default_rng(0)
    scores = drawn.random((200, 2))
    scores[:4] = [[0, 1], [1, 0], [np.nan, 0.5], [np.nan, np.nan]]
    file = OnnxLogistic(fusion_to_onnx(FUSION))
    assert file.metadata == {"names": ["one", "two"]}
    expected = FUSION.score(pd.DataFrame(scores, columns=FUSION.names))
    np.testing.assert_allclose(file.predict(scores), expected, rtol=1e-9)
    assert expected[3] == pytest.approx(1 / (1 + np.exp(-(0.25 - 0.4 + 0.1))))
    assert file.predict(scores[:0]).shape == (0,)


def test_logistic_to_onnx_matches_formula_with_metadata() -> None:
    inputs = np.random.default_rng(1).normal(size=(50, 3))
    file = OnnxLogistic(logistic_to_onnx((0.5, -1.0, 2.0), -0.3, {"refusals": ["No"]}))
    assert file.metadata == {"refusals": ["No"]}
    np.testing.assert_allclose(file.predict(inputs), 1 / (1 + np.exp(-(inputs @ [0.5, -1.0, 2.0] - 0.3))), rtol=1e-9)
