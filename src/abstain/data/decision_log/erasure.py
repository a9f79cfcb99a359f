"""Removal of texts from the log: because their days are over, or because a user's erasure was requested.

Ids, numbers and versions stay. The user's pseudonym is removed as well, a reason that quotes the question, and the
digest that identifies a repeated row: with the key, it could confirm a guessed text. After that, no decision is
accepted under that id.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, case, delete, func, or_, select, update

from abstain.core.codes import Code
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.schema import CALLS, DECISIONS, ERASED_USERS, FEEDBACK, QUEUE, SHADOWS
from abstain.data.store.record_keys import make_interaction_identity, to_microseconds

IDS_PER_STATEMENT = 500
"""Maximum number of ids in one statement."""

ERASED_FIELDS: dict[str, Any] = {"text_state": "erased", "content": None, "digest": None, "user": None}
"""The fields of an erased row."""
_ERASED_REASON = {"reason": case((DECISIONS.c.code == Code.UNFAMILIAR.value, None), else_=DECISIONS.c.reason)}
"""The field of an erased decision besides `ERASED_FIELDS`: this code's message quotes the question."""


@dataclass(frozen=True)
class UserRows:
    """The rows of a user in the log.

    Attributes:
        feedback: Number of thumbs.
        interactions: Ids of the decisions on answers that the user asked for or rated.
        calls: Number of registered calls.
    """

    feedback: int
    interactions: frozenset[str]
    calls: int = 0

    def __bool__(self) -> bool:
        return bool(self.feedback or self.interactions or self.calls)


def find_user_rows(database: LogDatabase, names: Collection[str]) -> UserRows:
    """Find the rows of a user.

    Args:
        database: The log.
        names: All names of the user.

    Returns:
        The rows.

    Raises:
        AbstainError: The log cannot be read.
    """
    with database.read_transaction() as connection:
        return _select_user_rows(connection, names)


def erase_user(
    database: LogDatabase,
    names: Collection[str],
    pseudonyms: Collection[str],
    *,
    with_interactions: bool,
    identities: Collection[str] = frozenset(),
) -> int:
    """Remove the texts of a user, and prevent the log from storing more of them.

    The user's registered calls are removed as well.

    Args:
        database: The log.
        names: All names of the user in the log.
        pseudonyms: Names under which later rows of the user come.
        with_interactions: Whether to remove the texts of all answers that the user asked for or rated, with all
            feedback on them, shadow decisions, and their place in the review queue. If false, the log no longer tells
            who asked.
        identities: Other interactions that are removed then, by `make_interaction_identity`, in hex.

    Returns:
        The number of rows.

    Raises:
        AbstainError: The database is unavailable; nothing was removed.
    """
    # All ids are looked through before other writers have to wait. What the user says meanwhile is found below.
    other_ids = _find_ids(database, identities) if with_interactions else set()
    with database.write_transaction() as connection:
        _block_users(connection, pseudonyms, with_interactions=with_interactions)
        erased_ids = sorted(_select_user_rows(connection, names).interactions | other_ids) if with_interactions else []
        count = connection.execute(update(FEEDBACK).where(FEEDBACK.c.user.in_(names)).values(ERASED_FIELDS)).rowcount
        count += connection.execute(delete(CALLS).where(CALLS.c.user.in_(names))).rowcount
        for start in range(0, len(erased_ids), IDS_PER_STATEMENT):
            ids = erased_ids[start : start + IDS_PER_STATEMENT]
            count += connection.execute(delete(CALLS).where(CALLS.c.call_id.in_(ids))).rowcount
            count += connection.execute(delete(SHADOWS).where(SHADOWS.c.interaction_id.in_(ids))).rowcount
            count += connection.execute(delete(QUEUE).where(QUEUE.c.interaction_id.in_(ids))).rowcount
            for table in (FEEDBACK, DECISIONS):
                is_affected = table.c.interaction_id.in_(ids) & (table.c.text_state != "erased")
                values = ERASED_FIELDS | (_ERASED_REASON if table is DECISIONS else {})
                count += connection.execute(update(table).where(is_affected).values(values)).rowcount
        connection.execute(update(DECISIONS).where(DECISIONS.c.user.in_(names)).values(user=None))
    database.vacuum_removed_texts()
    return count


