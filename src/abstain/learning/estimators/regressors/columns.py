"""The feature matrix on which regressors are fitted and predict, from features by name.

Notes:

* Numbers are float32 before fitting: the ONNX file computes in float32, so a tree's threshold lies between the same
  numbers in fitting and in serving.
* Constant columns are dropped by name and reported: in a forest they would take the place of informative ones. Missing
  values of other columns stay nan here; the regressor itself imputes the training rows' median (`kinds`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd

from abstain.core.codes import Code
from abstain.core.errors import AbstainError

MIN_RELATIVE_RANGE = 1e-5
"""Smallest range, as a share of the largest absolute value, that exceeds the rounding of float32 arithmetic."""


def select_columns(features: pd.DataFrame) -> tuple[tuple[str, ...], dict[str, float | None]]:
    """Select the columns to fit on.

    Args:
        features: (training rows, columns) of numbers; nan where a value is missing.

    Returns:
        The selected columns, and each dropped column with its only value; None if it is missing in all rows.

    Raises:
        AbstainError: No column is left, or a value is not a number (`to_matrix`).
    """
    names = [str(name) for name in features.columns]
    values = to_matrix(features, names)
    dropped: dict[str, float | None] = {}
    for name, column in zip(names, values.T, strict=True):
        finite = column[~np.isnan(column)]
        if not len(finite):
            dropped[name] = None
        elif not is_varying(finite):
            dropped[name] = float(finite[0])
    selected = tuple(name for name in names if name not in dropped)
    if not selected:
        raise AbstainError(
            Code.NOT_TRAINABLE,
            f"none of {len(names)} features varies over {len(features)} training rows: bring feedback on more answers",
        )
    return selected, dropped


def is_varying(values: np.ndarray) -> bool:
    """Return whether values differ by more than rounding.

    Args:
        values: (n,) without nan.

    Returns:
        True if the range exceeds `MIN_RELATIVE_RANGE` times the largest absolute value.
    """
    return bool(len(values)) and float(np.ptp(values)) > MIN_RELATIVE_RANGE * float(np.abs(values).max())


def to_matrix(features: pd.DataFrame, columns: Sequence[str]) -> np.ndarray:
    """Convert columns of a table, by name, to a matrix.

    Args:
        features: (rows, columns) of numbers; other columns are ignored.
        columns: Names of the columns, in the order of the result.

    Returns:
        float32 (rows, len(columns)); nan where a value is missing.

    Raises:
        AbstainError: A column is missing or duplicate, or has values that are not numbers in the range of float32.
    """
    names = [str(name) for name in features.columns]
    counts, index_by_name = Counter(names), {name: index for index, name in enumerate(names)}
    for name in columns:
        if (count := counts[name]) != 1:
            raise AbstainError(
                Code.BAD_ARTIFACT,
                f"the features have {count} columns '{name}', and a regressor needs one: compute them anew",
            )
    indices = [index_by_name[name] for name in columns]
    selected = features.iloc[:, indices]
    try:
        with np.errstate(over="ignore"):  # too large values become infinite, and are rejected
            values = selected.to_numpy(np.float64, na_value=np.nan).astype(np.float32)
    except (TypeError, ValueError):
        non_numeric = next(
            name for name, index in zip(columns, indices, strict=True) if not _is_numeric(features.iloc[:, index])
        )
        raise AbstainError(
            Code.NOT_FINITE, f"the feature '{non_numeric}' is no number in every row: compute it anew"
        ) from None
    infinite = np.isinf(values).any(axis=0)
    if infinite.any():
        raise AbstainError(
            Code.NOT_FINITE,
            f"the feature '{columns[int(infinite.argmax())]}' is infinite, or beyond float32, in some row: a missing "
            "value is to be nan",
        )
    return values


def _is_numeric(column: pd.Series) -> bool:
    """Return whether `column` contains only numbers."""
    try:
        column.to_numpy(np.float64, na_value=np.nan)
    except (TypeError, ValueError):
        return False
    return True
