"""What one commit of the decision log writes: rows that are new, and what becomes of those that came before.

`Row` is a table and a row of it; those of `QUEUE` are reviews that were given on the page. Decisions are written before
the feedback and the calls of the same commit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Table, delete, func, select

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.json_lines import format_key
from abstain.data.decision_log.decisions import Recorded
from abstain.data.decision_log.erasure import ERASED_FIELDS, erased_users
from abstain.data.decision_log.queue import write_review
from abstain.data.decision_log.schema import CALLS, DECISIONS, FEEDBACK, QUEUE, SHADOWS
from abstain.data.store.record_keys import to_microseconds

Outcome = Recorded | AbstainError
Fields = dict[str, Any]

CALLS_KEPT = 10_000
"""The most calls of all owners whose content is remembered; the oldest go first."""


def write_rows(connection: Connection, rows: Sequence[tuple[Table, Fields]], calls_each: int) -> list[Outcome]:
    """Write what is new of `rows`; the outcome of each, in order. `calls_each`: the most calls of one owner."""

    def of(table: Table) -> list[Fields]:
        return [row for of_table, row in rows if of_table is table]

    erased = erased_users(connection, {str(row["user"]) for _, row in rows if row.get("user")})
    gone = _erased_answers(
        connection, [row["interaction_id"] for table in (FEEDBACK, QUEUE, SHADOWS) for row in of(table)]
    )
    outcomes = {
        DECISIONS: iter(_write_decisions(connection, of(DECISIONS), erased, gone)),
        FEEDBACK: iter(_write_feedback(connection, of(FEEDBACK), erased, gone)),
        QUEUE: iter([write_review(connection, row, gone) for row in of(QUEUE)]),
    }
    _write_calls(connection, of(CALLS), erased, calls_each)
    _add_shadows(connection, [row for row in of(SHADOWS) if row["interaction_id"] not in gone])
    return [next(outcomes[table]) if table in outcomes else "recorded" for table, _ in rows]


def _write_decisions(
    connection: Connection, rows: Sequence[Fields], erased: Mapping[str, bool], gone: set[str]
) -> list[Outcome]:
    """`erased`: users, and whether their interactions are erased with them. Answers of these are added to `gone`."""
    ids = [row["interaction_id"] for row in rows]
    known = _digests(connection, DECISIONS, "interaction_id", ids)
    empty = _find_empty(connection, known)
    were_empty = frozenset(empty)
    new: dict[str, Fields] = {}
    outcomes: list[Outcome] = []
    for key, row in zip(ids, rows, strict=True):
        if key in known and key not in empty:
            # An answer whose texts are gone has no digest, and cannot be told from another.
            is_same = known[key] is not None and known[key] == row["digest"]
            outcomes.append("known" if is_same else _conflict("interaction_id", key))
            continue
        if erased.get(row["user"], False):
            row = {**row, **ERASED_FIELDS}
            gone.add(key)
        (empty.add if _is_empty(row) else empty.discard)(key)
        known[key], new[key] = row["digest"], row
        outcomes.append("recorded")
    if replaced := were_empty & new.keys():
        connection.execute(delete(DECISIONS).where(DECISIONS.c.interaction_id.in_(replaced)))
    if new:
        connection.execute(DECISIONS.insert(), list(new.values()))
    return outcomes


def _write_feedback(
    connection: Connection, rows: Sequence[Fields], erased: Collection[str], gone: Collection[str]
) -> list[Outcome]:
    ids = [row["feedback_id"] for row in rows]
    known = _digests(connection, FEEDBACK, "feedback_id", ids)
    new: list[Fields] = []
    outcomes: list[Outcome] = []
    for key, row in zip(ids, rows, strict=True):
        if key in known:
            # Feedback whose texts are gone has no digest, and is known by its id alone.
            outcomes.append("known" if known[key] in (row["digest"], None) else _conflict("feedback id", key))
            continue
        is_gone = row["user"] in erased or row["interaction_id"] in gone
        new.append({**row, **ERASED_FIELDS} if is_gone else row)
        known[key] = new[-1]["digest"]
        outcomes.append("recorded")
    if new:
        connection.execute(FEEDBACK.insert(), new)
    return outcomes


def _digests(connection: Connection, table: Table, key: str, ids: Collection[str]) -> dict[str, str | None]:
    """The digests of those of `ids` that are there; None where the texts are gone."""
    if not ids:
        return {}
    rows = connection.execute(select(table.c[key], table.c.digest).where(table.c[key].in_(ids)))
    return {row[0]: row[1] for row in rows}


def _find_empty(connection: Connection, ids: Collection[str]) -> set[str]:
    """Those of `ids` whose decision is empty: a later one takes its place, under a new number, by which who reads on
    finds it."""
    if not ids:
        return set()
    own = DECISIONS.c
    rows = connection.execute(
        select(own.interaction_id, own.decision, own.texts, own.digest).where(own.interaction_id.in_(ids))
    )
    return {row.interaction_id for row in rows if _is_empty(row._asdict())}


def _is_empty(row: Mapping[str, Any]) -> bool:
    """Whether a row of `DECISIONS` is of no known answer, and says nothing of it."""
    return row["decision"] == "unavailable" and row["texts"] == "none" and row["digest"] is None


def _erased_answers(connection: Connection, ids: Collection[str]) -> set[str]:
    if not ids:
        return set()
    is_erased = DECISIONS.c.interaction_id.in_(ids) & (DECISIONS.c.texts == "erased")
    return set(connection.scalars(select(DECISIONS.c.interaction_id).where(is_erased)))


def _write_calls(connection: Connection, rows: Sequence[Fields], erased: Mapping[str, bool], most: int) -> None:
    """Write the last content of each call, and make room: no more than `most` of an owner, `CALLS_KEPT` in all, none
    that has expired.

    Of a call of a user whose interactions are erased nothing is kept.
    """
    if not rows:
        return
    own, calls = CALLS.c, {(row["owner"], row["call_id"]): row for row in rows}
    for owner in {owner for owner, _ in calls}:
        ids = [call_id for of, call_id in calls if of == owner]
        connection.execute(delete(CALLS).where(own.owner == owner, own.call_id.in_(ids)))
    if kept := [row for row in calls.values() if not erased.get(row["user"])]:
        connection.execute(CALLS.insert(), kept)
    connection.execute(delete(CALLS).where(own.expires_at <= to_microseconds(datetime.now(UTC))))
    for owner in {owner for owner, _ in calls}:
        newest = select(own.seq).where(own.owner == owner).order_by(own.seq.desc())
        first_over = connection.scalar(newest.offset(most).limit(1)) or 0
        connection.execute(delete(CALLS).where(own.owner == owner, own.seq <= first_over))
    if (excess := (connection.scalar(select(func.count()).select_from(CALLS)) or 0) - CALLS_KEPT) > 0:
        connection.execute(delete(CALLS).where(own.seq.in_(select(own.seq).order_by(own.seq).limit(excess))))


def _add_shadows(connection: Connection, rows: Sequence[Fields]) -> None:
    """Write those of `rows` that are not there yet; the first of an answer and a candidate stays."""
    if not rows:
        return
    own = SHADOWS.c
    asked = own.interaction_id.in_([row["interaction_id"] for row in rows])
    known = {tuple(row) for row in connection.execute(select(own.interaction_id, own.candidate).where(asked))}
    new = {(row["interaction_id"], row["candidate"]): row for row in reversed(rows)}
    if fresh := [row for key, row in new.items() if key not in known]:
        connection.execute(SHADOWS.insert(), fresh)


def _conflict(what: str, key: str) -> AbstainError:
    return AbstainError(
        Code.FAILED_CHECK, f"the {what} '{format_key(key)}' was used before, with another content: give each its own id"
    )
