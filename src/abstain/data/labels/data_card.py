"""The data card, dataset.json: sources and counts of labels, and the agreement of reviewers and users.

It is small for any amount of data: counts, shares and quantiles. Users are not named, except those who contradict
others. Lists of answers and reviewers are cut at `MAX_LISTED` entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd
from pydantic import TypeAdapter

from abstain.config.params import LabelParams
from abstain.data.labels.contradictions import Contradictions
from abstain.data.labels.reliability import DOWN, UP, Agreement, Reliability, Rounded, Share
from abstain.data.labels.reviewers import MAX_LISTED, ReviewerAgreement, summarize_reviewer_agreement
from abstain.data.labels.user_share import LargestUserShare

EVALUATED_SPLITS = ("train", "validation", "holdout", "newest")
QUANTILES = (0.05, 0.5, 0.95)

Quantiles = Mapping[str, Rounded]
"""Quantiles by percent, as text."""


@dataclass(frozen=True)
class LabelCounts:
    """Number of answers by what their label comes from, or why they have none."""

    reviewed: int
    thumb: int
    correct: int
    unlabelled: int
    tied_thumbs: int
    thumbs_without_weight: int
    conflicting_reviews: int
    excluded: int


@dataclass(frozen=True)
class AnswerCounts:
    """Labelled answers with this `split` or of this `kind`; the share of correct ones is None without any."""

    answers: int
    groups: int
    correct: Rounded | None
    reviewed: int


@dataclass(frozen=True)
class SplitCounts(AnswerCounts):
    """Labelled answers of a split."""

    split: str


@dataclass(frozen=True)
class KindCounts(AnswerCounts):
    """Labelled answers of a kind, "answers" or "refusals"."""

    kind: str


@dataclass(frozen=True)
class NearDuplicates:
    """Groups that near-duplicates join, those left out of training, and those of training answers by split."""

    joined_groups: int
    left_out: int
    holdout_in_training: int
    validation_in_training: int


@dataclass(frozen=True)
class ThumbAgreement:
    """Number of correct and incorrect answers with a thumb, "up" or "down", and how often reviewers agree with it."""

    thumb: str
    correct: int
    incorrect: int
    reviewers_agree: Share


@dataclass(frozen=True)
class UserThumbs:
    """Identified users, thumbs of others, and how often the users' thumbs agree with reviewers; None if not known."""

    identified: int
    anonymous_thumbs: int
    reliability: Quantiles | None


@dataclass(frozen=True)
class ThumbSummary:
    """Thumbs of the training split, compared with reviewers, and the weights of their labels, for this `reason`.

    `liked` is the share of ups among the thumbs on correct and on incorrect answers.
    """

    weights: str
    reason: str
    correct: Share
    agreement: tuple[ThumbAgreement, ...]
    liked: Mapping[str, Share]
    users: UserThumbs
    label_weight: Quantiles | None
    largest_share: LargestUserShare


@dataclass(frozen=True)
class Conflicts:
    """Ids of answers on which reviews disagree, the number of `more` of them, and `labels.conflicts`."""

    rule: str
    answers: tuple[str, ...]
    more: int
    thumbs_against_reviewers: int


