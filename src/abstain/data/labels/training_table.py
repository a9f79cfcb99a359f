"""The joined training table: one row a labelled answer, with its split. Columnar, and pure but for reading the store.

Notes:

* The hold-out's labels are frozen too: feedback from `split.holdout_frozen_at` on does not change them, and its thumbs
  count by majority with a fixed weight, because the estimated reliability of thumbs changes as reviews come in.
* That reliability is estimated on training rows alone, so that no verdict on the validation split, the hold-out or the
  newest window leaks into training.
* No user's thumbs weigh more than `labels.max_user_share` of all on the training rows, the ones whose weights count.
* The table does not depend on the order of rows: it is sorted by batch, moment and id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd

from abstain.config.params import LabelParams, SplitParams
from abstain.core.codes import Code
from abstain.core.contracts import MIN_INCLUSION_PROBABILITY, Interaction
from abstain.core.errors import AbstainError
from abstain.core.text import is_refusal
from abstain.data.labels.answer_labels import (
    assign_labels,
    find_disagreements,
    resolve_reviews,
    select_countable_thumbs,
    select_latest_reviews,
)
from abstain.data.labels.contradictions import find_contradictions
from abstain.data.labels.data_card import data_card
from abstain.data.labels.near_duplicate_splits import has_near_duplicate_in_training, split_rows
from abstain.data.labels.near_duplicates import TWINS, find_near_duplicates
from abstain.data.labels.reliability import estimate_reliability, measure_agreement
from abstain.data.labels.user_share import cap_user_weights
from abstain.data.store.dataframes import read_frames
from abstain.data.store.dataset import DataStore
from abstain.data.store.splits import check_splits, is_asked_since

INTERACTION = (
    *("interaction_id", "asked_at", "group", "product", "line_of_business", "decision", "propensity", "batch"),
    *("refusal", *TWINS),
)
FEEDBACK = ("given_at", "thumb", "user")
REVIEW = ("reviewed_at", "reviewer", "complete", "correct", "truthful", "inclusion_probability", "batch")
COLUMNS = (
    *("interaction_id", "group", "split", "correct", "weight", "source", "product", "inclusion_probability"),
    *("drawn", "reviewers", "line_of_business", "complete", "judged_correct", "truthful"),
    *("reviews_disagree", "thumbs_disagree"),
    *("asked_at", "batch", "twin_in_training", "refusal"),
)

DATA_CARD_COLUMNS = (
    *("interaction_id", "group", "split", "left_out", "joined", "twin_in_training"),
    *("correct", "weight", "source", "reviews_disagree", "thumbs_disagree", "refusal"),
)


def read_training_table(
    store: DataStore, labels: LabelParams, split: SplitParams
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """`build_training_table` of everything in `store`. Raises `AbstainError` as that, and for a broken row."""
    frames = read_frames(store)
    interactions = frames.interactions.join(_read_texts(store, labels), on="interaction_id")
    return build_training_table(interactions, frames.thumbs, frames.reviews, labels, split)


def find_uncounted_reviews(store: DataStore, labels: LabelParams, split: SplitParams, at: datetime) -> dict[str, str]:
    """The interactions of `store` of which a verdict given `at` that moment counts nowhere, each with the reason."""
    asked = _in_order(read_frames(store).interactions.join(_read_texts(store, labels), on="interaction_id"))
    splits = split_rows(asked, split)
    reasons = pd.Series(None, asked.index, object)
    if split.holdout_frozen_at is not None and at >= split.holdout_frozen_at:
        frozen = f"the hold-out, whose verdicts are those given before {split.holdout_frozen_at:%Y-%m-%d %H:%M} UTC"
        reasons[splits["split"] == "holdout"] = frozen
    reasons[splits["split"] == "excluded"] = "a group of the hold-out or later ones, asked about before: not trained on"
    reasons[splits["left_out"]] = "a near-duplicate of the hold-out, which is not trained on"
    return {str(key): str(why) for key, why in reasons.set_axis(asked["interaction_id"]).dropna().items()}


def _in_order(interactions: pd.DataFrame) -> pd.DataFrame:
    """The columns that decide splits, in the order of arrival."""
    return interactions[list(INTERACTION)].sort_values(["batch", "asked_at", "interaction_id"], ignore_index=True)


def _read_texts(store: DataStore, labels: LabelParams) -> pd.DataFrame:
    """What the texts say, by interaction_id: `find_near_duplicates`, and `refusal`, of bool. They are read once."""
    refusal: dict[str, bool] = {}

    def noted(rows: Iterable[Interaction]) -> Iterator[Interaction]:
        for row in rows:
            refusal[row.interaction_id] = is_refusal(row.answer, labels.refusals)
            yield row

    twins = find_near_duplicates(
        noted(store.iter_part_rows(part, Interaction)) for part in store.list_part_files(Interaction)
    )
    return twins.assign(refusal=pd.Series(refusal, dtype=bool))


def build_training_table(
    interactions: pd.DataFrame, feedback: pd.DataFrame, reviews: pd.DataFrame, labels: LabelParams, split: SplitParams
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The table and its summary for the data card. Other columns are ignored.

    Args:
        interactions: interaction_id, asked_at, group, product, line_of_business, decision (or null), propensity (or
            nan), batch, refusal (`is_refusal`), question_twin, answer_twin (`find_near_duplicates`).
        feedback: interaction_id, given_at, thumb, user (or null).
        reviews: interaction_id, reviewed_at, reviewer, complete, correct, truthful, inclusion_probability (or nan),
            batch.

    Returns the table, of `COLUMNS`: correct is 0 or 1, source review or thumb; the deciding review's complete,
    judged_correct, truthful and reviewers (a list: several may decide) are null without one; inclusion_probability and
    drawn are as by `assign_labels`; reviews_disagree where one review is for correct and another for incorrect,
    thumbs_disagree where the thumbs' majority contradicts the reviewers, twin_in_training where a hold-out answer has a
    near-duplicate among those for training and validation, or one for validation among those for training.

    Raises `AbstainError` when a needed split lacks correct or incorrect answers.
    """
    asked = _in_order(interactions)
    ids = pd.Index(asked["interaction_id"])
    if not ids.is_unique:
        raise AbstainError(
            Code.FAILED_CHECK, f"interaction '{ids[ids.duplicated()][0]}' is in data/ twice: remove one of its rows"
        )
    asked = asked.join(split_rows(asked, split))
    thumbs = _attach_row_numbers(feedback, FEEDBACK, ids, asked["split"], split.holdout_frozen_at)
    judged = _attach_row_numbers(reviews, REVIEW, ids, asked["split"], split.holdout_frozen_at)
    user, names = pd.factorize(thumbs["user"], sort=True)
    votes = select_countable_thumbs(thumbs.assign(user=user + 1))
    last = select_latest_reviews(judged, labels)
    verdicts = resolve_reviews(last, labels)

    train = (asked["split"] == "train").to_numpy(bool)
    learnt = votes[train[votes["row"]]], verdicts[train[verdicts.index]]
    pool = measure_agreement(*learnt)
    known = estimate_reliability(*learnt, pool, len(names), labels)
    balance = np.bincount(votes["row"], np.where(votes["up"], 1, -1), len(asked))
    by_thumb = pd.DataFrame({"label": balance > 0, "weight": labels.thumb_weight})
    evidence = np.where(votes["up"], 1.0, -1.0)
    if known:
        by_thumb = by_thumb.where(asked["split"] == "holdout", known.labels(votes, len(asked), labels))
        evidence = known.get_vote_evidence(votes)
    weighs = train & (balance != 0) & ~asked.index.isin(verdicts.index)
    weight, largest = cap_user_weights(votes, evidence, by_thumb[weighs], labels.max_user_share)
    by_thumb.loc[weighs, "weight"] = weight

    answers = asked.join(assign_labels(_propensity(asked), verdicts, balance, by_thumb, labels))
    answers["reviews_disagree"] = asked.index.isin(find_disagreements(judged, labels))
    against = verdicts["label"] != (balance > 0)[verdicts.index]
    answers["thumbs_disagree"] = asked.index.isin(verdicts.index[against & (balance[verdicts.index] != 0)])
    labelled = answers["source"].notna()
    answers["twin_in_training"] = has_near_duplicate_in_training(answers[labelled]).reindex(
        answers.index, fill_value=False
    )
    table = answers.loc[labelled, list(COLUMNS)].reset_index(drop=True)
    check_splits(table["split"], table["correct"] == 1, split.by)
    counted = answers[list(DATA_CARD_COLUMNS)].assign(
        balance=balance, thumbs=np.bincount(votes["row"], minlength=len(asked))
    )
    contradicting = find_contradictions(_in_batches(last, judged), votes, list(names))
    return table, data_card(counted, learnt[0], last, pool, known, largest, contradicting, labels)


