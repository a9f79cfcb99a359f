"""From reviews and thumbs to labels: one an interaction, with its source and weight beside it. Pure.

Three decisions:

* A review outranks every thumb: it says whether the answer is right, a thumb only whether it was useful.
* Of several reviews the latest decides. Reviews that disagree are counted, and two latest ones of the same
  moment make the answer right only if both say so: showing a wrong answer costs more than withholding one.
* Of several thumbs the majority decides, a known user counting once, with the last one; a tie is no label.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

from abstain.contracts import Feedback, Interaction, Review
from abstain.params import LabelParams

Source = Literal["sme", "thumb"]


@dataclass(frozen=True)
class Label:
    """Whether the answer was right, who says so, and how much that counts in training."""

    interaction_id: str
    right: bool
    source: Source
    weight: float
    inclusion_probability: float | None = None


@dataclass(frozen=True)
class Labelling:
    """The labels in the order of the interactions, and what did not become one."""

    labels: tuple[Label, ...]
    unlabelled: int
    tied_thumbs: int
    conflicting_reviews: int

    def counts(self) -> dict[str, int]:
        """Labels by source; `unlabelled` includes the tied ones."""
        return {
            "sme": sum(label.source == "sme" for label in self.labels),
            "thumb": sum(label.source == "thumb" for label in self.labels),
            "right": sum(label.right for label in self.labels),
            "unlabelled": self.unlabelled,
            "tied_thumbs": self.tied_thumbs,
            "conflicting_reviews": self.conflicting_reviews,
        }

    def to_dict(self) -> dict[str, Any]:
        return {"counts": self.counts(), "labels": [asdict(label) for label in self.labels]}


def label_rows(
    interactions: Sequence[Interaction],
    feedback: Iterable[Feedback],
    reviews: Iterable[Review],
    params: LabelParams,
    frozen_at: datetime | None = None,
) -> Labelling:
    """Label `interactions`; with `frozen_at` as things stood then, without what was given at that moment or later."""
    thumbs_of: dict[str, list[Feedback]] = {}
    for thumb in feedback:
        if frozen_at is None or thumb.given_at < frozen_at:
            thumbs_of.setdefault(thumb.interaction_id, []).append(thumb)
    reviews_of: dict[str, list[Review]] = {}
    for review in reviews:
        if frozen_at is None or review.reviewed_at < frozen_at:
            reviews_of.setdefault(review.interaction_id, []).append(review)

    labels: list[Label] = []
    tied = conflicting = 0
    for interaction in interactions:
        key = interaction.interaction_id
        if own := reviews_of.get(key):
            latest = max(review.reviewed_at for review in own)
            deciding = [review for review in own if review.reviewed_at == latest]
            right = all(is_right(review, params) for review in deciding)
            probability = deciding[-1].inclusion_probability
            labels.append(Label(key, right, "sme", params.review_weight, probability))
            conflicting += len({is_right(review, params) for review in own}) > 1
        elif thumbs := thumbs_of.get(key):
            balance = _balance(thumbs)
            tied += balance == 0
            if balance:
                labels.append(Label(key, balance > 0, "thumb", params.thumb_weight))
    return Labelling(tuple(labels), len(interactions) - len(labels), tied, conflicting)


def is_right(review: Review, params: LabelParams) -> bool:
    """Whether every verdict that `params.require` names is a yes."""
    return all(getattr(review, name) for name in params.require)


def _balance(thumbs: Sequence[Feedback]) -> int:
    """Ups less downs, each known user's last thumb only."""
    counted: list[Feedback] = [thumb for thumb in thumbs if not thumb.user]
    last: dict[str, Feedback] = {}
    for thumb in thumbs:
        if thumb.user and (thumb.user not in last or thumb.given_at >= last[thumb.user].given_at):
            last[thumb.user] = thumb
    return sum(1 if thumb.thumb == "up" else -1 for thumb in (*counted, *last.values()))
