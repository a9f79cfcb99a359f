"""The share of one reviewer in the answers that a guarantee rests on: of one person's verdicts it is no more than that
person's word."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from abstain.core.text import PSEUDONYM, short_name


@dataclass(frozen=True)
class ReviewerShare:
    """The reviewer whose verdicts weigh most, of `reviewers`, and their `share` of the weight, in [0, 1]."""

    reviewer: str
    share: float
    reviewers: int

    def __str__(self) -> str:
        """Names pseudonyms alone, because every served decision carries its guarantee."""
        name = f" {short_name(self.reviewer)}" if PSEUDONYM.fullmatch(self.reviewer) else ""
        return f"one reviewer{name} of {self.reviewers:,} judged {self.share:.0%} of it"


def find_largest_share(reviewers: Iterable[Sequence[str]], weight: np.ndarray) -> ReviewerShare | None:
    """The largest share of one reviewer in the `weight` (rows,) of answers; None where there is none.

    Args:
        reviewers: of each row those whose verdict decided; its weight is divided evenly among them.
    """
    judged: dict[str, float] = {}
    for names, whole in zip(reviewers, weight.tolist(), strict=True):
        for name in names:
            judged[name] = judged.get(name, 0.0) + whole / len(names)
    if not judged:
        return None
    most = max(sorted(judged), key=judged.__getitem__)
    return ReviewerShare(most, judged[most] / float(weight.sum()), len(judged))
