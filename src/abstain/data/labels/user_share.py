"""No user carries the labels: the share of one user's thumbs in the weight of all labels by thumbs. Columnar and pure.

Notes:

* The weight of a label is divided evenly among the thumbs that made it: those whose evidence is for that label.
* No user may have more than `labels.max_user_share` of all thumb weight, nor more than 1/n of it where n users carry
  weight and that is more: n shares below 1/n do not add up to a whole. What exceeds the limit is taken off that user's
  part of each label in equal proportion, so the others weigh what they weighed (water-filling, in closed form).
* Every anonymous thumb counts as a user of its own, as in `select_countable_thumbs`: who gave it is not known, so no
  two of them can be held to be one person's. So the limit does not bind somebody who gives many of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class LargestUserShare:
    """The largest share of one of `users` in all thumb weight, before and after the limit; 0 where there is none."""

    users: int
    limit: float
    before: float
    after: float


def cap_user_weights(
    votes: pd.DataFrame, evidence: np.ndarray, labels: pd.DataFrame, limit: float
) -> tuple[pd.Series, LargestUserShare]:
    """The weights of `labels`, so that none of the users has more than `limit` of their sum, and the largest share.

    Args:
        votes: row, user (0: anonymous), up. Votes on rows that `labels` lacks do not count.
        evidence: (votes,) positive where the vote is for correct, negative where it is for incorrect.
        labels: by row: label, weight; the labels that thumbs made.
    """
    voted = votes.assign(correct=evidence > 0).join(labels, on="row", how="inner")
    made = voted[(voted["correct"] == voted["label"]) & (voted["weight"] > 0)]
    part = made["weight"] / made.groupby("row")["row"].transform("size")
    user = made["user"].to_numpy()
    person, _ = pd.factorize(np.where(user > 0, user, -1 - np.arange(len(user))))
    carried = np.bincount(person, part)
    allowed = max(limit, 1 / max(len(carried), 1))
    kept = np.minimum(carried, allowed * _total(carried, allowed))
    left = (part * (kept / carried)[person]).groupby(made["row"]).sum()
    return left.reindex(labels.index, fill_value=0.0), LargestUserShare(
        len(carried), allowed, _largest(carried), _largest(kept)
    )


def _total(carried: np.ndarray, allowed: float) -> float:
    """The largest total T that is the sum of min(carried, allowed * T); `allowed` is at least 1 / len(carried).

    Where the k users that carry most are at the limit, T = k * allowed * T + the rest. The smallest k for which the
    next user is within the limit is the one.
    """
    if not len(carried):
        return 0.0
    descending = np.sort(carried)[::-1]
    at_limit = np.arange(min(len(carried), int(np.ceil(1 / allowed - 1e-9))))
    rest = carried.sum() - np.append(0, np.cumsum(descending))[at_limit]
    total = rest / (1 - at_limit * allowed)
    within = descending[at_limit] <= allowed * total
    within[-1] = True  # by rounding alone it is not
    return float(total[np.argmax(within)])


def _largest(carried: np.ndarray) -> float:
    return float(carried.max() / carried.sum()) if len(carried) else 0.0
