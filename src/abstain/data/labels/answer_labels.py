"""From reviews and thumbs to labels: one per answer, with its source and weight. Columnar and pure.

Notes:

* A review outranks every thumb: it states whether the answer is correct, a thumb only whether it was useful.
* Correctness, completeness and truthfulness are separate; `labels.require` lists those that a correct answer needs.
* Where reviews disagree, `labels.conflicts` selects those that decide. If these still differ, the answer is correct
  only if all agree that it is: showing an incorrect answer costs more than withholding one.
* Every thumb counts, but only the last one of a known user; equal numbers of ups and downs give no label. The weight of
  a thumb's label comes from `reliability`, and a label of weight 0 is dropped.
* Users rate what they are shown. So a label that nobody drew stands for 1 / propensity answers, where the assistant's
  gate shows by chance; a review that was drawn stands for 1 / its inclusion probability, whatever was shown.

Answers are identified by their row, 0 to n - 1, in all tables here.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from abstain.config.params import LabelParams
from abstain.core.contracts import CRITERIA


def select_countable_thumbs(thumbs: pd.DataFrame) -> pd.DataFrame:
    """The thumbs that count, as (row, user, up), in an order that does not depend on that of `thumbs`.

    Args:
        thumbs: row, user (0 for anonymous, else the user's number), given_at, thumb.

    Of two thumbs that a user gave at one moment, the down counts.
    """
    up = (thumbs["thumb"] == "up").to_numpy(bool)
    row, user = thumbs["row"].to_numpy(), thumbs["user"].to_numpy()
    order = np.lexsort((~up, thumbs["given_at"].astype("int64"), user, row))
    row, user, up = row[order], user[order], up[order]
    follows = (row[:-1] == row[1:]) & (user[:-1] == user[1:]) & (user[:-1] > 0)
    last = np.append(~follows, True)[: len(row)]
    return pd.DataFrame({"row": row[last], "user": user[last], "up": up[last]})


def select_latest_reviews(reviews: pd.DataFrame, params: LabelParams) -> pd.DataFrame:
    """Each reviewer's last review of an answer: row, reviewer, reviewed_at, the verdicts, label, inclusion_probability.

    Args:
        reviews: row, reviewer, reviewed_at, complete, correct, truthful, inclusion_probability (or nan).
    """
    typed = reviews.astype({**dict.fromkeys(CRITERIA, "bool"), "inclusion_probability": "float64"})
    moments = typed.groupby(["row", "reviewer", "reviewed_at"], as_index=False).agg(
        {**dict.fromkeys(CRITERIA, "min"), "inclusion_probability": "max"}
    )
    moments["label"] = moments[list(params.require)].all(axis=1)
    return moments.drop_duplicates(["row", "reviewer"], keep="last").reset_index(drop=True)


def resolve_reviews(latest_reviews: pd.DataFrame, params: LabelParams) -> pd.DataFrame:
    """One verdict an answer, by row: label, complete, correct, truthful, inclusion_probability, reviewers.

    A verdict is yes where all deciding reviews agree on yes, and `inclusion_probability` is the largest of theirs;
    `reviewers` are the names of those who gave them, in order.
    """
    by_row = latest_reviews.groupby("row")
    if params.conflicts == "latest":
        deciding = latest_reviews["reviewed_at"] == by_row["reviewed_at"].transform("max")
    elif params.conflicts == "majority":
        deciding = latest_reviews["label"] == (by_row["label"].transform("mean") > 0.5)
    else:
        deciding = latest_reviews["label"] == by_row["label"].transform("min")
    chosen = latest_reviews[deciding].groupby("row")
    return (
        chosen[["label", *CRITERIA]]
        .min()
        .assign(inclusion_probability=chosen["inclusion_probability"].max(), reviewers=chosen["reviewer"].agg(list))
    )


def find_disagreements(reviews: pd.DataFrame, params: LabelParams) -> np.ndarray:
    """The rows, ascending, of answers with one review for correct and one for incorrect, by any reviewers."""
    correct = reviews[list(params.require)].all(axis=1)
    kinds = correct.groupby(reviews["row"]).agg(["min", "max"])
    return kinds.index[kinds["min"] != kinds["max"]].to_numpy()


def assign_labels(
    propensity: pd.Series, verdicts: pd.DataFrame, balance: np.ndarray, thumbs: pd.DataFrame, params: LabelParams
) -> pd.DataFrame:
    """The label of each answer, a row each: correct (0/1), weight, source (review, thumb, or null: no label), and the
    deciding review's complete, judged_correct, truthful and reviewers, null without one. `drawn`: whether that review
    was drawn with a known `inclusion_probability`; of other labels this is `propensity`.

    Args:
        shown_with: (answers,) the probability with which an answer was shown; nan where it is not known or was not.
        verdicts: as `resolve_reviews` gives them.
        balance: (answers,) ups less downs.
        thumbs: (answers,) label and weight by the thumbs of an answer; read where `balance` is not 0.
    """
    answers = len(propensity)
    reviewed = np.zeros(answers, bool)
    reviewed[verdicts.index] = True
    label, weight = thumbs["label"].to_numpy(bool, copy=True), thumbs["weight"].to_numpy(float)
    label[verdicts.index] = verdicts["label"]
    by_thumb = ~reviewed & (balance != 0) & (weight > 0)
    source = np.where(reviewed, "review", np.where(by_thumb, "thumb", ""))
    every = verdicts.reindex(range(answers))
    return pd.DataFrame(
        {
            "correct": label.astype("int64"),
            "weight": np.where(reviewed, 1.0, weight),
            "source": pd.Series(source, dtype="str").replace("", None),
            "complete": every["complete"].astype("boolean"),
            "judged_correct": every["correct"].astype("boolean"),
            "truthful": every["truthful"].astype("boolean"),
            "inclusion_probability": every["inclusion_probability"].astype("float64").fillna(propensity),
            "drawn": every["inclusion_probability"].notna(),
            "reviewers": every["reviewers"].astype(object).where(reviewed, None),
        }
    )
