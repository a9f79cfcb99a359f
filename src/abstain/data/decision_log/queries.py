"""Queries of the log: one decision, the newest withheld ones, and counts over time."""

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
IDS_PER_STATEMENT = 500
"""Maximum number of ids in one statement."""


@dataclass(frozen=True)
class DecisionDetails:
    """A decision with its feedback.

    Attributes:
        decision: The decision.
        text_state: Whether the log has its texts.
        sampled: Whether it was sampled for the data.
        sampling_rate: Probability with which it was sampled.
        feedback: Feedback on it that still has its texts, in order of arrival.
    """

    decision: LoggedDecision
    text_state: TextState
    sampled: bool
    sampling_rate: float
    feedback: tuple[Thumb | Review, ...]


@dataclass(frozen=True)
class IntervalCounts:
    """The decisions of one interval.

    Counts are exact. Durations are of the nearest rank and rounded: to 0.1 below 100 ms, to 1 below 1,000 ms, otherwise
    to 10 ms.

    Attributes:
        start: Start of the interval.
        show: Number of decisions to show.
        abstain: Number of decisions to abstain.
        unavailable: Number of unavailable decisions.
        shown: Number of shown answers.
        p50_ms: Median duration in milliseconds.
        p99_ms: 99th percentile of the duration in milliseconds.
    """

    start: datetime
    show: int
    abstain: int
    unavailable: int
    shown: int
    p50_ms: float
    p99_ms: float


def get_decision(database: LogDatabase, interaction_id: str) -> DecisionDetails | None:
    """Return a decision with its feedback.

    Args:
        database: The log.
        interaction_id: Id of the interaction.

    Returns:
        The decision; None if none was logged.
    """
    with database.read_transaction() as connection:
        row = connection.execute(select(DECISIONS).where(DECISIONS.c.interaction_id == interaction_id)).first()
        feedback_query = (
            select(FEEDBACK.c.kind, FEEDBACK.c.content)
            .where(FEEDBACK.c.interaction_id == interaction_id, FEEDBACK.c.content.is_not(None))
            .order_by(FEEDBACK.c.seq)
        )
        feedback_rows = connection.execute(feedback_query).all() if row is not None else []
    if row is None:
        return None
    feedback = tuple(parse_feedback(kind, content) for kind, content in feedback_rows)
    return DecisionDetails(parse_decision_row(row), row.text_state, row.sampled, row.sampling_rate, feedback)


def list_withheld(database: LogDatabase, limit: int) -> list[LoggedDecision]:
    """List the newest decisions by which an answer was withheld.

    Args:
        database: The log.
        limit: Maximum number of decisions.

    Returns:
        The decisions, newest first.
    """
    rows = select(DECISIONS).where(DECISIONS.c.shown.is_(False)).order_by(DECISIONS.c.seq.desc()).limit(limit)
    with database.read_transaction() as connection:
        return [parse_decision_row(row) for row in connection.execute(rows)]


def find_reviewed(database: LogDatabase, interaction_ids: Collection[str]) -> frozenset[str]:
    """Find the interactions that have a review.

    Args:
        database: The log.
        interaction_ids: Ids to look up.

    Returns:
        The ids with a review.
    """
    feedback_columns = FEEDBACK.c
    rows = select(feedback_columns.interaction_id).where(
        feedback_columns.kind == "review", feedback_columns.interaction_id.in_(list(interaction_ids))
    )
    with database.read_transaction() as connection:
        return frozenset(connection.scalars(rows))


