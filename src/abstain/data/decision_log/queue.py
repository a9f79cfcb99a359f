"""The review queue: the sampled answers that reviewers work through on the gate's page, with their probabilities.

Notes:

* The queue contains one sample: `fill_queue` replaces it. A sample's answers may come from elsewhere than this log, so
  a row has the texts itself. It is removed with the log's texts, by an erasure, and by the next sample.
* The inclusion probability is the queue's: no caller can give one (`write_review`).
* An answer is held for some time for the reviewer who looks at it, so that two reviewers work on different ones.
  Nothing depends on it: a review counts, whoever holds the answer.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, delete, func, select, update

from abstain.core.codes import Code
from abstain.core.contracts import Interaction, Review
from abstain.core.errors import AbstainError
from abstain.core.json_lines import format_key
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.decisions import PAGE_ID_PREFIX, RecordOutcome, make_feedback_fields
from abstain.data.decision_log.schema import DECISIONS, FEEDBACK, QUEUE
from abstain.data.store.record_keys import to_microseconds

HOLD_DURATION = timedelta(minutes=30)
"""Time for which an answer is held for the reviewer who looks at it."""
_SAMPLED_PREFIX, _SELF_SELECTED_PREFIX = f"{PAGE_ID_PREFIX}sampled/", f"{PAGE_ID_PREFIX}self_selected/"


@dataclass(frozen=True)
class SampledAnswer:
    """An answer to review.

    Attributes:
        interaction: The answer.
        probability: Its inclusion probability.
    """

    interaction: Interaction
    probability: float


@dataclass(frozen=True)
class QueuedAnswer:
    """An answer of the queue.

    Attributes:
        seq: Its position.
        interaction: The answer.
        is_reviewed: Whether it has a review.
    """

    seq: int
    interaction: Interaction
    is_reviewed: bool


def fill_queue(
    database: LogDatabase, answers: Sequence[SampledAnswer], reweighted: Sequence[Review], now: datetime
) -> int:
    """Replace the queue by a new sample.

    An answer that a reviewer holds stays until it is reviewed. If the probability of an answer has changed that was
    reviewed on the page, its reviews are written again with the new one, a microsecond later.

    Args:
        database: The log.
        answers: The sample, in the order of the queue.
        reweighted: Reviews in data/ whose weight has changed; they are written again unless the log has a later one.
        now: Current time in UTC.

    Returns:
        The number of open answers.

    Raises:
        AbstainError: The database is unavailable, or PostgreSQL cannot store an id; nothing has changed.
    """
    answer_by_id = {answer.interaction.interaction_id: answer for answer in answers}
    probability_by_id = {review.interaction_id: review.inclusion_probability for review in reweighted}
    probability_by_id |= {key: answer.probability for key, answer in answer_by_id.items()}
    if not database.is_file and (invalid_ids := [key for key in probability_by_id if "\0" in key]):
        invalid_id = repr(format_key(invalid_ids[0]))
        problem = (
            f"PostgreSQL holds no NUL, as in the id {invalid_id}: leave out --queue, and have it reviewed in a workbook"
        )
        raise AbstainError(Code.INVALID_ROW, f"decision log: {problem}")
    with database.write_transaction() as connection:
        held_by_id = {
            row.interaction_id: row._asdict() for row in connection.execute(select(QUEUE).where(_is_held(now)))
        }
        last_reviews = _read_last_reviews(connection, probability_by_id)
        rows = [
            {
                "interaction_id": key,
                "probability": answer.probability,
                "sampled_at": to_microseconds(now),
                "content": answer.interaction.to_json_line(),
                "is_reviewed": key in last_reviews,
                "held_by": held_by_id[key]["held_by"] if key in held_by_id else None,
                "held_until": held_by_id[key]["held_until"] if key in held_by_id else 0,
            }
            for key, answer in answer_by_id.items()
        ]
        rows += [
            {name: row[name] for name in row if name != "seq"}
            for key, row in held_by_id.items()
            if key not in answer_by_id
        ]
        connection.execute(delete(QUEUE))
        if rows:
            connection.execute(QUEUE.insert(), rows)
        rewritten: dict[Review, str | None] = {
            review.model_copy(
                update={
                    "inclusion_probability": probability_by_id[key],
                    "reviewed_at": review.reviewed_at + timedelta(microseconds=1),
                }
            ): digest
            for key, by_reviewer in last_reviews.items()
            for review, digest in by_reviewer.values()
            if review.inclusion_probability != probability_by_id[key]
        }
        for review in reweighted:
            logged = last_reviews.get(review.interaction_id, {}).get(review.reviewer)
            if logged is None or logged[0].reviewed_at < review.reviewed_at:
                rewritten[review] = None  # of what it was before redaction nothing is known
        _rewrite_reviews(connection, rewritten, now)
    database.vacuum_removed_texts()
    return sum(not row["is_reviewed"] for row in rows)


def hold_next_open(database: LogDatabase, reviewer: str, after: int = 0) -> QueuedAnswer | None:
    """Hold the next open answer for a reviewer, and release the one that the reviewer held.

    Args:
        database: The log.
        reviewer: The reviewer.
        after: Position after which to look first; then the queue is searched from its beginning.

    Returns:
        The answer; None if no answer is open.

    Raises:
        AbstainError: The database is unavailable.
    """
    now, columns = datetime.now(UTC), QUEUE.c
    is_free = ~columns.is_reviewed & (~_is_held(now) | (columns.held_by == reviewer))
    with database.write_transaction() as connection:
        row = connection.execute(
            select(QUEUE).where(is_free).order_by(columns.seq <= after, columns.seq).limit(1)
        ).first()
        connection.execute(update(QUEUE).where(columns.held_by == reviewer).values(held_by=None, held_until=0))
        if row is None:
            return None
        until = to_microseconds(now + HOLD_DURATION)
        connection.execute(update(QUEUE).where(columns.seq == row.seq).values(held_by=reviewer, held_until=until))
    return _from_row(row)


def find_queued(database: LogDatabase, interaction_id: str) -> QueuedAnswer | None:
    """Find an answer in the queue.

    Args:
        database: The log.
        interaction_id: Id of the answer.

    Returns:
        The answer; None if it is not in the queue.

    Raises:
        AbstainError: The log cannot be read.
    """
    with database.read_transaction() as connection:
        row = connection.execute(select(QUEUE).where(QUEUE.c.interaction_id == interaction_id)).first()
    return None if row is None else _from_row(row)


def count_progress(database: LogDatabase) -> tuple[int, int]:
    """Count the answers of the queue.

    Args:
        database: The log.

    Returns:
        The number of reviewed answers, and of all.

    Raises:
        AbstainError: The log cannot be read.
    """
    columns = QUEUE.c
    with database.read_transaction() as connection:
        n_reviewed, total = connection.execute(
            select(func.count(columns.seq).filter(columns.is_reviewed), func.count(columns.seq))
        ).one()
    return n_reviewed, total


def find_reviewed_ids(database: LogDatabase) -> frozenset[str]:
    """Return the ids of all answers that were ever reviewed in the queue, as far as the log knows."""
    with database.read_transaction() as connection:
        return frozenset(connection.scalars(select(FEEDBACK.c.interaction_id).where(_is_review(_SAMPLED_PREFIX))))


def write_review(
    connection: Connection, row: Mapping[str, Any], erased_ids: Collection[str]
) -> RecordOutcome | AbstainError:
    """Write a review from the page, with the inclusion probability that its answer has or had in the queue.

    The last review of an answer by a reviewer is "duplicate" if it is repeated. A different one is recorded as well,
    and counts in its place.

    Args:
        connection: A transaction.
        row: Result of `make_feedback_fields`.
        erased_ids: Ids of erased answers.

    Returns:
        The outcome; an error if the answer was erased, or is neither in the queue nor in the log.
    """
    interaction_id = row["interaction_id"]
    probability = connection.scalar(select(QUEUE.c.probability).where(QUEUE.c.interaction_id == interaction_id))
    if probability is None:
        probability = _read_last_probability(connection, interaction_id)
    is_logged = (
        connection.scalar(select(DECISIONS.c.seq).where(DECISIONS.c.interaction_id == interaction_id)) is not None
    )
    if interaction_id in erased_ids or (probability is None and not is_logged):
        return AbstainError(Code.UNKNOWN_NAME, "this answer is in the queue no more: go on with the next one")
    review = Review.model_validate_json(row["content"])
    prefix = _make_id_prefix(review, is_sampled=probability is not None)
    columns = FEEDBACK.c
    last = (
        select(columns.digest)
        .where(columns.interaction_id == interaction_id, _is_review(prefix))
        .order_by(columns.seq.desc())
        .limit(1)
    )
    connection.execute(
        update(QUEUE)
        .where(QUEUE.c.interaction_id == interaction_id)
        .values(is_reviewed=True, held_by=None, held_until=0)
    )
    if connection.scalar(last) == row["digest"]:
        return "duplicate"
    content = review.model_copy(update={"inclusion_probability": probability}).to_json_line()
    connection.execute(FEEDBACK.insert(), [{**row, "feedback_id": prefix + secrets.token_hex(8), "content": content}])
    return "recorded"


def _read_last_probability(connection: Connection, interaction_id: str) -> float | None:
    """Return the probability of an answer's last review in the queue; None without one, or without its texts."""
    columns = FEEDBACK.c
    rows = select(columns.content).where(
        columns.interaction_id == interaction_id, columns.content.is_not(None), _is_review(_SAMPLED_PREFIX)
    )
    content = connection.scalar(rows.order_by(columns.seq.desc()).limit(1))
    return Review.model_validate_json(content).inclusion_probability if content else None