def _in_batches(last: pd.DataFrame, judged: pd.DataFrame) -> pd.DataFrame:
    """The verdicts with the batch in which each came: the first, where it came again."""
    key = ["row", "reviewer", "reviewed_at"]
    return last.merge(judged.groupby(key, as_index=False)["batch"].min(), on=key)


def _propensity(asked: pd.DataFrame) -> pd.Series:
    """By row, the probability with which an answer was shown, at least `MIN_INCLUSION_PROBABILITY`; nan where it is not known,
    or the answer was withheld."""
    return asked["propensity"].where(asked["decision"] == "shown").clip(lower=MIN_INCLUSION_PROBABILITY)


def _attach_row_numbers(
    rows: pd.DataFrame, columns: Sequence[str], ids: pd.Index, splits: pd.Series, frozen_at: datetime | None
) -> pd.DataFrame:
    """The thumbs or reviews that count, with the `row` of their answer; the first of `columns` is their moment."""
    row = ids.get_indexer(pd.Index(rows["interaction_id"]))
    # One more at the end, for the rows of unknown answers (-1).
    held, left_out = (np.append(splits == name, False)[row] for name in ("holdout", "excluded"))
    counts = (row >= 0) & ~left_out & ~(held & is_asked_since(rows[columns[0]], frozen_at))
    placed: pd.DataFrame = rows.loc[counts, list(columns)].assign(row=row[counts])
    return placed
