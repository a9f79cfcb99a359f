"""What the log says of itself: one decision, the newest withheld ones, and figures over time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate, groupby
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, case, func, literal, select

from abstain.core.contracts import Interaction, Review, Thumb
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.decisions import LoggedDecision, TextState, parse_decision_row, parse_feedback
from abstain.data.decision_log.schema import DECISIONS, FEEDBACK, SHADOWS
from abstain.data.store.record_keys import from_microseconds, to_microseconds

DECISION_KINDS = ("show", "abstain", "unavailable")
AT_ONCE = 500
"""Ids that one statement names."""


@dataclass(frozen=True)
class DecisionDetails:
    """What is known of one decision: whether its texts are there, whether it was drawn for the data and with which
    probability, and the feedback on it whose texts are there, in the order in which it came."""

    decision: LoggedDecision
    texts: TextState
    sampled: bool
    sampling_rate: float
    feedback: tuple[Thumb | Review, ...]


@dataclass(frozen=True)
class IntervalCounts:
    """The decisions from `start` on, for one step of time: how many of each kind, how many of the answers were shown,
    and the milliseconds that half of the decisions and 99 in 100 took at most.

    Counts are exact. The milliseconds are of the nearest rank, rounded: to 0.1 below 100, to 1 below 1,000, else to 10.
    """

    start: datetime
    show: int
    abstain: int
    unavailable: int
    shown: int
    p50_ms: float
    p99_ms: float


def get_decision(database: LogDatabase, interaction_id: str) -> DecisionDetails | None:
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
    feedback = tuple(parse_feedback(kind, content) for kind, content in said)
    return DecisionDetails(parse_decision_row(row), row.texts, row.drawn, row.share, feedback)


def list_withheld(database: LogDatabase, limit: int) -> list[LoggedDecision]:
    """The `limit` newest decisions by which an answer was withheld, the newest first."""
    rows = select(DECISIONS).where(DECISIONS.c.shown.is_(False)).order_by(DECISIONS.c.seq.desc()).limit(limit)
    with database.reading() as connection:
        return [parse_decision_row(row) for row in connection.execute(rows)]


def find_reviewed(database: LogDatabase, interaction_ids: Collection[str]) -> frozenset[str]:
    """Those of `interaction_ids` that have a review."""
    columns = FEEDBACK.c
    rows = select(columns.interaction_id).where(
        columns.kind == "review", columns.interaction_id.in_(list(interaction_ids))
    )
    with database.reading() as connection:
        return frozenset(connection.scalars(rows))


def list_reviews_of_shown(database: LogDatabase, version: str, since: datetime) -> list[Review]:
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
            DECISIONS.c.decided_at >= to_microseconds(since),
        )
        .order_by(FEEDBACK.c.seq)
    )
    with database.reading() as connection:
        found = [parse_feedback(row.kind, row.content) for row in connection.execute(rows)]
    return [one for one in found if isinstance(one, Review)]


@dataclass(frozen=True)
class PairedDecision:
    """An answer that production showed or withheld, and that a shadow had a confidence of, too."""

    interaction_id: str
    shown: bool
    confidence: float
    probability: float | None
    threshold: float
    would_show: bool
    shadow_confidence: float
    shadow_probability: float | None
    shadow_threshold: float


def list_paired_decisions(database: LogDatabase, candidate: str, version: str) -> list[PairedDecision]:
    """What `version` has decided in production, and `candidate` as its shadow, in the order of the log.

    `unavailable` decisions and answers without a confidence of either are left out.
    """
    own, other = DECISIONS.c, SHADOWS.c
    columns = [own.interaction_id, (own.decision == "show").label("shown"), own.confidence, own.probability]
    columns += [own.threshold, other.would_show, other.confidence.label("shadow_confidence")]
    columns += [other.probability.label("shadow_probability"), other.threshold.label("shadow_threshold")]
    rows = (
        select(*columns)
        .select_from(DECISIONS.join(SHADOWS, own.interaction_id == other.interaction_id))
        .where(
            other.candidate == candidate,
            own.version == version,
            own.decision != "unavailable",
            own.confidence.is_not(None),
            other.confidence.is_not(None),
        )
        .order_by(own.seq)
    )
    with database.reading() as connection:
        return [PairedDecision(**row._mapping) for row in connection.execute(rows)]


def count_decisions(database: LogDatabase, since: datetime | None = None) -> Mapping[str, int]:
    """The number of decisions of each kind since then, and that of `feedback`."""
    own, said = select(DECISIONS.c.decision, func.count()), select(func.count()).select_from(FEEDBACK)
    if since is not None:
        own = own.where(DECISIONS.c.decided_at >= to_microseconds(since))
        said = said.where(FEEDBACK.c.recorded_at >= to_microseconds(since))
    with database.reading() as connection:
        decisions = {row[0]: row[1] for row in connection.execute(own.group_by(DECISIONS.c.decision))}
        feedback = connection.scalar(said) or 0
    return {**{kind: decisions.get(kind, 0) for kind in DECISION_KINDS}, "feedback": feedback}


def count_by_interval(
    database: LogDatabase, since: datetime, until: datetime, step: timedelta
) -> Sequence[IntervalCounts]:
    """The decisions from `since` on and before `until`, by `step`; a step without any is left out.

    Raises `ValueError` for a step that is not above 0.
    """
    first, length = to_microseconds(since), step // timedelta(microseconds=1)
    if length <= 0:
        raise ValueError(f"a step of {step}: it must be above 0")
    own = DECISIONS.c
    took = own.took_ms
    # The database counts, and does not sort a million rows to find two of them.
    bucket = case(
        (took < 100, func.round(took * 10) / 10), (took < 1000, func.round(took)), else_=func.round(took / 10) * 10
    )
    at = (own.decided_at - first) // literal(length)
    is_within = and_(own.decided_at >= first, own.decided_at < to_microseconds(until))
    each = select(at.label("at"), bucket.label("ms"), own.decision, own.shown).where(is_within).subquery()

    def number(condition: ColumnElement[bool], name: str) -> ColumnElement[int]:
        return func.count(case((condition, 1))).label(name)

    kinds = (number(each.c.decision == kind, kind) for kind in DECISION_KINDS)
    rows = select(each.c.at, each.c.ms, func.count().label("total"), *kinds, number(each.c.shown, "shown"))
    with database.reading() as connection:
        found = connection.execute(rows.group_by(each.c.at, each.c.ms).order_by(each.c.at, each.c.ms)).all()
    return [_step(from_microseconds(first + at * length), list(own)) for at, own in groupby(found, lambda row: row.at)]


def _step(start: datetime, buckets: Sequence[Row[Any]]) -> IntervalCounts:
    """One step of its buckets, by rising milliseconds."""
    totals = {name: sum(getattr(one, name) for one in buckets) for name in (*DECISION_KINDS, "shown")}
    counts = list(accumulate(one.total for one in buckets))

    def percentile(percent: int) -> float:
        # The bucket of the smallest rank that is at least this share of all, in whole numbers.
        return float(buckets[bisect_left(counts, -(-counts[-1] * percent // 100))].ms)

    return IntervalCounts(start, **totals, p50_ms=percentile(50), p99_ms=percentile(99))


def iter_decision_blocks(database: LogDatabase, block: int) -> Iterator[list[Row[Any]]]:
    """All decisions without their texts, in the order in which they were logged, in lists of `block` rows.

    `decided_at` is in microseconds since 1970. Raises `AbstainError` where the log cannot be read.
    """
    own, after = DECISIONS.c, 0
    columns = (own.seq, own.interaction_id, own.decided_at, own.decision, own.shown, own.code, own.probability)
    rows = select(*columns, own.confidence, own.version, own.product, own.share, own.texts).order_by(own.seq)
    while True:
        with database.reading() as connection:
            page = list(connection.execute(rows.where(own.seq > after).limit(block)))
        if page:
            yield page
        if len(page) < block:
            return
        after = page[-1].seq


def list_feedback(database: LogDatabase) -> list[tuple[str, int, str]]:
    """(interaction_id, recorded_at in microseconds since 1970, kind) of all feedback, in the order in which it came."""
    own = FEEDBACK.c
    rows = select(own.interaction_id, own.recorded_at, own.kind).order_by(own.seq)
    with database.reading() as connection:
        return [tuple(row) for row in connection.execute(rows)]


def interactions(database: LogDatabase, ids: Sequence[str]) -> dict[str, Interaction]:
    """Those of `ids` whose texts are kept, by id."""
    own, found = DECISIONS.c, {}
    with database.reading() as connection:
        for start in range(0, len(ids), AT_ONCE):
            some = own.interaction_id.in_(ids[start : start + AT_ONCE]) & own.content.is_not(None)
            for content in connection.scalars(select(own.content).where(some)):
                row = Interaction.model_validate_json(content)
                found[row.interaction_id] = row
    return found
