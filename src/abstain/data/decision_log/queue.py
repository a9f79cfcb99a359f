"""The review queue: the drawn answers that reviewers work through on the gate's page, with their probabilities.

Notes:

* The queue holds one sample: `fill` replaces it. A sample's answers may come from elsewhere than this log, so a row has
  the texts itself; it goes with the days of the log's texts, with an erasure, and with the next sample.
* The inclusion probability is the queue's: no caller can give one (`write_review`).
* A reviewer holds the answer that they look at for some time, so that two reviewers work on different ones. Nothing
  rests on it: a verdict counts, whoever holds the answer.
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
from abstain.data.decision_log.decisions import OWN_IDS, Recorded, reply_row
from abstain.data.decision_log.schema import DECISIONS, FEEDBACK, QUEUE
from abstain.data.store.record_keys import to_microseconds

HELD_FOR = timedelta(minutes=30)
"""How long an answer is kept for the reviewer who looks at it."""
_DRAWN, _CHOSEN = f"{OWN_IDS}drawn/", f"{OWN_IDS}chosen/"


@dataclass(frozen=True)
class DrawnAnswer:
    """An answer to review, and the probability with which it was drawn."""

    interaction: Interaction
    probability: float


@dataclass(frozen=True)
class QueuedAnswer:
    """An answer of the queue: its place, its texts, and whether a review of it is there."""

    seq: int
    interaction: Interaction
    is_reviewed: bool


def fill(database: LogDatabase, answers: Sequence[DrawnAnswer], moved: Sequence[Review], now: datetime) -> int:
    """Make `answers` the queue, in this order, in place of what was in it; returns how many are open.

    An answer that a reviewer holds stays until it is reviewed. Where the probability of an answer has changed that was
    reviewed on the page, its reviews come again with the new one, a microsecond later; so do `moved`, reviews in data/
    whose weight has changed, unless the log has a later one.

    Raises:
        AbstainError: the database is away, or PostgreSQL cannot hold an id; then nothing has changed.
    """
    new = {answer.interaction.interaction_id: answer for answer in answers}
    weights = {review.interaction_id: review.inclusion_probability for review in moved}
    weights |= {key: answer.probability for key, answer in new.items()}
    if not database.is_file and (refused := [key for key in weights if "\0" in key]):
        key = repr(format_key(refused[0]))
        problem = f"PostgreSQL holds no NUL, as in the id {key}: leave out --queue, and have it reviewed in a workbook"
        raise AbstainError(Code.INVALID_ROW, f"decision log: {problem}")
    with database.writing() as connection:
        held = {row.interaction_id: row._asdict() for row in connection.execute(select(QUEUE).where(_is_held(now)))}
        last = _last_reviews(connection, weights)
        rows = [
            {
                "interaction_id": key,
                "probability": answer.probability,
                "drawn_at": to_microseconds(now),
                "content": answer.interaction.to_json_line(),
                "is_reviewed": key in last,
                "held_by": held[key]["held_by"] if key in held else None,
                "held_until": held[key]["held_until"] if key in held else 0,
            }
            for key, answer in new.items()
        ]
        rows += [{name: row[name] for name in row if name != "seq"} for key, row in held.items() if key not in new]
        connection.execute(delete(QUEUE))
        if rows:
            connection.execute(QUEUE.insert(), rows)
        outdated: dict[Review, str | None] = {
            review.model_copy(
                update={
                    "inclusion_probability": weights[key],
                    "reviewed_at": review.reviewed_at + timedelta(microseconds=1),
                }
            ): digest
            for key, by_reviewer in last.items()
            for review, digest in by_reviewer.values()
            if review.inclusion_probability != weights[key]
        }
        for review in moved:
            known = last.get(review.interaction_id, {}).get(review.reviewer)
            if known is None or known[0].reviewed_at < review.reviewed_at:
                outdated[review] = None  # of what it was before redaction nothing is known
        _write_again(connection, outdated, now)
    database.vacuum_removed_texts()
    return sum(not row["is_reviewed"] for row in rows)


def next_open(database: LogDatabase, reviewer: str, after: int = 0) -> QueuedAnswer | None:
    """The first open answer behind the place `after`, else the first of all, held for `reviewer`; None for none.

    What the reviewer held before is free again. Raises `AbstainError` where the database is away.
    """
    now, own = datetime.now(UTC), QUEUE.c
    is_free = ~own.is_reviewed & (~_is_held(now) | (own.held_by == reviewer))
    with database.writing() as connection:
        row = connection.execute(select(QUEUE).where(is_free).order_by(own.seq <= after, own.seq).limit(1)).first()
        connection.execute(update(QUEUE).where(own.held_by == reviewer).values(held_by=None, held_until=0))
        if row is None:
            return None
        until = to_microseconds(now + HELD_FOR)
        connection.execute(update(QUEUE).where(own.seq == row.seq).values(held_by=reviewer, held_until=until))
    return _queued(row)


def find_queued(database: LogDatabase, interaction_id: str) -> QueuedAnswer | None:
    """This answer of the queue; None where it is not in it. Raises `AbstainError` where the log cannot be read."""
    with database.reading() as connection:
        row = connection.execute(select(QUEUE).where(QUEUE.c.interaction_id == interaction_id)).first()
    return None if row is None else _queued(row)


def progress(database: LogDatabase) -> tuple[int, int]:
    """The number of reviewed answers of the queue, and that of all. Raises `AbstainError` as `find_queued`."""
    own = QUEUE.c
    with database.reading() as connection:
        done, total = connection.execute(select(func.count(own.seq).filter(own.is_reviewed), func.count(own.seq))).one()
    return done, total


def reviewed_ids(database: LogDatabase) -> frozenset[str]:
    """The answers that were reviewed in the queue at some time, as far as the log knows."""
    with database.reading() as connection:
        return frozenset(connection.scalars(select(FEEDBACK.c.interaction_id).where(_is_review(_DRAWN))))


def write_review(connection: Connection, row: Mapping[str, Any], gone: Collection[str]) -> Recorded | AbstainError:
    """Write a review that was given on the page, with the probability that its answer has in the queue, or had there.

    The last verdict of a reviewer on an answer is `known` where it comes again; another one is recorded beside it, and
    counts in its place.

    Args:
        row: of `reply_row`.
        gone: answers that were erased.
    """
    key = row["interaction_id"]
    probability = connection.scalar(select(QUEUE.c.probability).where(QUEUE.c.interaction_id == key))
    if probability is None:
        probability = _last_probability(connection, key)
    is_logged = connection.scalar(select(DECISIONS.c.seq).where(DECISIONS.c.interaction_id == key)) is not None
    if key in gone or (probability is None and not is_logged):
        return AbstainError(Code.UNKNOWN_NAME, "this answer is in the queue no more: go on with the next one")
    review = Review.model_validate_json(row["content"])
    prefix = _id_prefix(review, is_drawn=probability is not None)
    own = FEEDBACK.c
    last = select(own.digest).where(own.interaction_id == key, _is_review(prefix)).order_by(own.seq.desc()).limit(1)
    connection.execute(
        update(QUEUE).where(QUEUE.c.interaction_id == key).values(is_reviewed=True, held_by=None, held_until=0)
    )
    if connection.scalar(last) == row["digest"]:
        return "known"
    content = review.model_copy(update={"inclusion_probability": probability}).to_json_line()
    connection.execute(FEEDBACK.insert(), [{**row, "feedback_id": prefix + secrets.token_hex(8), "content": content}])
    return "recorded"


def _last_probability(connection: Connection, interaction_id: str) -> float | None:
    """With which probability an answer was reviewed in the queue last; None where it was not, or its texts are gone."""
    own = FEEDBACK.c
    rows = select(own.content).where(own.interaction_id == interaction_id, own.content.is_not(None), _is_review(_DRAWN))
    content = connection.scalar(rows.order_by(own.seq.desc()).limit(1))
    return Review.model_validate_json(content).inclusion_probability if content else None


def _write_again(connection: Connection, reviews: Mapping[Review, str | None], now: datetime) -> None:
    """Write reviews as they are, with their digests, each once: the same one may be known to the log and to data/."""
    for review, digest in reviews.items():
        row = reply_row(review, digest, now)
        mark = hashlib.sha256(review.to_json_line().encode()).hexdigest()[:16]
        row["feedback_id"] = f"{_id_prefix(review, is_drawn=True)}{mark}"
        if connection.scalar(select(FEEDBACK.c.seq).where(FEEDBACK.c.feedback_id == row["feedback_id"])) is None:
            connection.execute(FEEDBACK.insert(), [{**row, "content": review.to_json_line()}])


def _last_reviews(connection: Connection, ids: Collection[str]) -> dict[str, dict[str, tuple[Review, str | None]]]:
    """The last review that each reviewer gave in the queue of those of `ids` that have one, and its digest."""
    columns = (FEEDBACK.c.interaction_id, FEEDBACK.c.content, FEEDBACK.c.digest)
    last: dict[str, dict[str, tuple[Review, str | None]]] = {}
    for key, content, digest in connection.execute(select(*columns).where(_is_review(_DRAWN)).order_by(FEEDBACK.c.seq)):
        if key in ids:
            own = last.setdefault(key, {})
            if content is not None:
                review = Review.model_validate_json(content)
                own[review.reviewer] = review, digest
    return last


def _id_prefix(review: Review, *, is_drawn: bool) -> str:
    """How the ids of all reviews begin that this reviewer gave of this answer."""
    by = hashlib.sha256("\0".join((review.interaction_id, review.reviewer)).encode()).hexdigest()[:32]
    return f"{_DRAWN if is_drawn else _CHOSEN}{by}/"


def _is_review(prefix: str) -> Any:
    """Whether a row is a review whose id begins with `prefix`, in its case: SQLite's LIKE ignores it."""
    return (FEEDBACK.c.kind == "review") & (func.substr(FEEDBACK.c.feedback_id, 1, len(prefix)) == prefix)


def _is_held(now: datetime) -> Any:
    return ~QUEUE.c.is_reviewed & (QUEUE.c.held_until > to_microseconds(now))


def _queued(row: Any) -> QueuedAnswer:
    return QueuedAnswer(row.seq, Interaction.model_validate_json(row.content), row.is_reviewed)
