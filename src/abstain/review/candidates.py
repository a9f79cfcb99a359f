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

DEFAULT_DAYS = 30
NO_THUMB = "none"


@dataclass(frozen=True)
class ReviewCandidates:
    """The interactions that were asked in a time window.

    Attributes:
        since: Start of the window, inclusive.
        until: End of the window, exclusive.
        frame: One row each, by `interaction_id`: asked_at, product, line_of_business (null if unknown), decision (shown
            or withheld, null if unknown), thumb (up, down or none: the last one given), reviewed, queued (the review
            came from a review file or from the queue of the gate's page), and recorded_probability, the inclusion
            probability of the review (nan without one).
        reviews: Interaction id -> the latest review of each reviewer.
        n_excluded: Number of interactions in the window that are left out, because a review of them would count
            nowhere.
    """

    since: datetime
    until: datetime
    frame: pd.DataFrame
    reviews: Mapping[str, tuple[Review, ...]]
    n_excluded: int = 0


def read_candidates(
    store: DataStore,
    since: datetime | None = None,
    until: datetime | None = None,
    oldest: datetime | None = None,
    excluded: Collection[str] = (),
    queued: Collection[str] = (),
) -> ReviewCandidates:
    """Read the candidates for review.

    Args:
        store: The data store.
        since: Start of the window, inclusive; by default `DEFAULT_DAYS` days before the end.
        until: End of the window, exclusive; by default just after the newest question.
        oldest: Reviews of questions asked before this would be too late for ingest.
        excluded: Ids of interactions to leave out.
        queued: Ids of interactions that were reviewed in the queue of the gate's page; they count like those of review
            files.

    Returns:
        The candidates.

    Raises:
        AbstainError: The window begins before `oldest`, or has no questions; the message contains the range of the
            data.
    """
    frames = read_frames(store.require_interactions())
    interactions = frames.interactions[["interaction_id", "asked_at", "product", "line_of_business", "display"]]
    first, newest = interactions["asked_at"].min().to_pydatetime(), interactions["asked_at"].max().to_pydatetime()
    until = until or newest + timedelta(microseconds=1)
    if oldest and (until <= oldest or (since and since < oldest)):
        raise AbstainError(
            Code.FAILED_CHECK,
            f"reviews of questions asked before {oldest:%Y-%m-%d %H:%M} UTC are too late for ingest: move "
            "--since or --until, or raise validation.max_feedback_delay_days in params.yaml",
        )
    since = since or max(min(newest, until) - timedelta(days=DEFAULT_DAYS), oldest or first, first)
    frame = interactions[(interactions["asked_at"] >= since) & (interactions["asked_at"] < until)].set_index(
        "interaction_id"
    )
    eligible = frame[~frame.index.isin(list(excluded))]
    if eligible.empty and not frame.empty:
        raise AbstainError(
            Code.NO_ROWS,
            f"a review of any of the {len(frame):,} questions asked from {since:%Y-%m-%d %H:%M} to "
            f"{until:%Y-%m-%d %H:%M} UTC would count nowhere: they are of the frozen hold-out, or are not "
            "trained on because of it; move --since and --until",
        )
    n_excluded, frame = len(frame) - len(eligible), eligible
    if frame.empty:
        raise AbstainError(
            Code.NO_ROWS,
            f"no question was asked from {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC: data/ holds "
            f"{first:%Y-%m-%d %H:%M} to {newest:%Y-%m-%d %H:%M}, so set --since and --until within",
        )
    reviews, imported = _read_latest_reviews(store, frame.index)
    # Of several probabilities the largest, as for labels.
    recorded = {
        interaction_id: max(review.inclusion_probability or 0 for review in latest) or np.nan
        for interaction_id, latest in reviews.items()
    }
    thumbs = frames.thumbs.sort_values("given_at", kind="stable").drop_duplicates("interaction_id", keep="last")
    frame["thumb"] = thumbs.set_index("interaction_id")["thumb"].reindex(frame.index).fillna(NO_THUMB)
    frame["reviewed"] = frame.index.isin(list(reviews))
    frame["queued"] = frame.index.isin([*imported, *queued])
    frame["recorded_probability"] = pd.Series(recorded, dtype=float).reindex(frame.index)
    return ReviewCandidates(since, until, frame, reviews, n_excluded)


def stream_interactions(store: DataStore, ids: Collection[str]) -> Iterator[Interaction]:
    """Read interactions in order of arrival, with one in memory at a time.

    Args:
        store: The data store.
        ids: Ids of the interactions.

    Returns:
        An iterator over the interactions.
    """
    return (row for row in store.iter_rows(Interaction) if row.interaction_id in ids)


def _read_latest_reviews(store: DataStore, ids: pd.Index) -> tuple[dict[str, tuple[Review, ...]], set[str]]:
    """Return each reviewer's latest review of each of `ids`, and the ids with a review from a review file."""
    interaction_ids = set(ids)
    imported = {batch.batch for batch in store.read_batches() if any(map(is_review_queue, batch.sources))}
    latest: dict[str, dict[str, Review]] = {}
    queued = set()
    for part in store.list_part_files(Review):
        for row in store.iter_part_rows(part, Review):
            if row.interaction_id not in interaction_ids:
                continue
            by_reviewer = latest.setdefault(row.interaction_id, {})
            if row.reviewer not in by_reviewer or row.reviewed_at >= by_reviewer[row.reviewer].reviewed_at:
                by_reviewer[row.reviewer] = row
            if part.stem in imported:
                queued.add(row.interaction_id)
    return {interaction_id: tuple(by_reviewer.values()) for interaction_id, by_reviewer in latest.items()}, queued
