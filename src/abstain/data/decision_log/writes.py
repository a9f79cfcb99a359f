"""The statements of one commit of the decision log: insert new rows, and handle repeated ones.

Rows of `QUEUE` are reviews that were given on the page. Decisions are written before the feedback and the calls of the
same commit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Table, delete, func, select

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.json_lines import format_key
from abstain.data.decision_log.decisions import RecordOutcome
from abstain.data.decision_log.erasure import ERASED_FIELDS, find_erased_users
from abstain.data.decision_log.queue import write_review
from abstain.data.decision_log.schema import CALLS, DECISIONS, FEEDBACK, QUEUE, SHADOWS
from abstain.data.store.record_keys import to_microseconds

Outcome = RecordOutcome | AbstainError
Fields = dict[str, Any]

MAX_CALLS = 10_000
"""Maximum number of registered calls of all owners; the oldest are removed first."""


def write_rows(connection: Connection, rows: Sequence[tuple[Table, Fields]], max_calls_per_owner: int) -> list[Outcome]:
    """Write the rows that are new.

    Args:
        connection: A transaction.
        rows: Pairs of a table and a row of it.
        max_calls_per_owner: Maximum number of registered calls of one owner.

    Returns:
        The outcome of each row, in order.
    """

    def select_rows(table: Table) -> list[Fields]:
        return [row for row_table, row in rows if row_table is table]

    erased = find_erased_users(connection, {str(row["user"]) for _, row in rows if row.get("user")})
    erased_ids = _find_erased_ids(
        connection, [row["interaction_id"] for table in (FEEDBACK, QUEUE, SHADOWS) for row in select_rows(table)]
    )
    outcomes = {
        DECISIONS: iter(_write_decisions(connection, select_rows(DECISIONS), erased, erased_ids)),
        FEEDBACK: iter(_write_feedback(connection, select_rows(FEEDBACK), erased, erased_ids)),
        QUEUE: iter([write_review(connection, row, erased_ids) for row in select_rows(QUEUE)]),
    }
    _write_calls(connection, select_rows(CALLS), erased, max_calls_per_owner)
    _write_shadows(connection, [row for row in select_rows(SHADOWS) if row["interaction_id"] not in erased_ids])
    return [next(outcomes[table]) if table in outcomes else "recorded" for table, _ in rows]


def _write_decisions(
    connection: Connection, rows: Sequence[Fields], erased_users: Mapping[str, bool], erased_ids: set[str]
) -> list[Outcome]:
    """Write decisions, and add the ids of erased answers to `erased_ids`.

    `erased_users` maps an erased user to whether their interactions are erased as well.
    """
    ids = [row["interaction_id"] for row in rows]
    digest_by_id = _read_digests(connection, DECISIONS, "interaction_id", ids)
    empty_ids = _find_empty_ids(connection, digest_by_id)
    previously_empty = frozenset(empty_ids)
    new: dict[str, Fields] = {}
    outcomes: list[Outcome] = []
    for interaction_id, row in zip(ids, rows, strict=True):
        if interaction_id in digest_by_id and interaction_id not in empty_ids:
            # An answer whose texts are gone has no digest, and cannot be told from another.
            is_same = digest_by_id[interaction_id] is not None and digest_by_id[interaction_id] == row["digest"]
            outcomes.append("duplicate" if is_same else _make_conflict_error("interaction_id", interaction_id))
            continue
        if erased_users.get(row["user"], False):
            row = {**row, **ERASED_FIELDS} | ({"reason": None} if row["code"] == Code.UNFAMILIAR else {})
            erased_ids.add(interaction_id)
        (empty_ids.add if _is_empty(row) else empty_ids.discard)(interaction_id)
        digest_by_id[interaction_id], new[interaction_id] = row["digest"], row
        outcomes.append("recorded")
    if replaced := previously_empty & new.keys():
        connection.execute(delete(DECISIONS).where(DECISIONS.c.interaction_id.in_(replaced)))
    if new:
        connection.execute(DECISIONS.insert(), list(new.values()))
    return outcomes


def _write_feedback(
    connection: Connection, rows: Sequence[Fields], erased_users: Collection[str], erased_ids: Collection[str]
) -> list[Outcome]:
    ids = [row["feedback_id"] for row in rows]
    digest_by_id = _read_digests(connection, FEEDBACK, "feedback_id", ids)
    new: list[Fields] = []
    outcomes: list[Outcome] = []
    for feedback_id, row in zip(ids, rows, strict=True):
        if feedback_id in digest_by_id:
            # Feedback whose texts are gone has no digest, and is known by its id alone.
            outcomes.append(
                "duplicate"
                if digest_by_id[feedback_id] in (row["digest"], None)
                else _make_conflict_error("feedback id", feedback_id)
            )
            continue
        is_erased = row["user"] in erased_users or row["interaction_id"] in erased_ids
        new.append({**row, **ERASED_FIELDS} if is_erased else row)
        digest_by_id[feedback_id] = new[-1]["digest"]
        outcomes.append("recorded")
    if new:
        connection.execute(FEEDBACK.insert(), new)
    return outcomes


def _read_digests(connection: Connection, table: Table, id_column: str, ids: Collection[str]) -> dict[str, str | None]:
    """Return the digests of those of `ids` that are stored; None for a digest that was removed with the texts."""
    if not ids:
        return {}
    rows = connection.execute(select(table.c[id_column], table.c.digest).where(table.c[id_column].in_(ids)))
    return {row[0]: row[1] for row in rows}


def _find_empty_ids(connection: Connection, ids: Collection[str]) -> set[str]:
    """Return those of `ids` whose decision is empty.

    A later decision replaces it under a new number, so that a reader that continues finds it.
    """
    if not ids:
        return set()
    columns = DECISIONS.c
    rows = connection.execute(
        select(columns.interaction_id, columns.decision, columns.text_state, columns.digest).where(
            columns.interaction_id.in_(ids)
        )
    )
    return {row.interaction_id for row in rows if _is_empty(row._asdict())}


def _is_empty(row: Mapping[str, Any]) -> bool:
    """Return whether a row of `DECISIONS` is of no known answer, and has no information on it."""
    return row["decision"] == "unavailable" and row["text_state"] == "none" and row["digest"] is None


def _find_erased_ids(connection: Connection, ids: Collection[str]) -> set[str]:
    if not ids:
        return set()
    is_erased = DECISIONS.c.interaction_id.in_(ids) & (DECISIONS.c.text_state == "erased")
    return set(connection.scalars(select(DECISIONS.c.interaction_id).where(is_erased)))


def _write_calls(
    connection: Connection, rows: Sequence[Fields], erased_users: Mapping[str, bool], max_per_owner: int
) -> None:
    """Write the last content of each call, and make room: at most `max_per_owner` per owner and `MAX_CALLS` in all.

    Expired calls are removed. For a user whose interactions are erased, nothing is stored.
    """
    if not rows:
        return
    columns, call_by_key = CALLS.c, {(row["owner"], row["call_id"]): row for row in rows}
    for owner in {owner for owner, _ in call_by_key}:
        ids = [call_id for call_owner, call_id in call_by_key if call_owner == owner]
        connection.execute(delete(CALLS).where(columns.owner == owner, columns.call_id.in_(ids)))
    if new_calls := [row for row in call_by_key.values() if not erased_users.get(row["user"])]:
        connection.execute(CALLS.insert(), new_calls)
    connection.execute(delete(CALLS).where(columns.expires_at <= to_microseconds(datetime.now(UTC))))
    for owner in {owner for owner, _ in call_by_key}:
        newest = select(columns.seq).where(columns.owner == owner).order_by(columns.seq.desc())
        first_over = connection.scalar(newest.offset(max_per_owner).limit(1)) or 0
        connection.execute(delete(CALLS).where(columns.owner == owner, columns.seq <= first_over))
    if (excess := (connection.scalar(select(func.count()).select_from(CALLS)) or 0) - MAX_CALLS) > 0:
        connection.execute(
            delete(CALLS).where(columns.seq.in_(select(columns.seq).order_by(columns.seq).limit(excess)))
        )


def _write_shadows(connection: Connection, rows: Sequence[Fields]) -> None:
    """Write the rows that are not stored yet; the first of an answer and a candidate stays."""
    if not rows:
        return
    columns = SHADOWS.c
    is_in_rows = columns.interaction_id.in_([row["interaction_id"] for row in rows])
    existing = {
        tuple(row) for row in connection.execute(select(columns.interaction_id, columns.candidate).where(is_in_rows))
    }
    new = {(row["interaction_id"], row["candidate"]): row for row in reversed(rows)}
    if fresh := [row for key, row in new.items() if key not in existing]:
        connection.execute(SHADOWS.insert(), fresh)


def _make_conflict_error(id_name: str, value: str) -> AbstainError:
    return AbstainError(
        Code.ID_IN_USE,
        f"the {id_name} '{format_key(value)}' was used before, with another content: give each its own id",
    )
