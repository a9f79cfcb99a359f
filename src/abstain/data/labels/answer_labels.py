"""Labels from reviews and thumbs: one per answer, with its source and weight. Columnar and pure.

Notes:

* A review outranks every thumb: it states whether the answer is correct, a thumb only whether it was useful.
* Correctness, completeness and truthfulness are separate criteria. `labels.correct_if` lists those that a correct
  answer must meet.
* If reviews disagree, `labels.conflicts` selects those that decide. If these still differ, the answer is correct only
  if all agree that it is: showing an incorrect answer costs more than withholding a correct one.
* Every thumb counts, but only the last one of an identified user. Equal numbers of ups and downs give no label. The
  weight of a thumb's label comes from `reliability`; a label of weight 0 is dropped.
* Users rate what they are shown. So a label that was not sampled represents 1 / propensity answers if the assistant's
  gate shows by chance. A sampled review represents 1 / its inclusion probability, whether the answer was shown or not.

In all tables of this module, answers are identified by their row, 0 to n - 1.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from abstain.config.params import LabelParams
from abstain.core.contracts import CRITERIA


def select_countable_thumbs(thumbs: pd.DataFrame) -> pd.DataFrame:
    """Select the thumbs that count: each anonymous one, and the last one of each user and answer.

    If a user gave two thumbs at the same time, the down counts.

    Args:
        thumbs: Columns row, user (0 for anonymous, otherwise the user's number), given_at, thumb.

    Returns:
        Columns row, user, up, in an order that does not depend on that of `thumbs`.
    """
    up = (thumbs["thumb"] == "up").to_numpy(bool)
    row, user = thumbs["row"].to_numpy(), thumbs["user"].to_numpy()
    order = np.lexsort((~up, thumbs["given_at"].astype("int64"), user, row))
    row, user, up = row[order], user[order], up[order]
    is_superseded = (row[:-1] == row[1:]) & (user[:-1] == user[1:]) & (user[:-1] > 0)
    is_last = np.append(~is_superseded, True)[: len(row)]
    return pd.DataFrame({"row": row[is_last], "user": user[is_last], "up": up[is_last]})


def select_latest_reviews(reviews: pd.DataFrame, params: LabelParams) -> pd.DataFrame:
    """Select each reviewer's last review of each answer.

    Args:
        reviews: Columns row, reviewer, reviewed_at, complete, correct, truthful, inclusion_probability (or nan).
        params: `labels` of params.yaml; `require` decides the label.

    Returns:
        Columns row, reviewer, reviewed_at, the criteria, inclusion_probability, label.
    """
    typed = reviews.astype({**dict.fromkeys(CRITERIA, "bool"), "inclusion_probability": "float64"})
    merged = typed.groupby(["row", "reviewer", "reviewed_at"], as_index=False).agg(
        {**dict.fromkeys(CRITERIA, "min"), "inclusion_probability": "max"}
    )
    merged["label"] = merged[list(params.correct_if)].all(axis=1)
    return merged.drop_duplicates(["row", "reviewer"], keep="last").reset_index(drop=True)


def resolve_reviews(latest_reviews: pd.DataFrame, params: LabelParams) -> pd.DataFrame:
    """Resolve the reviews of each answer into one.

    A criterion is met if all deciding reviews agree that it is.

    Args:
        latest_reviews: Result of `select_latest_reviews`.
        params: `labels` of params.yaml; `conflicts` selects the deciding reviews.

    Returns:
        By row: label, complete, correct, truthful, inclusion_probability (the largest of the deciding reviews),
        reviewers (the names of those who gave them, in order).
    """
    by_row = latest_reviews.groupby("row")
    if params.conflicts == "latest":
        is_deciding = latest_reviews["reviewed_at"] == by_row["reviewed_at"].transform("max")
    elif params.conflicts == "majority":
        is_deciding = latest_reviews["label"] == (by_row["label"].transform("mean") > 0.5)
    else:
        is_deciding = latest_reviews["label"] == by_row["label"].transform("min")
    deciding_by_row = latest_reviews[is_deciding].groupby("row")
    return (
        deciding_by_row[["label", *CRITERIA]]
        .min()
        .assign(
            inclusion_probability=deciding_by_row["inclusion_probability"].max(),
            reviewers=deciding_by_row["reviewer"].agg(list),
        )
    )


def find_disagreements(reviews: pd.DataFrame, params: LabelParams) -> np.ndarray:
    """Find the answers with one review for correct and one for incorrect, by any reviewers.

    Args:
        reviews: Columns row and the criteria; all reviews, not only the latest.
        params: `labels` of params.yaml; `require` decides whether a review is for correct.

    Returns:
        Rows of the answers, ascending.
    """
    correct = reviews[list(params.correct_if)].all(axis=1)
    extremes = correct.groupby(reviews["row"]).agg(["min", "max"])
    return extremes.index[extremes["min"] != extremes["max"]].to_numpy()


def assign_labels(
    propensity: pd.Series,
    resolved_reviews: pd.DataFrame,
    balance: np.ndarray,
    thumbs: pd.DataFrame,
    params: LabelParams,
) -> pd.DataFrame:
    """Assign a label to each answer: that of its reviews, otherwise that of its thumbs.

    Args:
        propensity: (answers,) the probability with which an answer was shown; nan if it is unknown or the answer was
            withheld.
        resolved_reviews: Result of `resolve_reviews`.
        balance: (answers,) number of ups minus number of downs.
        thumbs: (answers,) label and weight by the thumbs of an answer; used if `balance` is not 0.
        params: `labels` of params.yaml.

    Returns:
        A row for each answer: correct (0/1), weight, source (review, thumb, or null for no label), and the resolved
        review's complete, review_correct, truthful and reviewers, null without one. `sampled` is whether the review was
        sampled with a known `inclusion_probability`; for all other labels the latter is the propensity.
    """
    n_answers = len(propensity)
    is_reviewed = np.zeros(n_answers, bool)
    is_reviewed[resolved_reviews.index] = True
    label, weight = thumbs["label"].to_numpy(bool, copy=True), thumbs["weight"].to_numpy(float)
    label[resolved_reviews.index] = resolved_reviews["label"]
    is_by_thumb = ~is_reviewed & (balance != 0) & (weight > 0)
    source = np.where(is_reviewed, "review", np.where(is_by_thumb, "thumb", ""))
    aligned = resolved_reviews.reindex(range(n_answers))
    return pd.DataFrame(
        {
            "correct": label.astype("int64"),
            "weight": np.where(is_reviewed, 1.0, weight),
            "source": pd.Series(source, dtype="str").replace("", None),
            "complete": aligned["complete"].astype("boolean"),
            "review_correct": aligned["correct"].astype("boolean"),
            "truthful": aligned["truthful"].astype("boolean"),
            "inclusion_probability": aligned["inclusion_probability"].astype("float64").fillna(propensity),
            "sampled": aligned["inclusion_probability"].notna(),
            "reviewers": aligned["reviewers"].astype(object).where(is_reviewed, None),
        }
    )
