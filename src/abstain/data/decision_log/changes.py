"""What ingest takes from the log: drawn decisions, and feedback with the decision that it is of. Not all traffic.

Both tables are read by their rising numbers, from where the last reading ended to where they end now, in pages: a row
that is written meanwhile has a higher number, and comes with the next reading.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Row, Select, exists, func, or_, select

from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.decisions import TextState
from abstain.data.decision_log.schema import DECISIONS, FEEDBACK, read_property

PAGE = 200
"""Rows that are in memory at once."""


@dataclass(frozen=True)
class LogPosition:
    """How far the log `log` was read: the highest numbers of its decisions and of its feedback."""

    log: str
    decisions: int = 0
    feedback: int = 0


@dataclass(frozen=True)
class LogChange:
    """A decision, or feedback and the decision that it is of. Texts are JSON; None where the log has none (any more).

    `number` is that of the table's row; `texts` and `answer_texts` are of the row and of its decision, which is None
    where the log has none.
    """

    number: int
    kind: Literal["decision", "thumb", "review"]
    texts: TextState
    content: str | None
    answer: str | None = None
    answer_texts: TextState | None = None


def read_end_position(database: LogDatabase) -> LogPosition:
    """Where the log ends now."""
    with database.reading() as connection:
        decisions = select(func.max(DECISIONS.c.seq)).scalar_subquery()
        feedback = select(func.max(FEEDBACK.c.seq)).scalar_subquery()
        highest = connection.execute(select(decisions, feedback)).one()
        return LogPosition(read_property(connection, "id") or "", highest[0] or 0, highest[1] or 0)


def iter_changes(database: LogDatabase, since: LogPosition, end: LogPosition) -> Iterator[LogChange]:
    """What ingest takes of the rows after `since` up to `end`: decisions first.

    A decision comes where it was drawn, or where feedback on it came before it. Feedback brings its decision, too: that
    may be an older one, which was not drawn. Raises `AbstainError` where the database is away.
    """
    columns = DECISIONS.c
    was_awaited = exists().where(FEEDBACK.c.interaction_id == columns.interaction_id, FEEDBACK.c.seq <= since.feedback)
    decisions = select(columns.seq, columns.texts, columns.content).where(or_(columns.drawn, was_awaited))
    for row in _pages(database, decisions, columns.seq, since.decisions, end.decisions):
        yield LogChange(row.seq, "decision", row.texts, row.content)
    own = FEEDBACK.c
    joined = FEEDBACK.outerjoin(DECISIONS, own.interaction_id == columns.interaction_id)
    answer = (columns.content.label("answer"), columns.texts.label("answer_texts"))
    feedback = select(own.seq, own.kind, own.texts, own.content, *answer).select_from(joined)
    for row in _pages(database, feedback, own.seq, since.feedback, end.feedback):
        yield LogChange(row.seq, row.kind, row.texts, row.content, row.answer, row.answer_texts)


def _pages(database: LogDatabase, rows: Select[Any], seq: Any, after: int, end: int) -> Iterator[Row[Any]]:
    """The result of `rows` with numbers above `after`, up to `end`."""
    while True:
        with database.reading() as connection:
            page = connection.execute(rows.where(seq > after, seq <= end).order_by(seq).limit(PAGE)).all()
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1].seq
