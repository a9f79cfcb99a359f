"""Build an evaluation set from reviewed answers that production and its shadow both decided about. Pure.

Only sampled reviews count. Self-selected reviews are mostly about answers that production has shown. Among these,
production's own confidences are all high, so any other scorer would seem to rank better.
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
    """Join paired decisions with sampled reviews.

    Args:
        pairs: Decisions of production and shadow about the same answers.
        frames: The stored data. Pairs without an interaction are left out, because their group is unknown.
        params: Rules that turn reviews into labels.

    Returns:
        One row for each reviewed pair, sorted by id: the fields of `PairedDecision`, `group`, `product`, `correct` (0
        or 1) and `inclusion_probability`.
    """
    decisions = pd.DataFrame([asdict(pair) for pair in pairs], columns=list(PairedDecision.__dataclass_fields__))
    interactions = frames.interactions[["interaction_id", "group", "product"]].drop_duplicates("interaction_id")
    decisions = decisions.merge(interactions, on="interaction_id").sort_values("interaction_id", ignore_index=True)
    row_index = pd.Index(decisions["interaction_id"]).get_indexer(pd.Index(frames.reviews["interaction_id"]))
    reviews = frames.reviews[row_index >= 0].assign(row=row_index[row_index >= 0])
    labels = resolve_reviews(select_latest_reviews(reviews, params), params)
    sampled = labels[labels["inclusion_probability"].notna()]
    rows = decisions.loc[sampled.index].assign(
        correct=sampled["label"].astype(int), inclusion_probability=sampled["inclusion_probability"].astype(float)
    )
    return rows.reset_index(drop=True)


def make_evaluation_set(rows: pd.DataFrame, champion: str) -> EvaluationSet:
    """Make an evaluation set from the result of `join_paired_reviews`.

    Args:
        rows: Reviewed pairs.
        champion: Name of the version in production.

    Returns:
        The evaluation set; the shadow is the candidate.
    """
    probabilities = rows[["probability", "shadow_probability"]].astype(float)
    has_probabilities = bool(probabilities.notna().all(axis=None))
    return EvaluationSet(
        correct=rows["correct"].to_numpy(int),
        groups=rows["group"].to_numpy(),
        products=rows["product"].fillna("(none)").to_numpy(),
        confidences={
            CANDIDATE: rows["shadow_confidence"].to_numpy(float),
            champion: rows["confidence"].to_numpy(float),
        },
        probabilities=probabilities["shadow_probability"].to_numpy() if has_probabilities else None,
        champion_probability=probabilities["probability"].to_numpy() if has_probabilities else None,
        weight=row_weights(rows["inclusion_probability"].to_numpy(float)),
    )


def read_thresholds(rows: pd.DataFrame, champion: str) -> dict[str, float]:
    """Read the thresholds of both scorers; the threshold of a version never changes.

    Args:
        rows: Reviewed pairs.
        champion: Name of the version in production.

    Returns:
        Threshold by scorer, as in `make_evaluation_set`.
    """
    return {CANDIDATE: float(rows["shadow_threshold"].iloc[0]), champion: float(rows["threshold"].iloc[0])}


def hash_reviews(rows: pd.DataFrame) -> str:
    """Hash the compared reviews and confidences.

    Args:
        rows: Reviewed pairs.

    Returns:
        sha256 (hex). If it is unchanged, nothing was reviewed since.
    """
    columns = ["interaction_id", "correct", "inclusion_probability", "confidence", "shadow_confidence"]
    values = rows[columns].astype(object).where(rows[columns].notna(), None).to_numpy().tolist()
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()
