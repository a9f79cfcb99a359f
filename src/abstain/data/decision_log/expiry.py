"""Deletion of old rows from the log: decisions and feedback whose texts are gone and whose days are over.

A row with its text stays: `erasure.purge_expired_texts` takes that first. A row whose text was erased stays as well: by
it the log knows that no decision is accepted under that id. An id whose row was deleted is new again.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Table, delete, exists, func, select

from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.schema import DECISIONS, FEEDBACK
from abstain.data.store.record_keys import to_microseconds

ROWS_PER_TRANSACTION = 5_000
"""Maximum number of rows of one transaction, for which writers wait."""


def count_expired(database: LogDatabase, now: datetime, keep_days: float, live_version: str | None) -> int:
    """Count the rows that `delete_expired` would delete.

    Args:
        database: The log.
        now: Current time in UTC.
        keep_days: Days for which rows are kept.
        live_version: Version whose decisions are kept.

    Returns:
        The number of rows.

    Raises:
        AbstainError: The database is unavailable.
    """
    with database.read_transaction() as connection:
        return sum(
            connection.scalar(select(func.count()).select_from(table).where(condition)) or 0
            for table, condition in _build_conditions(now, keep_days, live_version)
        )


def delete_expired(database: LogDatabase, now: datetime, keep_days: float, live_version: str | None) -> int:
    """Delete old rows, except the decisions of one version and feedback on these.

    Args:
        database: The log.
        now: Current time in UTC.
        keep_days: Days for which rows are kept.
        live_version: Version whose decisions are kept; None keeps none.

    Returns:
        The number of rows.

    Raises:
        AbstainError: The database is unavailable; earlier transactions stay committed.
    """
    total = 0
    for table, condition in _build_conditions(now, keep_days, live_version):
        batch = select(table.c.seq).where(condition).limit(ROWS_PER_TRANSACTION)
        while True:
            with database.write_transaction() as connection:
                count = connection.execute(delete(table).where(table.c.seq.in_(batch))).rowcount
            total += count
            if count < ROWS_PER_TRANSACTION:
                break
    return total


def _build_conditions(
    now: datetime, keep_days: float, live_version: str | None
) -> list[tuple[Table, ColumnElement[bool]]]:
    """Return the condition of deletion by table. Feedback comes first, because its version is that of its decision."""
    oldest = to_microseconds(now - timedelta(days=keep_days))
    feedback = FEEDBACK.c.recorded_at < oldest
    decisions = DECISIONS.c.decided_at < oldest
    if live_version is not None:
        is_on_decision = DECISIONS.c.interaction_id == FEEDBACK.c.interaction_id
        feedback &= ~exists().where(is_on_decision, DECISIONS.c.version == live_version)
        decisions &= DECISIONS.c.version.is_(None) | (DECISIONS.c.version != live_version)
    return [
        (table, condition & table.c.content.is_(None) & (table.c.text_state != "erased"))
        for table, condition in ((FEEDBACK, feedback), (DECISIONS, decisions))
    ]