def list_reviews_of_shown(database: LogDatabase, version: str, since: datetime) -> list[Review]:
    """List the reviews of answers that a version decided to show.

    Reviews whose texts are gone are omitted, because their criteria are gone as well.

    Args:
        database: The log.
        version: The version.
        since: Earliest time of the decisions.

    Returns:
        The reviews, in order of arrival.
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
    with database.read_transaction() as connection:
        feedback = [parse_feedback(row.kind, row.content) for row in connection.execute(rows)]
    return [row for row in feedback if isinstance(row, Review)]


@dataclass(frozen=True)
class PairedDecision:
    """An answer on which both production and a shadow had a confidence.

    Attributes:
        interaction_id: Id of the answer.
        shown: Whether production decided to show it.
        confidence: Raw confidence of production.
        probability: Calibrated probability of production.
        threshold: Threshold of production.
        would_show: Whether the shadow would have shown it.
        shadow_confidence: Raw confidence of the shadow.
        shadow_probability: Calibrated probability of the shadow.
        shadow_threshold: Threshold of the shadow.
    """

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
    """List the decisions of a version in production with those of a candidate as its shadow.

    "unavailable" decisions, and answers without both confidences, are omitted.

    Args:
        database: The log.
        candidate: The candidate.
        version: The version.

    Returns:
        The pairs, in the order of the log.
    """
    decision, shadow = DECISIONS.c, SHADOWS.c
    columns = [
        decision.interaction_id,
        (decision.decision == "show").label("shown"),
        decision.confidence,
        decision.probability,
    ]
    columns += [decision.threshold, shadow.would_show, shadow.confidence.label("shadow_confidence")]
    columns += [shadow.probability.label("shadow_probability"), shadow.threshold.label("shadow_threshold")]
    rows = (
        select(*columns)
        .select_from(DECISIONS.join(SHADOWS, decision.interaction_id == shadow.interaction_id))
        .where(
            shadow.candidate == candidate,
            decision.version == version,
            decision.decision != "unavailable",
            decision.confidence.is_not(None),
            shadow.confidence.is_not(None),
        )
        .order_by(decision.seq)
    )
    with database.read_transaction() as connection:
        return [PairedDecision(**row._mapping) for row in connection.execute(rows)]


def count_decisions(database: LogDatabase, since: datetime | None = None) -> Mapping[str, int]:
    """Count decisions and feedback.

    Args:
        database: The log.
        since: Earliest time; None counts all.

    Returns:
        Kind of decision -> number, and "feedback" -> number.
    """
    decision_query, feedback_query = (
        select(DECISIONS.c.decision, func.count()),
        select(func.count()).select_from(FEEDBACK),
    )
    if since is not None:
        decision_query = decision_query.where(DECISIONS.c.decided_at >= to_microseconds(since))
        feedback_query = feedback_query.where(FEEDBACK.c.recorded_at >= to_microseconds(since))
    with database.read_transaction() as connection:
        decisions = {row[0]: row[1] for row in connection.execute(decision_query.group_by(DECISIONS.c.decision))}
        feedback = connection.scalar(feedback_query) or 0
    return {**{kind: decisions.get(kind, 0) for kind in DECISION_KINDS}, "feedback": feedback}


def count_by_interval(
    database: LogDatabase, since: datetime, until: datetime, step: timedelta
) -> Sequence[IntervalCounts]:
    """Count decisions by interval.

    Args:
        database: The log.
        since: Start of the first interval.
        until: End, exclusive.
        step: Length of an interval.

    Returns:
        The intervals that have decisions, in order.

    Raises:
        ValueError: The step is not above 0.
    """
    first, length = to_microseconds(since), step // timedelta(microseconds=1)
    if length <= 0:
        raise ValueError(f"a step of {step}: it must be above 0")
    decision = DECISIONS.c
    duration_ms = decision.duration_ms
    # The database counts, and does not sort a million rows to find two of them.
    bucket = case(
        (duration_ms < 100, func.round(duration_ms * 10) / 10),
        (duration_ms < 1000, func.round(duration_ms)),
        else_=func.round(duration_ms / 10) * 10,
    )
    interval = (decision.decided_at - first) // literal(length)
    is_within = and_(decision.decided_at >= first, decision.decided_at < to_microseconds(until))
    decisions = (
        select(interval.label("at"), bucket.label("ms"), decision.decision, decision.shown).where(is_within).subquery()
    )

    def count_if(condition: ColumnElement[bool], name: str) -> ColumnElement[int]:
        return func.count(case((condition, 1))).label(name)

    kinds = (count_if(decisions.c.decision == kind, kind) for kind in DECISION_KINDS)
    rows = select(
        decisions.c.at, decisions.c.ms, func.count().label("total"), *kinds, count_if(decisions.c.shown, "shown")
    )
    with database.read_transaction() as connection:
        buckets = connection.execute(
            rows.group_by(decisions.c.at, decisions.c.ms).order_by(decisions.c.at, decisions.c.ms)
        ).all()
    return [
        _summarize_interval(from_microseconds(first + index * length), list(group))
        for index, group in groupby(buckets, lambda row: row.at)
    ]


def _summarize_interval(start: datetime, buckets: Sequence[Row[Any]]) -> IntervalCounts:
    """Summarize the buckets of one interval, which are sorted by milliseconds."""
    totals = {name: sum(getattr(bucket, name) for bucket in buckets) for name in (*DECISION_KINDS, "shown")}
    counts = list(accumulate(bucket.total for bucket in buckets))

    def percentile(percent: int) -> float:
        # The bucket of the smallest rank that is at least this share of all, in whole numbers.
        return float(buckets[bisect_left(counts, -(-counts[-1] * percent // 100))].ms)

    return IntervalCounts(start, **totals, p50_ms=percentile(50), p99_ms=percentile(99))


def iter_decision_blocks(database: LogDatabase, block_rows: int) -> Iterator[list[Row[Any]]]:
    """Iterate over all decisions without their texts, in the order in which they were logged.

    Args:
        database: The log.
        block_rows: Maximum number of rows in memory.

    Yields:
        Lists of rows; `decided_at` is in microseconds since 1970.

    Raises:
        AbstainError: The log cannot be read.
    """
    decision, after = DECISIONS.c, 0
    columns = (
        decision.seq,
        decision.interaction_id,
        decision.decided_at,
        decision.decision,
        decision.shown,
        decision.code,
        decision.probability,
    )
    rows = select(
        *columns, decision.confidence, decision.version, decision.product, decision.sampling_rate, decision.text_state
    ).order_by(decision.seq)
    while True:
        with database.read_transaction() as connection:
            page = list(connection.execute(rows.where(decision.seq > after).limit(block_rows)))
        if page:
            yield page
        if len(page) < block_rows:
            return
        after = page[-1].seq


def list_feedback(database: LogDatabase) -> list[tuple[str, int, str]]:
    """List all feedback without its texts.

    Args:
        database: The log.

    Returns:
        (interaction_id, recorded_at in microseconds since 1970, kind), in order of arrival.
    """
    feedback_columns = FEEDBACK.c
    rows = select(feedback_columns.interaction_id, feedback_columns.recorded_at, feedback_columns.kind).order_by(
        feedback_columns.seq
    )
    with database.read_transaction() as connection:
        return [tuple(row) for row in connection.execute(rows)]


def read_interactions(database: LogDatabase, ids: Sequence[str]) -> dict[str, Interaction]:
    """Read interactions that still have their texts.

    Args:
        database: The log.
        ids: Interaction ids.

    Returns:
        Id -> interaction.
    """
    decision, interaction_by_id = DECISIONS.c, {}
    with database.read_transaction() as connection:
        for start in range(0, len(ids), IDS_PER_STATEMENT):
            is_requested = decision.interaction_id.in_(
                ids[start : start + IDS_PER_STATEMENT]
            ) & decision.content.is_not(None)
            for content in connection.scalars(select(decision.content).where(is_requested)):
                interaction = Interaction.model_validate_json(content)
                interaction_by_id[interaction.interaction_id] = interaction
    return interaction_by_id
