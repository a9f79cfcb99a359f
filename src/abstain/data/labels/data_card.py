"""The data card, for JSON: sources and counts of labels, and the agreement of reviewers and users. Pure.

It stays small for any amount of data: counts, shares and quantiles; users are not named, but for those who contradict
the others, and lists of answers and of reviewers are cut at `LISTED` entries, with the total number beside them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from abstain.config.params import LabelParams
from abstain.data.labels.contradictions import Contradictions
from abstain.data.labels.reliability import DOWN, UP, Agreement, Reliability, Share
from abstain.data.labels.reviewers import LISTED, reviewer_agreement
from abstain.data.labels.user_share import LargestUserShare

EVALUATED_SPLITS = ("train", "validation", "holdout", "newest")
QUANTILES = (0.05, 0.5, 0.95)


def data_card(
    answers: pd.DataFrame,
    votes: pd.DataFrame,
    last: pd.DataFrame,
    pool: Agreement,
    known: Reliability | None,
    largest: LargestUserShare,
    contradicting: Contradictions,
    params: LabelParams,
) -> dict[str, Any]:
    """The summary of a training table.

    Args:
        answers: every answer with its split and whether it was left_out or joined (`split_rows`), its label where it
            has one, whether it is a refusal, whether it has a twin_in_training, how many thumbs count, and their
            balance.
        votes: the thumbs that reliability was estimated on.
        last: each reviewer's last review of each answer.
        pool: these thumbs against reviewers.
        known: the estimated reliability of thumbs, or None where there is too little data for one.
        largest: the largest share of one user in the weight of the training labels by thumbs.
        contradicting: those whose judgements contradict the others' beyond chance.
    """
    used = answers["split"] != "excluded"
    by_thumb, by_reviewer = answers["source"] == "thumb", answers["source"] == "review"
    silent = answers[used & ~by_thumb & ~by_reviewer]
    conflicts = answers.loc[answers["reviews_disagree"], "interaction_id"]
    weights = answers.loc[by_thumb & (answers["split"] == "train"), "weight"].to_numpy()
    return {
        "labels": {
            "reviewed": int(by_reviewer.sum()),
            "thumb": int(by_thumb.sum()),
            "correct": int(answers.loc[by_reviewer | by_thumb, "correct"].sum()),
            "unlabelled": len(silent),
            "tied_thumbs": int(((silent["thumbs"] > 0) & (silent["balance"] == 0)).sum()),
            "thumbs_without_weight": int((silent["balance"] != 0).sum()),
            "conflicting_reviews": len(conflicts),
            "excluded": int((~used).sum()),
        },
        "splits": [
            {"split": name, **_counts(answers[(by_reviewer | by_thumb) & (answers["split"] == name)])}
            for name in EVALUATED_SPLITS
        ],
        "kinds": [
            {"kind": name, **_counts(answers[(by_reviewer | by_thumb) & (answers["refusal"] == refusal)])}
            for name, refusal in (("answers", False), ("refusals", True))
        ],
        "twins": {
            "joined_groups": int(answers.loc[answers["joined"], "group"].nunique()),
            "left_out": int(answers["left_out"].sum()),
            **{
                f"{name}_in_training": int(answers.loc[answers["split"] == name, "twin_in_training"].sum())
                for name in ("holdout", "validation")
            },
        },
        "thumbs": _thumbs(votes, weights, pool, known, largest, params),
        "conflicts": {
            "rule": params.conflicts,
            "answers": conflicts.tolist()[:LISTED],
            "more": max(len(conflicts) - LISTED, 0),
            "thumbs_against_reviewers": int(answers["thumbs_disagree"].sum()),
        },
        "reviewers": reviewer_agreement(last, params),
        "contradicting": contradicting.to_dict(),
    }


def _counts(rows: pd.DataFrame) -> dict[str, Any]:
    return {
        "answers": len(rows),
        "groups": int(rows["group"].nunique()),
        "correct": round(float(rows["correct"].mean()), 3) if len(rows) else None,
        "reviewed": int((rows["source"] == "review").sum()),
    }


def _thumbs(
    votes: pd.DataFrame,
    weights: np.ndarray,
    pool: Agreement,
    known: Reliability | None,
    largest: LargestUserShare,
    params: LabelParams,
) -> dict[str, Any]:
    """Thumbs against reviewers on the training rows, and the resulting weights and user reliabilities."""
    incorrect, correct = (round(effective, 1) for effective in pool.n_eff_by_class)
    down, up = pool.correct_given_thumb
    enough = "" if known else f": {params.min_agreement} of each are needed (labels.min_agreement)"
    return {
        "weights": f"estimated, {params.thumb_model}" if known else "fixed",
        "why": f"{correct:g} correct and {incorrect:g} incorrect training answers (effective) have thumb and review"
        f"{enough}",
        "correct": _share(pool.prior),
        "agreement": [
            {
                "thumb": name,
                "correct": int(pool.votes[thumb, 1]),
                "incorrect": int(pool.votes[thumb, 0]),
                "reviewers_agree": _share(up if thumb == UP else down.complement()),
            }
            for name, thumb in (("up", UP), ("down", DOWN))
        ],
        "liked": {"correct": _share(pool.up_given_verdict[1]), "incorrect": _share(pool.up_given_verdict[0])},
        "users": {
            "known": int(votes.loc[votes["user"] > 0, "user"].nunique()),
            "anonymous_thumbs": int((votes["user"] == 0).sum()),
            "reliability": _quantiles(known.compute_user_reliability(votes) if known else np.array([])),
        },
        "label_weight": _quantiles(weights),
        "largest_share": {
            "users": largest.users,
            "limit": round(largest.limit, 3),
            "before": round(largest.before, 3),
            "after": round(largest.after, 3),
        },
    }


def _share(share: Share) -> dict[str, float]:
    names = ("value", "low", "high", "effective")
    return {name: round(getattr(share, name), 3) for name in names}


def _quantiles(values: np.ndarray) -> dict[str, float] | None:
    """By percent, as text."""
    if not len(values):
        return None
    return {f"{at:.0%}": round(float(np.quantile(values, at)), 3) for at in QUANTILES}
