"""The training table: a row for each labelled answer, with its split. Columnar; pure except for reading the store.

Notes:

* The hold-out's labels are frozen too: feedback from `split.holdout_frozen_at` on does not change them. Its thumbs
  count by majority with a fixed weight, because the estimated reliability of thumbs changes as reviews arrive.
* That reliability is estimated on training rows only, so that no review of the validation split, the hold-out or the
  newest split leaks into training.
* No user's thumbs weigh more than `labels.max_user_share` of all on the training rows, the only rows whose weights
  count.
* The table does not depend on the order of rows: it is sorted by batch, time and id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

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
from abstain.data.labels.data_card import DataCard, build_data_card
from abstain.data.labels.near_duplicate_splits import has_near_duplicate_in_training, split_rows
from abstain.data.labels.near_duplicates import DUPLICATE_COLUMNS, find_near_duplicates
from abstain.data.labels.reliability import estimate_reliability, measure_agreement
from abstain.data.labels.user_share import cap_user_weights
from abstain.data.store.dataframes import read_frames
from abstain.data.store.dataset import DataStore
from abstain.data.store.splits import check_splits, is_asked_since

INTERACTION_COLUMNS = (
    *("interaction_id", "asked_at", "group", "product", "line_of_business", "display", "propensity", "batch"),
    *("refusal", *DUPLICATE_COLUMNS),
)
THUMB_COLUMNS = ("given_at", "thumb", "user")
REVIEW_COLUMNS = ("reviewed_at", "reviewer", "complete", "correct", "truthful", "inclusion_probability", "batch")
COLUMNS = (
    *("interaction_id", "group", "split", "correct", "weight", "source", "product", "inclusion_probability"),
    *("sampled", "reviewers", "line_of_business", "complete", "review_correct", "truthful"),
    *("reviews_disagree", "thumbs_disagree"),
    *("asked_at", "batch", "duplicate_in_training", "refusal"),
)

DATA_CARD_COLUMNS = (
    *("interaction_id", "group", "split", "left_out", "joined", "duplicate_in_training"),
    *("correct", "weight", "source", "reviews_disagree", "thumbs_disagree", "refusal"),
)


def read_training_table(
    store: DataStore, labels: LabelParams, split: SplitParams, *, needs_splits: bool = True
) -> tuple[pd.DataFrame, DataCard]:
    """Build the training table from everything in a store.

    Args:
        store: The data folder.
        labels: `labels` of params.yaml.
        split: `split` of params.yaml.
        needs_splits: Whether each required split must have correct and incorrect answers.

    Returns:
        The table and its data card, see `build_training_table`.

    Raises:
        AbstainError: As `build_training_table`, and for a broken row.
    """
    frames = read_frames(store)
    interactions = frames.interactions.join(_derive_text_columns(store, labels), on="interaction_id")
    return build_training_table(interactions, frames.thumbs, frames.reviews, labels, split, needs_splits=needs_splits)


def find_uncounted_reviews(
    store: DataStore, labels: LabelParams, split: SplitParams, reviewed_at: datetime
) -> dict[str, str]:
    """Find the interactions for which a new review would not count.

    Args:
        store: The data folder.
        labels: `labels` of params.yaml.
        split: `split` of params.yaml.
        reviewed_at: Time of the review.

    Returns:
        Interaction id -> reason, for the interactions whose review counts nowhere.
    """
    ordered = _sort_interactions(
        read_frames(store).interactions.join(_derive_text_columns(store, labels), on="interaction_id")
    )
    splits = split_rows(ordered, split)
    reasons = pd.Series(None, ordered.index, object)
    if split.holdout_frozen_at is not None and reviewed_at >= split.holdout_frozen_at:
        frozen = f"the hold-out, whose reviews are those given before {split.holdout_frozen_at:%Y-%m-%d %H:%M} UTC"
        reasons[splits["split"] == "holdout"] = frozen
    reasons[splits["split"] == "excluded"] = "a group of the hold-out or later ones, asked about before: not trained on"
    reasons[splits["left_out"]] = "a near-duplicate of the hold-out, which is not trained on"
    return {
        str(interaction_id): str(reason)
        for interaction_id, reason in reasons.set_axis(ordered["interaction_id"]).dropna().items()
    }


def _sort_interactions(interactions: pd.DataFrame) -> pd.DataFrame:
    """Return the columns that decide splits, in order of arrival."""
    return interactions[list(INTERACTION_COLUMNS)].sort_values(
        ["batch", "asked_at", "interaction_id"], ignore_index=True
    )


def _derive_text_columns(store: DataStore, labels: LabelParams) -> pd.DataFrame:
    """Return near-duplicates and `refusal` (bool) by interaction_id; the texts are read once."""
    refusal_by_id: dict[str, bool] = {}

    def record_refusals(rows: Iterable[Interaction]) -> Iterator[Interaction]:
        for row in rows:
            refusal_by_id[row.interaction_id] = is_refusal(row.answer, labels.refusals)
            yield row

    near_duplicates = find_near_duplicates(
        record_refusals(store.iter_part_rows(part, Interaction)) for part in store.list_part_files(Interaction)
    )
    return near_duplicates.assign(refusal=pd.Series(refusal_by_id, dtype=bool))


def build_training_table(
    interactions: pd.DataFrame,
    thumbs: pd.DataFrame,
    reviews: pd.DataFrame,
    labels: LabelParams,
    split: SplitParams,
    *,
    needs_splits: bool = True,
) -> tuple[pd.DataFrame, DataCard]:
    """Build the training table and its data card.

    Args:
        interactions: Columns interaction_id, asked_at, group, product, line_of_business, display (or null), propensity
            (or nan), batch, refusal (`is_refusal`), question_duplicate, answer_duplicate (`find_near_duplicates`).
            Others are ignored.
        thumbs: Columns interaction_id, given_at, thumb, user (or null).
        reviews: Columns interaction_id, reviewed_at, reviewer, complete, correct, truthful, inclusion_probability (or
            nan), batch.
        labels: `labels` of params.yaml.
        split: `split` of params.yaml.
        needs_splits: Whether each required split must have correct and incorrect answers.

    Returns:
        The table, with `COLUMNS`, and the data card. `correct` is 0 or 1, `source` review or thumb. The
        resolved review's complete, review_correct, truthful and reviewers (a list, because several may decide) are null
        without one. `inclusion_probability` and `sampled` are as in `assign_labels`. `reviews_disagree`: one review is
        for correct and another for incorrect. `thumbs_disagree`: the thumbs' majority contradicts the reviewers.
        `duplicate_in_training`: see `has_near_duplicate_in_training`.

    Raises:
        AbstainError: A required split lacks correct or incorrect answers, or an interaction occurs twice.
    """
    ordered = _sort_interactions(interactions)
    ids = pd.Index(ordered["interaction_id"])
    if not ids.is_unique:
        raise AbstainError(
            Code.FAILED_CHECK, f"interaction '{ids[ids.duplicated()][0]}' is in data/ twice: remove one of its rows"
        )
    ordered = ordered.join(split_rows(ordered, split))
    numbered_thumbs = _attach_row_numbers(thumbs, THUMB_COLUMNS, ids, ordered["split"], split.holdout_frozen_at)
    numbered_reviews = _attach_row_numbers(reviews, REVIEW_COLUMNS, ids, ordered["split"], split.holdout_frozen_at)
    user, user_names = pd.factorize(numbered_thumbs["user"], sort=True)
    countable_thumbs = select_countable_thumbs(numbered_thumbs.assign(user=user + 1))
    latest_reviews = select_latest_reviews(numbered_reviews, labels)
    resolved_reviews = resolve_reviews(latest_reviews, labels)

    is_train = (ordered["split"] == "train").to_numpy(bool)
    training_feedback = (
        countable_thumbs[is_train[countable_thumbs["row"]]],
        resolved_reviews[is_train[resolved_reviews.index]],
    )
    agreement = measure_agreement(*training_feedback)
    reliability = estimate_reliability(*training_feedback, agreement, len(user_names), labels)
    balance = np.bincount(countable_thumbs["row"], np.where(countable_thumbs["up"], 1, -1), len(ordered))
    thumb_labels = pd.DataFrame({"label": balance > 0, "weight": labels.thumb_weight})
    evidence = np.where(countable_thumbs["up"], 1.0, -1.0)
    if reliability:
        thumb_labels = thumb_labels.where(
            ordered["split"] == "holdout", reliability.compute_labels(countable_thumbs, len(ordered), labels)
        )
        evidence = reliability.get_vote_evidence(countable_thumbs)
    has_thumb_weight = is_train & (balance != 0) & ~ordered.index.isin(resolved_reviews.index)
    weight, largest_share = cap_user_weights(
        countable_thumbs, evidence, thumb_labels[has_thumb_weight], labels.max_user_share
    )
    thumb_labels.loc[has_thumb_weight, "weight"] = weight

    answers = ordered.join(
        assign_labels(_get_shown_propensity(ordered), resolved_reviews, balance, thumb_labels, labels)
    )
    answers["reviews_disagree"] = ordered.index.isin(find_disagreements(numbered_reviews, labels))
    is_contradicted = resolved_reviews["label"] != (balance > 0)[resolved_reviews.index]
    answers["thumbs_disagree"] = ordered.index.isin(
        resolved_reviews.index[is_contradicted & (balance[resolved_reviews.index] != 0)]
    )
    is_labelled = answers["source"].notna()
    answers["duplicate_in_training"] = has_near_duplicate_in_training(answers[is_labelled]).reindex(
        answers.index, fill_value=False
    )
    table = answers.loc[is_labelled, list(COLUMNS)].reset_index(drop=True)
    if needs_splits:
        check_splits(table, split.by)
    card_answers = answers[list(DATA_CARD_COLUMNS)].assign(
        balance=balance, thumbs=np.bincount(countable_thumbs["row"], minlength=len(ordered))
    )
    contradictions = find_contradictions(
        _add_batches(latest_reviews, numbered_reviews), countable_thumbs, list(user_names)
    )
    return table, build_data_card(
        card_answers,
        training_feedback[0],
        latest_reviews,
        agreement,
        reliability,
        largest_share,
        contradictions,
        labels,
    )


def _add_batches(latest_reviews: pd.DataFrame, reviews: pd.DataFrame) -> pd.DataFrame:
    """Add the batch in which each review arrived: the first one if it arrived again."""
    keys = ["row", "reviewer", "reviewed_at"]
    return latest_reviews.merge(reviews.groupby(keys, as_index=False)["batch"].min(), on=keys)


def _get_shown_propensity(interactions: pd.DataFrame) -> pd.Series:
    """Return the probability with which an answer was shown, at least `MIN_INCLUSION_PROBABILITY`, by row.

    It is nan if it is unknown or the answer was withheld.
    """
    return interactions["propensity"].where(interactions["display"] == "shown").clip(lower=MIN_INCLUSION_PROBABILITY)


def _attach_row_numbers(
    rows: pd.DataFrame, columns: Sequence[str], ids: pd.Index, splits: pd.Series, frozen_at: datetime | None
) -> pd.DataFrame:
    """Return the thumbs or reviews that count, with the `row` of their answer; the first of `columns` is their time."""
    row = ids.get_indexer(pd.Index(rows["interaction_id"]))
    # One more at the end, for the rows of unknown answers (-1).
    is_holdout, is_excluded = (np.append(splits == name, False)[row] for name in ("holdout", "excluded"))
    is_counted = (row >= 0) & ~is_excluded & ~(is_holdout & is_asked_since(rows[columns[0]], frozen_at))
    numbered: pd.DataFrame = rows.loc[is_counted, list(columns)].assign(row=row[is_counted])
    return numbered
