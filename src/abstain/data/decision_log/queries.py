"""What the log says of itself: one decision, the newest withheld ones, and figures over time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, and_, case, func, literal, select

from abstain.core.contracts import Feedback, Review
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.decisions import LoggedDecision, Texts, read_decision, read_feedback
from abstain.data.decision_log.schema import DECISIONS, FEEDBACK
from abstain.data.store.record_keys import microseconds, moment_of

DECISION_KINDS = ("show", "abstain", "unavailable")


@dataclass(frozen=True)
class FoundDecision:
    """What is known of one decision: whether its texts are there, whether it was drawn for the data and with which
    probability, and the feedback on it whose texts are there, in the order in which it came."""

    decision: LoggedDecision
    texts: Texts
    drawn: bool
    share: float
    feedback: tuple[Feedback | Review, ...]


@dataclass(frozen=True)
class DecisionsInStep:
    """The decisions from `start` on, for one step of time: how many of each kind, and the milliseconds that half of
    them and 99 in 100 took at most (nearest rank)."""

    start: datetime
    show: int
    abstain: int
    unavailable: int
    p50_ms: float
    p99_ms: float


def find(database: LogDatabase, interaction_id: str) -> FoundDecision | None:
    """What is known of the decision on `interaction_id`; None where none was logged."""
    with database.reading() as connection:
        row = connection.execute(select(DECISIONS).where(DECISIONS.c.interaction_id == interaction_id)).first()
        replies = (
            select(FEEDBACK.c.kind, FEEDBACK.c.content)
            .where(FEEDBACK.c.interaction_id == interaction_id, FEEDBACK.c.content.is_not(None))
            .order_by(FEEDBACK.c.seq)
        )
        said = connection.execute(replies).all() if row is not None else []
    if row is None:
        return None
    feedback = tuple(read_feedback(kind, content) for kind, content in said)
    return FoundDecision(read_decision(row), row.texts, row.drawn, row.share, feedback)


def newest_withheld(database: LogDatabase, limit: int) -> list[LoggedDecision]:
    """The `limit` newest decisions by which an answer was withheld, the newest first."""
    rows = select(DECISIONS).where(DECISIONS.c.shown.is_(False)).order_by(DECISIONS.c.seq.desc()).limit(limit)
    with database.reading() as connection:
        return [read_decision(row) for row in connection.execute(rows)]


def reviewed(database: LogDatabase, interaction_ids: Collection[str]) -> frozenset[str]:
    """Those of `interaction_ids` that have a review."""
    columns = FEEDBACK.c
    rows = select(columns.interaction_id).where(
        columns.kind == "review", columns.interaction_id.in_(list(interaction_ids))
    )
    with database.reading() as connection:
        return frozenset(connection.scalars(rows))


def reviews_of_shown(database: LogDatabase, version: str, since: datetime) -> list[Review]:
    """The reviews of answers that `version` decided to show since then, in the order in which they came.

    Those whose texts are gone are left out: their verdicts went with them.
    """
    joined = FEEDBACK.join(DECISIONS, FEEDBACK.c.interaction_id == DECISIONS.c.interaction_id)
    rows = (
        select(FEEDBACK.c.kind, FEEDBACK.c.content)
        .select_from(joined)
        .where(
            FEEDBACK.c.kind == "review",
            FEEDBACK.c.content.is_not(None),
            DECISIONS.c.decision == "show",
            DECISIONS.c.version == version,
            DECISIONS.c.decided_at >= microseconds(since),
        )
        .order_by(FEEDBACK.c.seq)
    )
    with database.reading() as connection:
        found = [read_feedback(row.kind, row.content) for row in connection.execute(rows)]
    return [one for one in found if isinstance(one, Review)]


def count(database: LogDatabase, since: datetime | None = None) -> Mapping[str, int]:
    """The number of decisions of each kind since then, and that of `feedback`."""
    own, said = select(DECISIONS.c.decision, func.count()), select(func.count()).select_from(FEEDBACK)
    if since is not None:
        own = own.where(DECISIONS.c.decided_at >= microseconds(since))
        said = said.where(FEEDBACK.c.recorded_at >= microseconds(since))
    with database.reading() as connection:
        decisions = {row[0]: row[1] for row in connection.execute(own.group_by(DECISIONS.c.decision))}
        feedback = connection.scalar(said) or 0
    return {**{kind: decisions.get(kind, 0) for kind in DECISION_KINDS}, "feedback": feedback}


def over_time(database: LogDatabase, since: datetime, until: datetime, step: timedelta) -> Sequence[DecisionsInStep]:
    """The decisions from `since` on and before `until`, by `step`; a step without any is left out.

    Raises `ValueError` for a step that is not above 0.
    """
    first, length = microseconds(since), step // timedelta(microseconds=1)
    if length <= 0:
        raise ValueError(f"a step of {step}: it must be above 0")
    moment = DECISIONS.c.decided_at
    at = ((moment - first) // literal(length)).label("at")
    rank = func.row_number().over(partition_by=at, order_by=DECISIONS.c.took_ms).label("rank")
    total = func.count().over(partition_by=at).label("total")
    own = and_(moment >= first, moment < microseconds(until))
    ranked = select(at, DECISIONS.c.decision, DECISIONS.c.took_ms, rank, total).where(own).subquery()

    def number(kind: str) -> ColumnElement[int]:
        return func.count(case((ranked.c.decision == kind, 1))).label(kind)

    def percentile(percent: int) -> ColumnElement[float]:
        # The smallest rank that is at least this share of all, in whole numbers.
        is_within = ranked.c.rank * 100 >= ranked.c.total * percent
        return func.min(case((is_within, ranked.c.took_ms))).label(f"p{percent}")

    rows = select(ranked.c.at, *map(number, DECISION_KINDS), percentile(50), percentile(99))
    with database.reading() as connection:
        found = connection.execute(rows.group_by(ranked.c.at).order_by(ranked.c.at)).all()
    return [
        DecisionsInStep(moment_of(first + row.at * length), row.show, row.abstain, row.unavailable, row.p50, row.p99)
        for row in found
    ]