def _rewrite_reviews(connection: Connection, reviews: Mapping[Review, str | None], now: datetime) -> None:
    """Write reviews with their digests, each only once, because the log and data/ may have the same one."""
    for review, digest in reviews.items():
        row = make_feedback_fields(review, digest, now)
        content_hash = hashlib.sha256(review.to_json_line().encode()).hexdigest()[:16]
        row["feedback_id"] = f"{_make_id_prefix(review, is_sampled=True)}{content_hash}"
        if connection.scalar(select(FEEDBACK.c.seq).where(FEEDBACK.c.feedback_id == row["feedback_id"])) is None:
            connection.execute(FEEDBACK.insert(), [{**row, "content": review.to_json_line()}])


def _read_last_reviews(connection: Connection, ids: Collection[str]) -> dict[str, dict[str, tuple[Review, str | None]]]:
    """Return the last review in the queue, with its digest, by id and reviewer, for those of `ids` that have one."""
    columns = (FEEDBACK.c.interaction_id, FEEDBACK.c.content, FEEDBACK.c.digest)
    last: dict[str, dict[str, tuple[Review, str | None]]] = {}
    for key, content, digest in connection.execute(
        select(*columns).where(_is_review(_SAMPLED_PREFIX)).order_by(FEEDBACK.c.seq)
    ):
        if key in ids:
            review_by_reviewer = last.setdefault(key, {})
            if content is not None:
                review = Review.model_validate_json(content)
                review_by_reviewer[review.reviewer] = review, digest
    return last


def _make_id_prefix(review: Review, *, is_sampled: bool) -> str:
    """Return the prefix of the ids of all reviews of this answer by this reviewer."""
    key_hash = hashlib.sha256("\0".join((review.interaction_id, review.reviewer)).encode()).hexdigest()[:32]
    return f"{_SAMPLED_PREFIX if is_sampled else _SELF_SELECTED_PREFIX}{key_hash}/"


def _is_review(prefix: str) -> Any:
    """Return a condition: a review whose id begins with `prefix`, case-sensitive, which SQLite's LIKE is not."""
    return (FEEDBACK.c.kind == "review") & (func.substr(FEEDBACK.c.feedback_id, 1, len(prefix)) == prefix)


def _is_held(now: datetime) -> Any:
    return ~QUEUE.c.is_reviewed & (QUEUE.c.held_until > to_microseconds(now))


def _from_row(row: Any) -> QueuedAnswer:
    return QueuedAnswer(row.seq, Interaction.model_validate_json(row.content), row.is_reviewed)
