"""Figures that leave the log: decisions and feedback whose texts are gone and whose days are over.

A row with its text stays: `erasure.purge` takes that first. So does one whose text was erased: by it the log knows that
no decision is taken under that id any more. An id whose row has gone is new again.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Table, delete, exists, func, select

from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.schema import DECISIONS, FEEDBACK
from abstain.data.store.record_keys import to_microseconds

AT_ONCE = 5_000
"""Rows of one transaction: writers wait for it."""


def count_expired(database: LogDatabase, now: datetime, keep_days: float, live: str | None) -> int:
    """The number of rows that `delete_expired` would delete. Raises `AbstainError` where the database is away."""
    with database.reading() as connection:
        return sum(
            connection.scalar(select(func.count()).select_from(table).where(condition)) or 0
            for table, condition in _expired(now, keep_days, live)
        )


def delete_expired(database: LogDatabase, now: datetime, keep_days: float, live: str | None) -> int:
    """Delete what is older than `keep_days`, but no decision of the version `live`, nor feedback on one.

    Returns the number of rows. Raises `AbstainError` where the database is away; what was deleted before stays so.
    """
    total = 0
    for table, condition in _expired(now, keep_days, live):
        some = select(table.c.seq).where(condition).limit(AT_ONCE)
        while True:
            with database.writing() as connection:
                count = connection.execute(delete(table).where(table.c.seq.in_(some))).rowcount
            total += count
            if count < AT_ONCE:
                break
    return total


def _expired(now: datetime, keep_days: float, live: str | None) -> list[tuple[Table, ColumnElement[bool]]]:
    """Per table which of its rows go. Feedback comes first: by its decision it is known whose it is."""
    oldest = to_microseconds(now - timedelta(days=keep_days))
    feedback = FEEDBACK.c.recorded_at < oldest
    decisions = DECISIONS.c.decided_at < oldest
    if live is not None:
        is_its = DECISIONS.c.interaction_id == FEEDBACK.c.interaction_id
        feedback &= ~exists().where(is_its, DECISIONS.c.version == live)
        decisions &= DECISIONS.c.version.is_(None) | (DECISIONS.c.version != live)
    return [
        (table, condition & table.c.content.is_(None) & (table.c.texts != "erased"))
        for table, condition in ((FEEDBACK, feedback), (DECISIONS, decisions))
    ]
