"""The decision log as columns: what was decided when and under which version, and when feedback came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pandas as pd
from sqlalchemy import Row

from abstain.data.decision_log import queries
from abstain.data.decision_log.database import LogDatabase

BLOCK_ROWS = 50_000
"""Rows that are in memory as objects at once; as columns they take a tenth of that."""
COLUMNS: dict[str, Any] = {
    "seq": "int64",
    "decision": "category",
    "shown": "bool",
    "code": "category",
    "probability": "float64",
    "confidence": "float64",
    "version": "str",
    "product": "category",
    "share": "float64",
    "texts": "category",
}
NO_VERSION = "none"


@dataclass(frozen=True)
class Traffic:
    """What a log has, up to one moment.

    Attributes:
        decisions: by interaction_id, in the order of `decided_at`: `day` (midnight, UTC) and `COLUMNS`. A decision that
            was taken while nothing was live is of the version before. One from after that moment, by a clock that was
            wrong, is taken to be of that moment.
        replies: interaction_id, recorded_at, kind (thumb or review), in the order in which they came.
    """

    decisions: pd.DataFrame
    feedback: pd.DataFrame


def read_traffic(database: LogDatabase, now: datetime) -> Traffic:
    """What `database` has. Raises `AbstainError` where it cannot be read."""
    blocks = [_block(rows) for rows in queries.iter_decision_blocks(database, BLOCK_ROWS)]
    decisions = pd.concat(blocks) if blocks else _block([])
    for name, dtype in COLUMNS.items():  # blocks that differ in their categories become objects
        decisions[name] = decisions[name].astype(dtype)
    decisions["decided_at"] = decisions["decided_at"].where(decisions["decided_at"] <= now, now)
    decisions = decisions.sort_values(["decided_at", "seq"], kind="stable")
    decisions["version"] = decisions["version"].ffill().bfill().fillna(NO_VERSION)
    decisions["day"] = decisions["decided_at"].dt.floor("D")
    replies = pd.DataFrame(queries.list_feedback(database), columns=["interaction_id", "recorded_at", "kind"])
    replies["recorded_at"] = _moments(replies["recorded_at"])
    return Traffic(decisions, replies)


def _block(rows: Sequence[Row[Any]]) -> pd.DataFrame:
    names = ["interaction_id", "decided_at", *COLUMNS]
    frame = pd.DataFrame([[getattr(row, name) for name in names] for row in rows], columns=names)
    frame["decided_at"] = _moments(frame["decided_at"])
    return frame.astype(COLUMNS).set_index("interaction_id")


def _moments(microseconds: pd.Series) -> pd.Series:
    return pd.to_datetime(microseconds.astype("int64"), unit="us", utc=True)
