"""The largest share of one reviewer in the answers that a guarantee rests on.

A guarantee from the labels of one person is no more than the word of that person.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from abstain.core.text import PSEUDONYM, shorten_name


@dataclass(frozen=True)
class ReviewerShare:
    """The reviewer with the largest share of the weight.

    Attributes:
        reviewer: Name or pseudonym of this reviewer.
        share: Their share of the weight, in [0, 1].
        reviewers: Number of all reviewers.
    """

    reviewer: str
    share: float
    reviewers: int

    def __str__(self) -> str:
        """Name the reviewer only by a pseudonym, because every served decision carries its guarantee."""
        name = f" {shorten_name(self.reviewer)}" if PSEUDONYM.fullmatch(self.reviewer) else ""
        return f"one reviewer{name} of {self.reviewers:,} judged {self.share:.0%} of it"


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
    largest = max(sorted(weight_by_reviewer), key=weight_by_reviewer.__getitem__)
    return ReviewerShare(largest, weight_by_reviewer[largest] / float(weight.sum()), len(weight_by_reviewer))
