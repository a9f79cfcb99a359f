"""The candidates for review: the interactions of a time window, one row each, in columns.

Texts stay on disk, because there may be a million rows; the few selected interactions are read again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import pandas as pd

from abstain.core.codes import Code
from abstain.core.contracts import Interaction, Review
from abstain.core.errors import AbstainError
from abstain.data.store.dataframes import read_frames
from abstain.data.store.dataset import DataStore, is_review_queue

DAYS = 30
NO_THUMB = "none"


@dataclass(frozen=True)
class ReviewCandidates:
    """The interactions asked from `since` on and before `until`.

    `frame` has one row each, by `interaction_id`: asked_at, product, line_of_business (null where there is none),
    decision (shown or withheld, null where it is not known), thumb (up, down or none: the last one given), reviewed,
    queued (the review came from a review file or the queue of the gate's page), and recorded_probability, the inclusion
    probability that the review carries (nan where it has none). `reviews` are each reviewer's latest review of the
    reviewed ones. `left_out` interactions are not in it, because a verdict on them would count nowhere.
    """

    since: datetime
    until: datetime
    frame: pd.DataFrame
    reviews: Mapping[str, tuple[Review, ...]]
    left_out: int = 0


def read_candidates(
    store: DataStore,
    since: datetime | None = None,
    until: datetime | None = None,
    oldest: datetime | None = None,
    uncounted: Collection[str] = (),
    queued: Collection[str] = (),
) -> ReviewCandidates:
    """The window of `store`, without the interactions `uncounted`; by default the last `DAYS` days of its interactions.

    `queued` interactions were reviewed in the queue of the gate's page, and count as those of review files do.

    Reviews of questions asked before `oldest` would be too late for ingest. Raises `AbstainError` for a window that
    begins before it, and for a window without questions; the message has the range of the data.
    """
    frames = read_frames(store.require_interactions())
    asked = frames.interactions[["interaction_id", "asked_at", "product", "line_of_business", "decision"]]
    first, newest = asked["asked_at"].min().to_pydatetime(), asked["asked_at"].max().to_pydatetime()
    until = until or newest + timedelta(microseconds=1)
    if oldest and (until <= oldest or (since and since < oldest)):
        raise AbstainError(
            Code.FAILED_CHECK,
            f"reviews of questions asked before {oldest:%Y-%m-%d %H:%M} UTC are too late for ingest: move "
            "--since or --until, or raise validation.max_feedback_delay_days in params.yaml",
        )
    since = since or max(min(newest, until) - timedelta(days=DAYS), oldest or first, first)
    frame = asked[(asked["asked_at"] >= since) & (asked["asked_at"] < until)].set_index("interaction_id")
    counted = frame[~frame.index.isin(list(uncounted))]
    if counted.empty and not frame.empty:
        raise AbstainError(
            Code.NO_ROWS,
            f"a verdict on any of the {len(frame):,} questions asked from {since:%Y-%m-%d %H:%M} to "
            f"{until:%Y-%m-%d %H:%M} UTC would count nowhere: they are of the frozen hold-out, or are not "
            "trained on because of it; move --since and --until",
        )
    left_out, frame = len(frame) - len(counted), counted
    if frame.empty:
        raise AbstainError(
            Code.NO_ROWS,
            f"no question was asked from {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC: data/ holds "
            f"{first:%Y-%m-%d %H:%M} to {newest:%Y-%m-%d %H:%M}, so set --since and --until within",
        )
    reviews, imported = _read_latest_reviews(store, frame.index)
    # The largest of several, as for labels.
    recorded = {key: max(review.inclusion_probability or 0 for review in own) or np.nan for key, own in reviews.items()}
    thumbs = frames.thumbs.sort_values("given_at", kind="stable").drop_duplicates("interaction_id", keep="last")
    frame["thumb"] = thumbs.set_index("interaction_id")["thumb"].reindex(frame.index).fillna(NO_THUMB)
    frame["reviewed"] = frame.index.isin(list(reviews))
    frame["queued"] = frame.index.isin([*imported, *queued])
    frame["recorded_probability"] = pd.Series(recorded, dtype=float).reindex(frame.index)
    return ReviewCandidates(since, until, frame, reviews, left_out)


def stream_interactions(store: DataStore, ids: Collection[str]) -> Iterator[Interaction]:
    """The interactions with `ids`, in order of arrival, one in memory at a time."""
    return (row for row in store.iter_rows(Interaction) if row.interaction_id in ids)


def _read_latest_reviews(store: DataStore, ids: pd.Index) -> tuple[dict[str, tuple[Review, ...]], set[str]]:
    """Each reviewer's latest review of each of `ids`; those of `ids` with one that a review file brought."""
    wanted = set(ids)
    imported = {batch.batch for batch in store.batches() if any(map(is_review_queue, batch.sources))}
    last: dict[str, dict[str, Review]] = {}
    queued = set()
    for part in store.list_part_files(Review):
        for row in store.iter_part_rows(part, Review):
            if row.interaction_id not in wanted:
                continue
            own = last.setdefault(row.interaction_id, {})
            if row.reviewer not in own or row.reviewed_at >= own[row.reviewer].reviewed_at:
                own[row.reviewer] = row
            if part.stem in imported:
                queued.add(row.interaction_id)
    return {key: tuple(own.values()) for key, own in last.items()}, queued
