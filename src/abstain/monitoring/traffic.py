"""The decision log as columns: decisions with time and version, and times of feedback."""

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
"""Rows in memory as objects at a time; as columns they need a tenth of the memory."""
COLUMNS: dict[str, Any] = {
    "seq": "int64",
    "decision": "category",
    "shown": "bool",
    "code": "category",
    "probability": "float64",
    "confidence": "float64",
    "version": "str",
    "product": "category",
    "sampling_rate": "float64",
    "text_state": "category",
}
NO_VERSION = "none"


@dataclass(frozen=True)
class Traffic:
    """The content of a log up to some time.

    Attributes:
        decisions: Indexed by interaction_id and sorted by `decided_at`: `day` (midnight, UTC) and `COLUMNS`. A decision
            that was taken while nothing was live counts for the version before. A time after the end of the period,
            from a wrong clock, is set to the end.
        feedback: interaction_id, recorded_at and kind (thumb or review), in order of arrival.
    """

    decisions: pd.DataFrame
    feedback: pd.DataFrame


def read_traffic(database: LogDatabase, now: datetime) -> Traffic:
    """Read the decision log.

    Args:
        database: The log.
        now: End of the period (UTC).

    Returns:
        Decisions and feedback.

    Raises:
        AbstainError: The log cannot be read.
    """
    blocks = [_make_frame(rows) for rows in queries.iter_decision_blocks(database, BLOCK_ROWS)]
    decisions = pd.concat(blocks) if blocks else _make_frame([])
    for name, dtype in COLUMNS.items():  # concatenated blocks with different categories become objects
        decisions[name] = decisions[name].astype(dtype)
    decisions["decided_at"] = decisions["decided_at"].where(decisions["decided_at"] <= now, now)
    decisions = decisions.sort_values(["decided_at", "seq"], kind="stable")
    decisions["version"] = decisions["version"].ffill().bfill().fillna(NO_VERSION)
    decisions["day"] = decisions["decided_at"].dt.floor("D")
    feedback = pd.DataFrame(queries.list_feedback(database), columns=["interaction_id", "recorded_at", "kind"])
    feedback["recorded_at"] = _parse_times(feedback["recorded_at"])
    return Traffic(decisions, feedback)


def _make_frame(rows: Sequence[Row[Any]]) -> pd.DataFrame:
    names = ["interaction_id", "decided_at", *COLUMNS]
    frame = pd.DataFrame([[getattr(row, name) for name in names] for row in rows], columns=names)
    frame["decided_at"] = _parse_times(frame["decided_at"])
    return frame.astype(COLUMNS).set_index("interaction_id")


def _parse_times(microseconds: pd.Series) -> pd.Series:
    return pd.to_datetime(microseconds.astype("int64"), unit="us", utc=True)
