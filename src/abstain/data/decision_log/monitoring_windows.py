"""What the monitoring found in each window of time, stored beside the decisions: who shows it reads the same rows.

A window is known by its version and its start. It is written again until it is final; there are no texts in it, and the
examples of an alarm are ids of interactions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Row, delete, select

from abstain.core.codes import Code
from abstain.core.formatting import join_words
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.schema import WINDOWS
from abstain.data.store.record_keys import from_microseconds, to_microseconds


@dataclass(frozen=True)
class Alarm:
    """What changed in a window: `what` in one line, the ids of answers that show it, and what to do."""

    code: Code
    message: str
    examples: tuple[str, ...] = ()
    remedy: str = ""

    @property
    def action(self) -> str:
        """`remedy`, by default that of the code."""
        return self.remedy or self.code.remedy

    @property
    def kind(self) -> str:
        """The kind of alarm in words, such as "promise broken"."""
        return self.code.name.replace("_", " ").lower()


@dataclass(frozen=True)
class MonitoringWindow:
    """The figures of one window, [start, end), of the decisions by one version, and its alarms.

    `figures`: JSON, as docs/monitoring.md lists them. `is_final`: it is not computed again.
    """

    version: str
    start: datetime
    end: datetime
    figures: Mapping[str, Any]
    alarms: tuple[Alarm, ...] = field(default=())
    is_final: bool = False

    @property
    def headline(self) -> str:
        """ "Quiet", or "Alarm: " and the kinds of its alarms."""
        return f"Alarm: {join_words([one.kind for one in self.alarms])}" if self.alarms else "Quiet"


def read_windows(database: LogDatabase, newest: int | None = None) -> tuple[MonitoringWindow, ...]:
    """The stored windows, or the `newest` of them, oldest first. Raises `AbstainError` where the log cannot be read."""
    rows = select(WINDOWS).order_by(WINDOWS.c.ends_at.desc(), WINDOWS.c.starts_at.desc()).limit(newest)
    with database.reading() as connection:
        found = connection.execute(rows).all()
    return tuple(map(_window, reversed(found)))


def write_windows(database: LogDatabase, windows: Sequence[MonitoringWindow]) -> None:
    """Write `windows` in place of all that are stored from the first of them on under the same version.

    Days may be joined in another way than before, where decisions came late. Raises `AbstainError` where the database
    is away: then nothing has changed.
    """
    first: dict[str, datetime] = {}
    for window in windows:
        first[window.version] = min(window.start, first.get(window.version, window.start))
    with database.writing() as connection:
        for version, start in first.items():
            is_replaced = (WINDOWS.c.version == version) & (WINDOWS.c.ends_at > to_microseconds(start))
            connection.execute(delete(WINDOWS).where(is_replaced))
        if windows:
            connection.execute(WINDOWS.insert(), [_row(window) for window in windows])


def _row(window: MonitoringWindow) -> dict[str, Any]:
    alarms = [{name: value for name, value in asdict(one).items() if name != "code"} for one in window.alarms]
    return {
        "version": window.version,
        "starts_at": to_microseconds(window.start),
        "ends_at": to_microseconds(window.end),
        "is_final": window.is_final,
        "content": json.dumps({"figures": window.figures, "alarms": alarms}, allow_nan=False),
        "alarms": " ".join(one.code.value for one in window.alarms),
    }


def _window(row: Row[Any]) -> MonitoringWindow:
    content = json.loads(row.content)
    alarms = (
        Alarm(Code(code), one["what"], tuple(one["examples"]), one["remedy"])
        for code, one in zip(row.alarms.split(), content["alarms"], strict=True)
    )
    return MonitoringWindow(
        row.version,
        from_microseconds(row.starts_at),
        from_microseconds(row.ends_at),
        content["figures"],
        tuple(alarms),
        row.is_final,
    )
