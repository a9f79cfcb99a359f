"""The data card, for JSON: sources and counts of labels, and the agreement of reviewers and users. Pure.

It is small for any amount of data: counts, shares and quantiles. Users are not named, except those who contradict
others. Lists of answers and reviewers are cut at `MAX_LISTED` entries and give the total number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from abstain.config.params import LabelParams
from abstain.data.labels.contradictions import Contradictions
from abstain.data.labels.reliability import DOWN, UP, Agreement, Reliability, Share
from abstain.data.labels.reviewers import MAX_LISTED, summarize_reviewer_agreement
from abstain.data.labels.user_share import LargestUserShare

EVALUATED_SPLITS = ("train", "validation", "holdout", "newest")
QUANTILES = (0.05, 0.5, 0.95)


def build_data_card(
    answers: pd.DataFrame,
    training_thumbs: pd.DataFrame,
    latest_reviews: pd.DataFrame,
    agreement: Agreement,
    reliability: Reliability | None,
    largest_share: LargestUserShare,
    contradictions: Contradictions,
    params: LabelParams,
) -> dict[str, Any]:
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
    unlabelled = answers[is_used & ~is_by_thumb & ~is_by_reviewer]
    conflicts = answers.loc[answers["reviews_disagree"], "interaction_id"]
    weights = answers.loc[is_by_thumb & (answers["split"] == "train"), "weight"].to_numpy()
    return {
        "labels": {
            "reviewed": int(is_by_reviewer.sum()),
            "thumb": int(is_by_thumb.sum()),
            "correct": int(answers.loc[is_by_reviewer | is_by_thumb, "correct"].sum()),
            "unlabelled": len(unlabelled),
            "tied_thumbs": int(((unlabelled["thumbs"] > 0) & (unlabelled["balance"] == 0)).sum()),
            "thumbs_without_weight": int((unlabelled["balance"] != 0).sum()),
            "conflicting_reviews": len(conflicts),
            "excluded": int((~is_used).sum()),
        },
        "splits": [
            {"split": name, **_count_answers(answers[(is_by_reviewer | is_by_thumb) & (answers["split"] == name)])}
            for name in EVALUATED_SPLITS
        ],
        "kinds": [
            {"kind": name, **_count_answers(answers[(is_by_reviewer | is_by_thumb) & (answers["refusal"] == refusal)])}
            for name, refusal in (("answers", False), ("refusals", True))
        ],
        "near_duplicates": {
            "joined_groups": int(answers.loc[answers["joined"], "group"].nunique()),
            "left_out": int(answers["left_out"].sum()),
            **{
                f"{name}_in_training": int(answers.loc[answers["split"] == name, "duplicate_in_training"].sum())
                for name in ("holdout", "validation")
            },
        },
        "thumbs": _summarize_thumbs(training_thumbs, weights, agreement, reliability, largest_share, params),
        "conflicts": {
            "rule": params.conflicts,
            "answers": conflicts.tolist()[:MAX_LISTED],
            "more": max(len(conflicts) - MAX_LISTED, 0),
            "thumbs_against_reviewers": int(answers["thumbs_disagree"].sum()),
        },
        "reviewers": summarize_reviewer_agreement(latest_reviews, params),
        "contradicting": contradictions.to_dict(),
    }


def _count_answers(rows: pd.DataFrame) -> dict[str, Any]:
    return {
        "answers": len(rows),
        "groups": int(rows["group"].nunique()),
        "correct": round(float(rows["correct"].mean()), 3) if len(rows) else None,
        "reviewed": int((rows["source"] == "review").sum()),
    }


def _summarize_thumbs(
    training_thumbs: pd.DataFrame,
    weights: np.ndarray,
    agreement: Agreement,
    reliability: Reliability | None,
    largest_share: LargestUserShare,
    params: LabelParams,
) -> dict[str, Any]:
    """Compare thumbs with reviewers on the training rows, and give the resulting weights and user reliabilities."""
    incorrect, correct = (round(n_eff, 1) for n_eff in agreement.n_eff_by_class)
    down, up = agreement.correct_given_thumb
    requirement = "" if reliability else f": {params.min_agreement} of each are needed (labels.min_agreement)"
    return {
        "weights": f"estimated, {params.thumb_model}" if reliability else "fixed",
        "reason": f"{correct:g} correct and {incorrect:g} incorrect training answers (effective) have thumb and review"
        f"{requirement}",
        "correct": _format_share(agreement.prior),
        "agreement": [
            {
                "thumb": name,
                "correct": int(agreement.votes[thumb, 1]),
                "incorrect": int(agreement.votes[thumb, 0]),
                "reviewers_agree": _format_share(up if thumb == UP else down.complement()),
            }
            for name, thumb in (("up", UP), ("down", DOWN))
        ],
        "liked": {
            "correct": _format_share(agreement.up_given_label[1]),
            "incorrect": _format_share(agreement.up_given_label[0]),
        },
        "users": {
            "identified": int(training_thumbs.loc[training_thumbs["user"] > 0, "user"].nunique()),
            "anonymous_thumbs": int((training_thumbs["user"] == 0).sum()),
            "reliability": _compute_quantiles(
                reliability.compute_user_reliability(training_thumbs) if reliability else np.array([])
            ),
        },
        "label_weight": _compute_quantiles(weights),
        "largest_share": {
            "users": largest_share.n_users,
            "limit": round(largest_share.limit, 3),
            "before": round(largest_share.before, 3),
            "after": round(largest_share.after, 3),
        },
    }


def _format_share(share: Share) -> dict[str, float]:
    numbers = {"value": share.value, "low": share.low, "high": share.high, "n_eff": share.n_eff}
    return {name: round(number, 3) for name, number in numbers.items()}


def _compute_quantiles(values: np.ndarray) -> dict[str, float] | None:
    """Return quantiles by percent, as text; None without values."""
    if not len(values):
        return None
    return {f"{quantile:.0%}": round(float(np.quantile(values, quantile)), 3) for quantile in QUANTILES}
