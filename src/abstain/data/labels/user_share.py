"""The share of one user's thumbs in the weight of all labels by thumbs, and its limit. Columnar and pure.

Notes:

* The weight of a label is divided evenly among the thumbs that support it: those whose evidence is for that label.
* No user may have more than `labels.max_user_share` of all thumb weight, nor more than 1/n of it if n users carry
  weight and that is more: n shares below 1/n do not add up to a whole. The excess is removed from that user's part of
  each label in equal proportion, so the weights of others stay the same (water-filling, in closed form).
* Every anonymous thumb counts as a user of its own, as in `select_countable_thumbs`: two of them cannot be attributed
  to the same person. So the limit does not bind a person who gives many of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pandas as pd
from pydantic import Field

from abstain.data.labels.reliability import Rounded


@dataclass(frozen=True)
class LargestUserShare:
    """The largest share of one user in all thumb weight; 0 if there is no weight.

    Attributes:
        n_users: Number of users who carry weight.
        limit: Highest allowed share.
        before: Largest share before the limit.
        after: Largest share after the limit.
    """

    n_users: Annotated[int, Field(alias="users")]
    limit: Rounded
    before: Rounded
    after: Rounded


def cap_user_weights(
    thumbs: pd.DataFrame, evidence: np.ndarray, labels: pd.DataFrame, limit: float
) -> tuple[pd.Series, LargestUserShare]:
    """Reduce label weights so that no user carries more than a share of their sum.

    Args:
        thumbs: Columns row, user (0 for anonymous), up. Thumbs on rows that `labels` lacks do not count.
        evidence: (thumbs,) positive for a thumb that supports correct, negative for incorrect.
        labels: By row: label, weight; the labels by thumbs.
        limit: Highest allowed share, in (0, 1].

    Returns:
        The new weights, by row of `labels`, and the largest share before and after.
    """
    labelled_thumbs = thumbs.assign(correct=evidence > 0).join(labels, on="row", how="inner")
    supporting = labelled_thumbs[
        (labelled_thumbs["correct"] == labelled_thumbs["label"]) & (labelled_thumbs["weight"] > 0)
    ]
    thumb_weight = supporting["weight"] / supporting.groupby("row")["row"].transform("size")
    user = supporting["user"].to_numpy()
    person, _ = pd.factorize(np.where(user > 0, user, -1 - np.arange(len(user))))
    user_weight = np.bincount(person, thumb_weight)
    max_share = max(limit, 1 / max(len(user_weight), 1))
    capped_weight = np.minimum(user_weight, max_share * _compute_capped_total(user_weight, max_share))
    label_weight = (thumb_weight * (capped_weight / user_weight)[person]).groupby(supporting["row"]).sum()
    return label_weight.reindex(labels.index, fill_value=0.0), LargestUserShare(
        len(user_weight), max_share, _get_largest_share(user_weight), _get_largest_share(capped_weight)
    )


def _compute_capped_total(user_weight: np.ndarray, max_share: float) -> float:
    """Return the largest total T that is the sum of min(user_weight, max_share * T).

    If the k users with the largest weights are at the limit, T = k * max_share * T + the rest. The solution is the
    smallest k for which the next user is within the limit. `max_share` is at least 1 / len(user_weight).
    """
    if not len(user_weight):
        return 0.0
    descending = np.sort(user_weight)[::-1]
    n_at_limit = np.arange(min(len(user_weight), int(np.ceil(1 / max_share - 1e-9))))
    rest = user_weight.sum() - np.append(0, np.cumsum(descending))[n_at_limit]
    total = rest / (1 - n_at_limit * max_share)
    is_within_limit = descending[n_at_limit] <= max_share * total
    is_within_limit[-1] = True  # by rounding alone it is not
    return float(total[np.argmax(is_within_limit)])


def _get_largest_share(user_weight: np.ndarray) -> float:
    return float(user_weight.max() / user_weight.sum()) if len(user_weight) else 0.0
