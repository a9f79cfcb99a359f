"""Reviews of what the gate decided: one verdict an answer, when it arrived, and how many answers it stands for.

Notes:

* A review reaches an answer by way of data/: an answer is there with certainty where it got feedback, else with the
  share by which the log draws. Then a reviewer sees it with the probability that the review carries.
* A review without such a probability chose its answer itself. As elsewhere (`by_how_chosen`), such ones count until
  enough were drawn. Those that have counted by then stay: a test that one looks at every day must not lose its past.
* Verdicts on one answer are resolved as for training, and count on the day on which the first of them arrived.
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

REVIEW = ("interaction_id", "reviewed_at", "reviewer", *CRITERIA, "inclusion_probability")


def join_reviews(store: DataStore, traffic: Traffic, labels: LabelParams) -> pd.DataFrame:
    """The answers that the log decided on and data/ has a review of, by interaction_id, in order of arrival.

    Columns: `correct`, `weight` (1 / inclusion probability; 1 for a review that chose its answer), `drawn`, `document`,
    `arrived` (the day, midnight in UTC), and the decision's `decision`, `version`, `probability` and `decided_at`.
    """
    decisions = traffic.decisions
    rows = pd.DataFrame(_reviews(store, set(decisions.index)), columns=[*REVIEW, "arrived"])
    rows["row"], ids = pd.factorize(rows["interaction_id"])
    moments = {name: pd.to_datetime(rows[name], utc=True) for name in ("reviewed_at", "arrived")}
    rows = rows.assign(**moments)
    verdicts = resolve_reviews(select_latest_reviews(rows, labels), labels)
    of = decisions.loc[ids, ["decision", "version", "probability", "decided_at", "share"]].rename_axis("interaction_id")
    told = of.index.isin(traffic.feedback["interaction_id"])
    in_data = np.where(told, 1.0, of["share"].where(of["share"] > 0))
    inclusion = (in_data * verdicts["inclusion_probability"].to_numpy(float)).clip(MIN_INCLUSION_PROBABILITY)
    documents = _documents(store, set(ids))
    return (
        of.drop(columns="share")
        .assign(
            correct=verdicts["label"].to_numpy(bool),
            weight=1 / np.where(np.isnan(inclusion), 1.0, inclusion),
            drawn=~np.isnan(inclusion),
            document=[documents.get(key, key) for key in ids],
            arrived=rows.groupby("row")["arrived"].min().dt.floor("D").to_numpy(),
        )
        .assign(arrived=lambda frame: pd.to_datetime(frame["arrived"], utc=True))
        .sort_values("arrived", kind="stable")
    )


def select_countable_shown(reviewed: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """The reviewed answers of one version that were decided to be shown and that count, in order of arrival, and the
    number of reviews left out since they chose their answers themselves."""
    shown = reviewed[reviewed["decision"] == "show"]
    enough = shown["arrived"][
        shown["drawn"].cumsum() >= MIN_SAMPLED
    ].min()  # nothing is later where there is no such day
    apart = ~shown["drawn"] & (shown["arrived"] > enough)
    return shown[~apart], int(apart.sum())


def batch_reviews_by_day(counted: pd.DataFrame, decisions: pd.DataFrame) -> list[tuple[pd.Timestamp, ReviewBatch]]:
    """The reviews of shown answers by the day on which they arrived, oldest first, for one version.

    The coverage of a batch is that of the decisions since the batch before; where there are none, of all so far.
    """
    found: list[tuple[pd.Timestamp, ReviewBatch]] = []
    is_show, before = decisions["decision"] == "show", None
    for day in sorted(counted["arrived"].unique()):
        own = counted[counted["arrived"] == day]
        until = decisions["day"] <= day
        lately = until if before is None else until & (decisions["day"] > before)
        share = is_show[lately if lately.any() else until].mean()
        batch = ReviewBatch(
            correct=own["correct"].to_numpy(bool),
            weight=own["weight"].to_numpy(float),
            groups=own["document"].to_numpy(object),
            coverage=1.0 if np.isnan(share) else float(share),
        )
        found.append((day, batch))
        before = day
    return found


def _reviews(store: DataStore, known: set[str]) -> Iterator[list[object]]:
    arrived: Mapping[str, datetime] = {one.batch: one.arrived_at for one in store.batches()}
    for part in store.list_part_files(Review):
        for row in store.iter_part_rows(part, Review):
            if row.interaction_id in known:
                yield [*(getattr(row, name) for name in REVIEW), arrived[part.stem]]


def _documents(store: DataStore, ids: set[str]) -> dict[str, str]:
    """The document of each of `ids`, whose answers err together."""
    if not ids:
        return {}
    return {row.interaction_id: row.split_group for row in store.iter_rows(Interaction) if row.interaction_id in ids}
