import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.core.errors import AbstainError
from abstain.learning.estimators.regressors.columns import is_varying, select_columns, to_matrix

NAN = float("nan")


def test_select_columns_drops_constant_columns() -> None:
    features = pd.DataFrame(
        {
            "instruction_mean": [2.5, 2.5, 2.5],
            "last_bits": np.float32([7, 7, 7]) + np.float32([0, 5e-7, -5e-7]),
            "answer_mean": [1.0, 2.0, NAN],
            "never": [NAN, NAN, NAN],
            "always_or_missing": [3.0, NAN, 3.0],
            "small": [1e-6, 2e-6, 0.0],
        }
    )
    kept, dropped = select_columns(features)
    assert kept == ("answer_mean", "small")
    assert dropped == {"instruction_mean": 2.5, "last_bits": 7.0, "never": None, "always_or_missing": 3.0}
    with pytest.raises(AbstainError, match="none of 2 features .* 3 "):
        select_columns(features[["instruction_mean", "never"]])
    with pytest.raises(AbstainError, match="none of 0 features"):
        select_columns(features[[]])


@given(st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=6), st.floats(0.001, 1000))
def test_is_varying_is_independent_of_unit(values: list[float], unit: float) -> None:
    column = np.array(values)
    if len(set(values)) == 1:
        assert not is_varying(column)
    spread = np.ptp(column) / max(abs(column).max(), 1e-300)
    if spread > 1e-4 and abs(column).max() > 1e-200:
        assert is_varying(column) and is_varying(column * unit)


def test_to_matrix_selects_by_name_as_float32() -> None:
    features = pd.DataFrame(
        {"b": [1, 2], "a": [0.1, NAN], "c": pd.array([3, None], dtype="Int64"), "d": ["x", "y"], "e": [True, False]}
    )
    values = to_matrix(features, ["a", "b", "c", "e"])
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, np.array([[0.1, 1, 3, 1], [NAN, 2, NAN, 0]], np.float32))
    assert to_matrix(features[:0], ["a"]).shape == (0, 1)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["a", "gone"], "have 0 columns 'gone'"),
        (["twice"], "have 2 columns 'twice'"),
        (["objects", "word"], "'word' is no number in every row"),  # numbers are numbers, whatever the dtype
        (["a", "endless"], "'endless' is infinite, or beyond float32"),
        (["huge"], "'huge' is infinite, or beyond float32"),
    ],
)
def test_to_matrix_invalid_column_raises(columns: list[str], message: str) -> None:
    names = ["a", "twice", "twice", "word", "endless", "huge"]
    features = pd.DataFrame([[1.0, 1, 2, "x", 1, 1e39], [2.0, 3, 4, "y", np.inf, 1]], columns=names)
    with pytest.raises(AbstainError, match=message):
        to_matrix(features.assign(objects=pd.Series([1, 2.5], dtype=object)), columns)
