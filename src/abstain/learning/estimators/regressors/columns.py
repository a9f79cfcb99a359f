"""Features by name as the matrix on which regressors are fitted and predict.

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
"""Smallest range, as a share of the largest absolute value, that is more than the last bits of float32 arithmetic."""


def select_columns(features: pd.DataFrame) -> tuple[tuple[str, ...], dict[str, str]]:
    """The columns of `features` (training rows, columns) to fit on, and for each other one why it is dropped.

    Raises `AbstainError` where no column is left, and for values that are not numbers (`to_matrix`).
    """
    names = [str(name) for name in features.columns]
    values = to_matrix(features, names)
    dropped: dict[str, str] = {}
    for name, column in zip(names, values.T, strict=True):
        known = column[~np.isnan(column)]
        if not len(known):
            dropped[name] = "missing in all training rows"
        elif not is_varying(known):
            dropped[name] = f"{known[0]:g} in all training rows" + (", or missing" if len(known) < len(column) else "")
    kept = tuple(name for name in names if name not in dropped)
    if not kept:
        raise AbstainError(
            Code.NOT_TRAINABLE,
            f"none of {len(names)} features varies over {len(features)} training rows: bring feedback on more answers",
        )
    return kept, dropped


def is_varying(values: np.ndarray) -> bool:
    """Whether `values`, without nan, differ by more than rounding does."""
    return bool(len(values)) and float(np.ptp(values)) > MIN_RELATIVE_RANGE * float(np.abs(values).max())


def to_matrix(features: pd.DataFrame, columns: Sequence[str]) -> np.ndarray:
    """`columns` of `features`, by name and in this order: float32 (rows, columns), nan where a value is missing.

    Raises `AbstainError` for a missing or duplicate column, and for one with values other than numbers of float32's
    range.
    """
    names = [str(name) for name in features.columns]
    counts, place_of = Counter(names), {name: at for at, name in enumerate(names)}
    for name in columns:
        if (times := counts[name]) != 1:
            raise AbstainError(
                Code.BAD_ARTIFACT,
                f"the features have {times} columns '{name}', and a regressor needs one: compute them anew",
            )
    places = [place_of[name] for name in columns]
    wanted = features.iloc[:, places]
    try:
        with np.errstate(over="ignore"):  # too large values become infinite, and are refused
            values = wanted.to_numpy(np.float64, na_value=np.nan).astype(np.float32)
    except (TypeError, ValueError):
        bad = next(
            name for name, place in zip(columns, places, strict=True) if not _is_numeric(features.iloc[:, place])
        )
        raise AbstainError(Code.NOT_FINITE, f"the feature '{bad}' is no number in every row: compute it anew") from None
    infinite = np.isinf(values).any(axis=0)
    if infinite.any():
        raise AbstainError(
            Code.NOT_FINITE,
            f"the feature '{columns[int(infinite.argmax())]}' is infinite, or beyond float32, in some row: a missing "
            "value is to be nan",
        )
    return values


def _is_numeric(column: pd.Series) -> bool:
    """Whether `column` holds numbers alone."""
    try:
        column.to_numpy(np.float64, na_value=np.nan)
    except (TypeError, ValueError):
        return False
    return True
