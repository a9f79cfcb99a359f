"""The rows of the log that ingest reads: sampled decisions, and feedback with its decision; not all traffic.

Both tables are read by their rising numbers, from the end of the last read to their end now, in pages. A row that is
written meanwhile has a higher number and comes with the next read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Row, Select, exists, func, or_, select

from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.decisions import TextState
from abstain.data.decision_log.schema import DECISIONS, FEEDBACK, read_property

PAGE_ROWS = 200
"""Maximum number of rows in memory at a time."""


@dataclass(frozen=True)
class LogPosition:
    """The position up to which a log was read.

    Attributes:
        log: Id of the log.
        decisions: Highest number of its decisions.
        feedback: Highest number of its feedback.
    """

    log: str
    decisions: int = 0
    feedback: int = 0


@dataclass(frozen=True)
class LogChange:
    """A decision, or feedback with its decision. Texts are JSON.

    Attributes:
        number: Number of the row in its table.
        kind: "decision", "thumb" or "review".
        text_state: Whether the log has the row's texts.
        content: The row; None if the log does not have its texts (any more).
        answer: For feedback, the decision's texts; None if the log does not have them.
        answer_text_state: Whether the log has them; None if it has no such decision.
    """

    number: int
    kind: Literal["decision", "thumb", "review"]
    text_state: TextState
    content: str | None
    answer: str | None = None
    answer_text_state: TextState | None = None


def read_end_position(database: LogDatabase) -> LogPosition:
    """Return the current end of the log."""
    with database.read_transaction() as connection:
        decisions = select(func.max(DECISIONS.c.seq)).scalar_subquery()
        feedback = select(func.max(FEEDBACK.c.seq)).scalar_subquery()
        highest = connection.execute(select(decisions, feedback)).one()
        return LogPosition(read_property(connection, "id") or "", highest[0] or 0, highest[1] or 0)


def iter_changes(database: LogDatabase, since: LogPosition, end: LogPosition) -> Iterator[LogChange]:
    """Iterate over the rows for ingest between two positions, decisions first.

    A decision comes if it was sampled, or if feedback on it came before it. Feedback also brings its decision, which
    may be older and not sampled.

    Args:
        database: The log.
        since: Position of the last read.
        end: Position up to which rows are read.

    Yields:
        The changes.

    Raises:
        AbstainError: The database is unavailable.
    """
    decision_columns = DECISIONS.c
    was_awaited = exists().where(
        FEEDBACK.c.interaction_id == decision_columns.interaction_id, FEEDBACK.c.seq <= since.feedback
    )
    decisions = select(decision_columns.seq, decision_columns.text_state, decision_columns.content).where(
        or_(decision_columns.sampled, was_awaited)
    )
    for row in _iter_pages(database, decisions, decision_columns.seq, since.decisions, end.decisions):
        yield LogChange(row.seq, "decision", row.text_state, row.content)
    feedback_columns = FEEDBACK.c
    joined = FEEDBACK.outerjoin(DECISIONS, feedback_columns.interaction_id == decision_columns.interaction_id)
    answer = (decision_columns.content.label("answer"), decision_columns.text_state.label("answer_text_state"))
    feedback = select(
        feedback_columns.seq, feedback_columns.kind, feedback_columns.text_state, feedback_columns.content, *answer
    ).select_from(joined)
    for row in _iter_pages(database, feedback, feedback_columns.seq, since.feedback, end.feedback):
        yield LogChange(row.seq, row.kind, row.text_state, row.content, row.answer, row.answer_text_state)


def _iter_pages(database: LogDatabase, rows: Select[Any], seq: Any, after: int, end: int) -> Iterator[Row[Any]]:
    """Iterate over the result of `rows` with numbers above `after`, up to `end`."""
    while True:
        with database.read_transaction() as connection:
            page = connection.execute(rows.where(seq > after, seq <= end).order_by(seq).limit(PAGE_ROWS)).all()
        yield from page
        if len(page) < PAGE_ROWS:
            return
        after = page[-1].seq
