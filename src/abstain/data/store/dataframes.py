"""The data folder as data frames: the columns of labels, splits, reviews and reports, without the texts.

They are read as a stream, part by part: a row takes some hundred bytes here, so a million rows fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from abstain.core.contracts import Interaction, Review, Thumb
from abstain.data.store.dataset import DataStore
from abstain.data.store.record_keys import StoredRow

INTERACTION_DTYPES = {
    "interaction_id": "str",
    "asked_at": "datetime64[us, UTC]",
    "group": "str",
    "product": "str",
    "line_of_business": "str",
    "display": "str",
    "propensity": "float64",
    "batch": "str",
}
THUMB_DTYPES = {"interaction_id": "str", "given_at": "datetime64[us, UTC]", "thumb": "str", "user": "str"}
REVIEW_DTYPES = {
    "interaction_id": "str",
    "reviewed_at": "datetime64[us, UTC]",
    "reviewer": "str",
    "complete": "bool",
    "correct": "bool",
    "truthful": "bool",
    "inclusion_probability": "float64",
    "batch": "str",
}


@dataclass(frozen=True)
class StoreFrames:
    """The three tables, with rows in order of arrival.

    Attributes:
        interactions: Columns `INTERACTION_DTYPES`; `group` may not straddle splits and is never missing.
        thumbs: Columns `THUMB_DTYPES`.
        reviews: Columns `REVIEW_DTYPES`.
    """

    interactions: pd.DataFrame
    thumbs: pd.DataFrame
    reviews: pd.DataFrame


def read_frames(store: DataStore) -> StoreFrames:
    """Read the columns of all rows in a store.

    Raises:
        AbstainError: A row is broken; the message names file and line.
    """
    return StoreFrames(
        _read_frame(store, Interaction, INTERACTION_DTYPES),
        _read_frame(store, Thumb, THUMB_DTYPES),
        _read_frame(store, Review, REVIEW_DTYPES),
    )


def _read_frame(store: DataStore, contract: type[StoredRow], columns: dict[str, str]) -> pd.DataFrame:
    parts = [
        _read_part(store.iter_part_rows(path, contract), columns, path.stem) for path in store.list_part_files(contract)
    ]
    empty = pd.DataFrame({name: pd.Series([], dtype=dtype) for name, dtype in columns.items()})
    return pd.concat(parts, ignore_index=True) if parts else empty


def _read_part(rows: Iterable[StoredRow], columns: dict[str, str], batch: str) -> pd.DataFrame:
    values: dict[str, list[Any]] = {name: [] for name in columns}
    for row in rows:
        for name, column in values.items():
            column.append(_get_value(row, name, batch))
    return pd.DataFrame({name: pd.Series(column, dtype=columns[name]) for name, column in values.items()})


def _get_value(row: StoredRow, name: str, batch: str) -> Any:
    if name == "batch":
        return batch
    if name == "group":
        return row.split_group if isinstance(row, Interaction) else None
    return getattr(row, name)
