"""The data folder as data frames: the columns of labels, splits, reviews and reports, without the texts.

Read as a stream, part by part: a million rows are some hundred bytes each here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from abstain.core.contracts import Interaction, Review, Thumb
from abstain.data.store.dataset import DataStore
from abstain.data.store.record_keys import Stored

INTERACTIONS = {
    "interaction_id": "str",
    "asked_at": "datetime64[us, UTC]",
    "group": "str",
    "product": "str",
    "line_of_business": "str",
    "decision": "str",
    "propensity": "float64",
    "batch": "str",
}
FEEDBACK = {"interaction_id": "str", "given_at": "datetime64[us, UTC]", "thumb": "str", "user": "str"}
REVIEWS = {
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
    """The three tables, rows in order of arrival; `group` may not straddle splits and is never missing."""

    interactions: pd.DataFrame
    thumbs: pd.DataFrame
    reviews: pd.DataFrame


def read_frames(store: DataStore) -> StoreFrames:
    """The columns of everything in `store`. Raises `AbstainError` naming file and line of a broken row."""
    return StoreFrames(
        _frame(store, Interaction, INTERACTIONS), _frame(store, Thumb, FEEDBACK), _frame(store, Review, REVIEWS)
    )


def _frame(store: DataStore, contract: type[Stored], columns: dict[str, str]) -> pd.DataFrame:
    parts = [
        _part(store.iter_part_rows(path, contract), columns, path.stem) for path in store.list_part_files(contract)
    ]
    empty = pd.DataFrame({name: pd.Series([], dtype=dtype) for name, dtype in columns.items()})
    return pd.concat(parts, ignore_index=True) if parts else empty


def _part(rows: Iterable[Stored], columns: dict[str, str], batch: str) -> pd.DataFrame:
    values: dict[str, list[Any]] = {name: [] for name in columns}
    for row in rows:
        for name, column in values.items():
            column.append(_value(row, name, batch))
    return pd.DataFrame({name: pd.Series(column, dtype=columns[name]) for name, column in values.items()})


def _value(row: Stored, name: str, batch: str) -> Any:
    if name == "batch":
        return batch
    if name == "group":
        return row.split_group if isinstance(row, Interaction) else None
    return getattr(row, name)
