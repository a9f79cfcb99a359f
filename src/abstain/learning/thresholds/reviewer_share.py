"""The largest share of one reviewer in the answers that a guarantee rests on.

A guarantee from the labels of one person is no more than the word of that person.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ReviewerShare:
    """The largest share of one reviewer, without the name: everybody who reads a guarantee may know the share.

    Attributes:
        share: Their share of the weight, in [0, 1].
        reviewers: Number of all reviewers.
    """

    share: float
    reviewers: int


def find_largest_share(reviewers: Iterable[Sequence[str]], weight: np.ndarray) -> ReviewerShare | None:
    """Find the reviewer whose labels have the largest share of the weight.

    Args:
        reviewers: (rows,) the reviewers that decided the label of each row; its weight is divided evenly among them.
        weight: (rows,) sampling weights.

    Returns:
        The largest share; None if no row has a reviewer.
    """
    weight_by_reviewer: dict[str, float] = {}
    for row_reviewers, row_weight in zip(reviewers, weight.tolist(), strict=True):
        for reviewer in row_reviewers:
            weight_by_reviewer[reviewer] = weight_by_reviewer.get(reviewer, 0.0) + row_weight / len(row_reviewers)
    if not weight_by_reviewer:
        return None
    return ReviewerShare(max(weight_by_reviewer.values()) / float(weight.sum()), len(weight_by_reviewer))