@dataclass(frozen=True)
class DataCard:
    """Content of dataset.json."""

    labels: LabelCounts
    splits: tuple[SplitCounts, ...]
    kinds: tuple[KindCounts, ...]
    near_duplicates: NearDuplicates
    thumbs: ThumbSummary
    conflicts: Conflicts
    reviewers: ReviewerAgreement
    contradicting: Contradictions

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Check the parsed content of dataset.json."""
        return TypeAdapter(cls).validate_python(content)

    def to_dict(self) -> dict[str, Any]:
        """Return the card for JSON."""
        content: dict[str, Any] = TypeAdapter(DataCard).dump_python(self, mode="json", by_alias=True)
        return content


def build_data_card(
    answers: pd.DataFrame,
    training_thumbs: pd.DataFrame,
    latest_reviews: pd.DataFrame,
    agreement: Agreement,
    reliability: Reliability | None,
    largest_share: LargestUserShare,
    contradictions: Contradictions,
    params: LabelParams,
) -> DataCard:
    """Summarize a training table.

    Args:
        answers: Every answer with its split, left_out and joined (`split_rows`), label if it has one, refusal,
            duplicate_in_training, and the number and balance of the thumbs that count.
        training_thumbs: Thumbs on which the reliability was estimated.
        latest_reviews: Each reviewer's last review of each answer.
        agreement: Agreement of these thumbs with reviewers.
        reliability: Estimated reliability of thumbs; None if there is too little data.
        largest_share: Largest share of one user in the weight of the training labels by thumbs.
        contradictions: Persons who contradict others beyond chance.
        params: `labels` of params.yaml.

    Returns:
        The data card.
    """
    is_used = answers["split"] != "excluded"
    is_by_thumb, is_by_reviewer = answers["source"] == "thumb", answers["source"] == "review"
    labelled, unlabelled = answers[answers["source"].notna()], answers[is_used & answers["source"].isna()]
    conflicts = answers.loc[answers["reviews_disagree"], "interaction_id"]
    in_training = answers.loc[answers["duplicate_in_training"], "split"].value_counts()
    return DataCard(
        labels=LabelCounts(
            reviewed=int(is_by_reviewer.sum()),
            thumb=int(is_by_thumb.sum()),
            correct=int(labelled["correct"].sum()),
            unlabelled=len(unlabelled),
            tied_thumbs=int(((unlabelled["thumbs"] > 0) & (unlabelled["balance"] == 0)).sum()),
            thumbs_without_weight=int((unlabelled["balance"] != 0).sum()),
            conflicting_reviews=len(conflicts),
            excluded=int((~is_used).sum()),
        ),
        splits=tuple(
            SplitCounts(split=name, **_count_answers(labelled[labelled["split"] == name])) for name in EVALUATED_SPLITS
        ),
        kinds=tuple(
            KindCounts(kind=name, **_count_answers(labelled[labelled["refusal"] == refusal]))
            for name, refusal in (("answers", False), ("refusals", True))
        ),
        near_duplicates=NearDuplicates(
            joined_groups=int(answers.loc[answers["joined"], "group"].nunique()),
            left_out=int(answers["left_out"].sum()),
            holdout_in_training=int(in_training.get("holdout", 0)),
            validation_in_training=int(in_training.get("validation", 0)),
        ),
        thumbs=_summarize_thumbs(
            training_thumbs,
            labelled.loc[is_by_thumb & (labelled["split"] == "train"), "weight"].to_numpy(),
            agreement,
            reliability,
            largest_share,
            params,
        ),
        conflicts=Conflicts(
            rule=params.conflicts,
            answers=tuple(conflicts[:MAX_LISTED]),
            more=max(len(conflicts) - MAX_LISTED, 0),
            thumbs_against_reviewers=int(answers["thumbs_disagree"].sum()),
        ),
        reviewers=summarize_reviewer_agreement(latest_reviews, params),
        contradicting=contradictions,
    )


def _count_answers(rows: pd.DataFrame) -> dict[str, Any]:
    return {
        "answers": len(rows),
        "groups": int(rows["group"].nunique()),
        "correct": float(rows["correct"].mean()) if len(rows) else None,
        "reviewed": int((rows["source"] == "review").sum()),
    }


def _summarize_thumbs(
    training_thumbs: pd.DataFrame,
    weights: np.ndarray,
    agreement: Agreement,
    reliability: Reliability | None,
    largest_share: LargestUserShare,
    params: LabelParams,
) -> ThumbSummary:
    """Compare thumbs with reviewers on the training rows, and give the resulting weights and user reliabilities."""
    incorrect, correct = (round(n_eff, 1) for n_eff in agreement.n_eff_by_class)
    down, up = agreement.correct_given_thumb
    requirement = "" if reliability else f": {params.min_agreement} of each are needed (labels.min_agreement)"
    users = training_thumbs["user"]
    return ThumbSummary(
        weights=f"estimated, {params.thumb_model}" if reliability else "fixed",
        reason=f"{correct:g} correct and {incorrect:g} incorrect training answers (effective) have thumb and review"
        f"{requirement}",
        correct=agreement.prior,
        agreement=tuple(
            ThumbAgreement(name, int(agreement.votes[thumb, 1]), int(agreement.votes[thumb, 0]), share)
            for name, thumb, share in (("up", UP, up), ("down", DOWN, down.complement()))
        ),
        liked=dict(zip(("incorrect", "correct"), agreement.up_given_label, strict=True)),
        users=UserThumbs(
            identified=int(users[users > 0].nunique()),
            anonymous_thumbs=int((users == 0).sum()),
            reliability=_compute_quantiles(
                reliability.compute_user_reliability(training_thumbs) if reliability else np.array([])
            ),
        ),
        label_weight=_compute_quantiles(weights),
        largest_share=largest_share,
    )


def _compute_quantiles(values: np.ndarray) -> Quantiles | None:
    return {f"{quantile:.0%}": float(np.quantile(values, quantile)) for quantile in QUANTILES} if len(values) else None
