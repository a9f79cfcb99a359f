"""Reviews of the gate's decisions: one label for each answer, its arrival, and its weight.

Notes:

* A review reaches an answer through data/. An answer is in data/ with certainty if it got feedback, otherwise with the
  sampling rate of the log. It is then reviewed with the probability that the review carries.
* A review without such a probability is self-selected. As elsewhere (`split_by_sampling`), these count until enough
  sampled reviews exist. Those that have counted by then keep counting, because a test that is repeated every day must
  not lose its past.
* Reviews of one answer are resolved as for training, and count on the day on which the first of them arrived.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

import numpy as np
import pandas as pd

from abstain.config.params import LabelParams
from abstain.core.contracts import CRITERIA, MIN_INCLUSION_PROBABILITY, Interaction, Review
from abstain.data.labels.answer_labels import resolve_reviews, select_latest_reviews
from abstain.data.store.dataset import DataStore
from abstain.data.store.splits import MIN_SAMPLED
from abstain.monitoring.live_guarantee import ReviewBatch
from abstain.monitoring.traffic import Traffic

REVIEW_COLUMNS = ("interaction_id", "reviewed_at", "reviewer", *CRITERIA, "inclusion_probability")


def join_reviews(store: DataStore, traffic: Traffic, labels: LabelParams) -> pd.DataFrame:
    """Join the decision log with the reviews in data/.

    Args:
        store: The data folder.
        traffic: Decisions and feedback of the log.
        labels: Rules that turn reviews into labels.

    Returns:
        One row for each reviewed decision, indexed by interaction_id and sorted by arrival: `correct` (bool), `weight`
        (1 / inclusion probability; 1 for a self-selected review), `sampled` (bool), `document`
        (the group), `arrived` (midnight UTC), `decision`, `version`, `probability`, `decided_at`.
    """
    decisions = traffic.decisions
    rows = pd.DataFrame(_iter_reviews(store, set(decisions.index)), columns=[*REVIEW_COLUMNS, "arrived"])
    rows["row"], ids = pd.factorize(rows["interaction_id"])
    moments = {name: pd.to_datetime(rows[name], utc=True) for name in ("reviewed_at", "arrived")}
    rows = rows.assign(**moments)
    resolved = resolve_reviews(select_latest_reviews(rows, labels), labels)
    reviewed = decisions.loc[ids, ["decision", "version", "probability", "decided_at", "sampling_rate"]].rename_axis(
        "interaction_id"
    )
    has_feedback = reviewed.index.isin(traffic.feedback["interaction_id"])
    in_data = np.where(has_feedback, 1.0, reviewed["sampling_rate"].where(reviewed["sampling_rate"] > 0))
    inclusion = (in_data * resolved["inclusion_probability"].to_numpy(float)).clip(MIN_INCLUSION_PROBABILITY)
    group_by_id = _read_groups(store, set(ids))
    return (
        reviewed.drop(columns="sampling_rate")
        .assign(
            correct=resolved["label"].to_numpy(bool),
            weight=1 / np.where(np.isnan(inclusion), 1.0, inclusion),
            sampled=~np.isnan(inclusion),
            document=[group_by_id.get(interaction_id, interaction_id) for interaction_id in ids],
            arrived=rows.groupby("row")["arrived"].min().dt.floor("D").to_numpy(),
        )
        .assign(arrived=lambda frame: pd.to_datetime(frame["arrived"], utc=True))
        .sort_values("arrived", kind="stable")
    )


def select_countable_shown(reviewed: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Select the reviews of shown answers that count.

    Args:
        reviewed: Result of `join_reviews` for one version.

    Returns:
        The rows in order of arrival, and the number of self-selected reviews that were left out.
    """
    shown = reviewed[reviewed["decision"] == "show"]
    enough_at = shown["arrived"][
        shown["sampled"].cumsum() >= MIN_SAMPLED
    ].min()  # nothing is later where there is no such day
    is_excluded = ~shown["sampled"] & (shown["arrived"] > enough_at)
    return shown[~is_excluded], int(is_excluded.sum())


def batch_reviews_by_day(reviewed: pd.DataFrame, decisions: pd.DataFrame) -> list[tuple[pd.Timestamp, ReviewBatch]]:
    """Batch the reviews of shown answers by their day of arrival.

    Args:
        reviewed: Reviews of one version that count.
        decisions: All decisions of this version.

    Returns:
        Day and batch, oldest first. The coverage of a batch is that of the decisions since the previous batch; if there
        are none, of all decisions so far.
    """
    batches: list[tuple[pd.Timestamp, ReviewBatch]] = []
    is_show, previous_day = decisions["decision"] == "show", None
    for day in sorted(reviewed["arrived"].unique()):
        reviews = reviewed[reviewed["arrived"] == day]
        is_until_day = decisions["day"] <= day
        is_recent = is_until_day if previous_day is None else is_until_day & (decisions["day"] > previous_day)
        coverage = is_show[is_recent if is_recent.any() else is_until_day].mean()
        batch = ReviewBatch(
            correct=reviews["correct"].to_numpy(bool),
            weight=reviews["weight"].to_numpy(float),
            groups=reviews["document"].to_numpy(object),
            coverage=1.0 if np.isnan(coverage) else float(coverage),
        )
        batches.append((day, batch))
        previous_day = day
    return batches


def _iter_reviews(store: DataStore, interaction_ids: set[str]) -> Iterator[list[object]]:
    arrived: Mapping[str, datetime] = {batch.batch: batch.arrived_at for batch in store.read_batches()}
    for part in store.list_part_files(Review):
        for row in store.iter_part_rows(part, Review):
            if row.interaction_id in interaction_ids:
                yield [*(getattr(row, name) for name in REVIEW_COLUMNS), arrived[part.stem]]


def _read_groups(store: DataStore, ids: set[str]) -> dict[str, str]:
    """Read the group of each interaction, because answers of a group err together."""
    if not ids:
        return {}
    return {row.interaction_id: row.split_group for row in store.iter_rows(Interaction) if row.interaction_id in ids}
