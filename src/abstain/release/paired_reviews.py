"""Reviews of answers that production and its shadow have both decided about, as a window of the two. Pure.

Only reviews that were drawn with known probabilities count. Those that somebody chose to give are mostly of what
production has shown: among these its own confidences are all high, so any other scorer would seem to rank better.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd

from abstain.config.params import LabelParams
from abstain.data.decision_log.queries import PairedDecision
from abstain.data.labels.answer_labels import resolve_reviews, select_latest_reviews
from abstain.data.store.dataframes import StoreFrames
from abstain.learning.metrics.weighted_metrics import row_weights
from abstain.release.evaluation_set import CANDIDATE, EvaluationSet


def join_paired_reviews(pairs: Sequence[PairedDecision], frames: StoreFrames, params: LabelParams) -> pd.DataFrame:
    """The ones of `pairs` with a drawn review: the fields of `PairedDecision`, group, product, correct (0/1) and
    inclusion_probability, by rising id.

    Pairs that `frames` has no interaction of are left out: what they are about is not known.
    """
    both = pd.DataFrame([asdict(pair) for pair in pairs], columns=list(PairedDecision.__dataclass_fields__))
    asked = frames.interactions[["interaction_id", "group", "product"]].drop_duplicates("interaction_id")
    both = both.merge(asked, on="interaction_id").sort_values("interaction_id", ignore_index=True)
    row = pd.Index(both["interaction_id"]).get_indexer(pd.Index(frames.reviews["interaction_id"]))
    reviews = frames.reviews[row >= 0].assign(row=row[row >= 0])
    verdicts = resolve_reviews(select_latest_reviews(reviews, params), params)
    drawn = verdicts[verdicts["inclusion_probability"].notna()]
    rows = both.loc[drawn.index].assign(
        correct=drawn["label"].astype(int), inclusion_probability=drawn["inclusion_probability"].astype(float)
    )
    return rows.reset_index(drop=True)


def make_evaluation_set(rows: pd.DataFrame, champion: str) -> EvaluationSet:
    """`join_paired_reviews` as a window: the shadow is the challenger."""
    probabilities = rows[["probability", "shadow_probability"]].astype(float)
    are_known = bool(probabilities.notna().all(axis=None))
    return EvaluationSet(
        correct=rows["correct"].to_numpy(int),
        groups=rows["group"].to_numpy(),
        products=rows["product"].fillna("(none)").to_numpy(),
        confidences={
            CANDIDATE: rows["shadow_confidence"].to_numpy(float),
            champion: rows["confidence"].to_numpy(float),
        },
        probabilities=probabilities["shadow_probability"].to_numpy() if are_known else None,
        champion_probability=probabilities["probability"].to_numpy() if are_known else None,
        weight=row_weights(rows["inclusion_probability"].to_numpy(float)),
    )


def read_thresholds(rows: pd.DataFrame, champion: str) -> dict[str, float]:
    """The threshold of each, by its name in `make_evaluation_set`; of one version it never changes."""
    return {CANDIDATE: float(rows["shadow_threshold"].iloc[0]), champion: float(rows["threshold"].iloc[0])}


def reviews_digest(rows: pd.DataFrame) -> str:
    """sha256 (hex) over what is compared: equal ones say that nothing was reviewed since."""
    columns = ["interaction_id", "correct", "inclusion_probability", "confidence", "shadow_confidence"]
    said = rows[columns].astype(object).where(rows[columns].notna(), None).to_numpy().tolist()
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()
