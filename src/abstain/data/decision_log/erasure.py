"""Texts that leave the log: because their days are over, or because a user's erasure was requested.

Ids, figures and versions stay. The user's pseudonym goes, too, and the digest by which a row that is sent again is
compared: with the key a guessed text could be confirmed by it. No decision is taken under that id from then on.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, case, delete, func, or_, select, update

from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.schema import CALLS, DECISIONS, ERASED_USERS, FEEDBACK, QUEUE, SHADOWS
from abstain.data.store.record_keys import interaction_identity, to_microseconds

AT_ONCE = 500
"""Ids that one statement names."""

ERASED_FIELDS: dict[str, Any] = {"texts": "erased", "content": None, "digest": None, "user": None}
"""What becomes of a row that is erased."""


@dataclass(frozen=True)
class UserRows:
    """What the log has of a user: the number of thumbs, the decisions on what they asked or rated, by id, and the
    number of calls that are remembered."""

    feedback: int
    interactions: frozenset[str]
    calls: int = 0

    def __bool__(self) -> bool:
        return bool(self.feedback or self.interactions or self.calls)


def find_user_rows(database: LogDatabase, names: Collection[str]) -> UserRows:
    """What the log has of the user with any of `names`. Raises `AbstainError` where it cannot be read."""
    with database.reading() as connection:
        return _rows_of(connection, names)


def erase_user(
    database: LogDatabase,
    names: Collection[str],
    pseudonyms: Collection[str],
    *,
    with_interactions: bool,
    identities: Collection[str] = frozenset(),
) -> int:
    """Remove what the user with any of `names` said, and have the log keep no more of it; returns the number of rows.

    What is remembered of their calls goes, too.

    With `with_interactions`, the texts of what the user asked or rated go, too, with all feedback on them, what a
    shadow would have decided, and their place in the review queue; without, nothing in the log tells any more who
    asked. Raises `AbstainError` where the database is away, with nothing removed.

    Args:
        pseudonyms: under which name the user's later rows come.
        identities: other interactions that go then, by `interaction_identity`, in hex.
    """
    # All ids are looked through before other writers have to wait. What the user says meanwhile is found below.
    others = _with_identities(database, identities) if with_interactions else set()
    with database.writing() as connection:
        _block_users(connection, pseudonyms, with_interactions=with_interactions)
        gone = sorted(_rows_of(connection, names).interactions | others) if with_interactions else []
        count = connection.execute(update(FEEDBACK).where(FEEDBACK.c.user.in_(names)).values(ERASED_FIELDS)).rowcount
        count += connection.execute(delete(CALLS).where(CALLS.c.user.in_(names))).rowcount
        for start in range(0, len(gone), AT_ONCE):
            ids = gone[start : start + AT_ONCE]
            count += connection.execute(delete(CALLS).where(CALLS.c.call_id.in_(ids))).rowcount
            count += connection.execute(delete(SHADOWS).where(SHADOWS.c.interaction_id.in_(ids))).rowcount
            count += connection.execute(delete(QUEUE).where(QUEUE.c.interaction_id.in_(ids))).rowcount
            for table in (FEEDBACK, DECISIONS):
                is_theirs = table.c.interaction_id.in_(ids) & (table.c.texts != "erased")
                count += connection.execute(update(table).where(is_theirs).values(ERASED_FIELDS)).rowcount
        connection.execute(update(DECISIONS).where(DECISIONS.c.user.in_(names)).values(user=None))
    database.vacuum_removed_texts()
    return count


def purge_expired_texts(database: LogDatabase, now: datetime, keep_days: float) -> int:
    """Remove texts, users and digests of decisions and feedback older than `keep_days`, what shadows would have decided
    then, and the answers that were put into the review queue then; returns the number of rows.

    What is remembered of calls goes, too, where its time is over. Raises `AbstainError` where the database is away.
    """
    oldest = to_microseconds(now - timedelta(days=keep_days))
    count = 0
    with database.writing() as connection:
        for table, moment in ((DECISIONS, DECISIONS.c.decided_at), (FEEDBACK, FEEDBACK.c.recorded_at)):
            is_known = or_(table.c.texts == "kept", table.c.digest.is_not(None))
            has_some = or_(is_known, table.c.user.is_not(None))
            values = {**ERASED_FIELDS, "texts": case((is_known, "expired"), else_=table.c.texts)}
            count += connection.execute(update(table).where(moment < oldest, has_some).values(values)).rowcount
        count += connection.execute(delete(SHADOWS).where(SHADOWS.c.decided_at < oldest)).rowcount
        count += connection.execute(delete(QUEUE).where(QUEUE.c.drawn_at < oldest)).rowcount
        over = connection.execute(delete(CALLS).where(CALLS.c.expires_at <= to_microseconds(now))).rowcount
    if count or over:
        database.vacuum_removed_texts()
    return count


def erased_users(connection: Connection, names: Collection[str]) -> dict[str, bool]:
    """Those of `names` whose rows are not kept: whether what they ask is not, either."""
    rows = connection.execute(
        select(ERASED_USERS.c.user, ERASED_USERS.c.with_interactions).where(ERASED_USERS.c.user.in_(names))
    )
    return {row[0]: row[1] for row in rows}


def _rows_of(connection: Connection, names: Collection[str]) -> UserRows:
    rated = connection.scalars(select(FEEDBACK.c.interaction_id).where(FEEDBACK.c.user.in_(names))).all()
    asked = connection.scalars(select(DECISIONS.c.interaction_id).where(DECISIONS.c.user.in_(names))).all()
    calls = connection.scalar(select(func.count()).select_from(CALLS).where(CALLS.c.user.in_(names))) or 0
    return UserRows(len(rated), frozenset((*rated, *asked)), calls)


def _with_identities(database: LogDatabase, identities: Collection[str]) -> set[str]:
    """The ids in the log that have one of `identities`: these are digests, so all ids are looked through."""
    if not identities:
        return set()
    with database.reading() as connection:
        found = (
            key
            for ids in (
                select(DECISIONS.c.interaction_id).where(DECISIONS.c.texts != "erased"),
                select(FEEDBACK.c.interaction_id).where(FEEDBACK.c.texts != "erased"),
                select(QUEUE.c.interaction_id),
            )
            for key in connection.execution_options(yield_per=AT_ONCE).scalars(ids)
        )
        return {key for key in found if interaction_identity(key).hex() in identities}


def _block_users(connection: Connection, pseudonyms: Collection[str], *, with_interactions: bool) -> None:
    before = erased_users(connection, pseudonyms)
    connection.execute(ERASED_USERS.delete().where(ERASED_USERS.c.user.in_(pseudonyms)))
    rows = [{"user": name, "with_interactions": with_interactions or before.get(name, False)} for name in pseudonyms]
    connection.execute(ERASED_USERS.insert(), rows)