def purge_expired_texts(database: LogDatabase, now: datetime, keep_days: float) -> int:
    """Remove old texts, users and digests of decisions and feedback, shadow decisions, and answers of the review queue.

    Registered calls are removed after their own time.

    Args:
        database: The log.
        now: Current time in UTC.
        keep_days: Days for which texts are kept.

    Returns:
        The number of rows.

    Raises:
        AbstainError: The database is unavailable.
    """
    oldest = to_microseconds(now - timedelta(days=keep_days))
    count = 0
    with database.write_transaction() as connection:
        for table, moment in ((DECISIONS, DECISIONS.c.decided_at), (FEEDBACK, FEEDBACK.c.recorded_at)):
            has_content = or_(table.c.text_state == "kept", table.c.digest.is_not(None))
            has_data = or_(has_content, table.c.user.is_not(None))
            values = ERASED_FIELDS | (_ERASED_REASON if table is DECISIONS else {})
            values |= {"text_state": case((has_content, "expired"), else_=table.c.text_state)}
            count += connection.execute(update(table).where(moment < oldest, has_data).values(values)).rowcount
        count += connection.execute(delete(SHADOWS).where(SHADOWS.c.decided_at < oldest)).rowcount
        count += connection.execute(delete(QUEUE).where(QUEUE.c.sampled_at < oldest)).rowcount
        n_expired_calls = connection.execute(delete(CALLS).where(CALLS.c.expires_at <= to_microseconds(now))).rowcount
    if count or n_expired_calls:
        database.vacuum_removed_texts()
    return count


def find_erased_users(connection: Connection, names: Collection[str]) -> dict[str, bool]:
    """Find the users whose rows must not be stored.

    Args:
        connection: A transaction.
        names: Pseudonyms to look up.

    Returns:
        Pseudonym of each erased user -> whether the user's interactions must not be stored either.
    """
    rows = connection.execute(
        select(ERASED_USERS.c.user, ERASED_USERS.c.with_interactions).where(ERASED_USERS.c.user.in_(names))
    )
    return {row[0]: row[1] for row in rows}


def _select_user_rows(connection: Connection, names: Collection[str]) -> UserRows:
    rated_ids = connection.scalars(select(FEEDBACK.c.interaction_id).where(FEEDBACK.c.user.in_(names))).all()
    asked_ids = connection.scalars(select(DECISIONS.c.interaction_id).where(DECISIONS.c.user.in_(names))).all()
    calls = connection.scalar(select(func.count()).select_from(CALLS).where(CALLS.c.user.in_(names))) or 0
    return UserRows(len(rated_ids), frozenset((*rated_ids, *asked_ids)), calls)


def _find_ids(database: LogDatabase, identities: Collection[str]) -> set[str]:
    """Return the ids in the log that have one of `identities`; these are digests, so all ids are scanned."""
    if not identities:
        return set()
    with database.read_transaction() as connection:
        logged_ids = (
            interaction_id
            for ids in (
                select(DECISIONS.c.interaction_id).where(DECISIONS.c.text_state != "erased"),
                select(FEEDBACK.c.interaction_id).where(FEEDBACK.c.text_state != "erased"),
                select(QUEUE.c.interaction_id),
            )
            for interaction_id in connection.execution_options(yield_per=IDS_PER_STATEMENT).scalars(ids)
        )
        return {
            interaction_id
            for interaction_id in logged_ids
            if make_interaction_identity(interaction_id).hex() in identities
        }


def _block_users(connection: Connection, pseudonyms: Collection[str], *, with_interactions: bool) -> None:
    existing = find_erased_users(connection, pseudonyms)
    connection.execute(ERASED_USERS.delete().where(ERASED_USERS.c.user.in_(pseudonyms)))
    rows = [{"user": name, "with_interactions": with_interactions or existing.get(name, False)} for name in pseudonyms]
    connection.execute(ERASED_USERS.insert(), rows)
