"""Which reviews of answers that both versions decided about are compared."""

import numpy as np
import pandas as pd
import pytest

from abstain.data.decision_log.queries import PairedDecision
from abstain.data.store.dataframes import INTERACTION_DTYPES, REVIEW_DTYPES, THUMB_DTYPES, StoreFrames
from abstain.release.evaluation_set import CANDIDATE
from abstain.release.paired_reviews import hash_reviews, join_paired_reviews, make_evaluation_set
from tests.checkout import shipped_params
from tests.factories import later

Reviews = list[tuple[str, bool, float | None]]
"""Answer, whether it is correct, and inclusion probability."""


def make_pair(key: str, shadow: float = 0.25, probability: float | None = 0.5) -> PairedDecision:
    return PairedDecision(key, True, 0.75, probability, 0.5, shadow >= 0.5, shadow, 0.2, 0.5)


def join(pairs: list[PairedDecision], reviews: Reviews) -> pd.DataFrame:
    """Join pairs with reviews of answers q-0, q-1 ..., of which each two are about one document."""
    numbers = range(200)
    interactions = {
        **dict.fromkeys(INTERACTION_DTYPES),
        "interaction_id": [f"q-{n}" for n in numbers],
        "group": [f"doc-{n // 2}" for n in numbers],
    }
    keys, correct, probabilities = zip(*reviews, strict=True) if reviews else ((), (), ())
    columns = {
        **dict.fromkeys(("complete", "truthful"), True),
        "interaction_id": keys,
        "correct": correct,
        "inclusion_probability": probabilities,
        "reviewed_at": [later(n) for n in range(len(keys))],
        "reviewer": "sme-1",
    }
    thumbs = pd.DataFrame({name: pd.Series([], dtype=dtype) for name, dtype in THUMB_DTYPES.items()})
    frame = pd.DataFrame(columns, columns=list(REVIEW_DTYPES)).astype(REVIEW_DTYPES)
    return join_paired_reviews(pairs, StoreFrames(pd.DataFrame(interactions), thumbs, frame), shipped_params().labels)


def test_join_paired_reviews_last_review_counts() -> None:
    rows = join(
        [make_pair("q-3", 0.9), make_pair("q-1"), make_pair("q-2"), make_pair("elsewhere")],
        [("q-1", True, 0.5), ("q-3", True, 0.25), ("q-3", False, 0.25), ("q-9", True, 0.5)],
    )
    assert rows["interaction_id"].tolist() == ["q-1", "q-3"]
    assert rows["correct"].tolist() == [1, 0] and rows["group"].tolist() == ["doc-0", "doc-1"]
    evaluation = make_evaluation_set(rows, "v1.0.0")
    assert evaluation.confidences[CANDIDATE].tolist() == [0.25, 0.9]
    assert evaluation.confidences["v1.0.0"].tolist() == [0.75, 0.75]
    assert evaluation.weight == pytest.approx(np.array([0.5, 1.0]))
    assert evaluation.probabilities is not None and evaluation.champion_probability is not None
    unknown = join([make_pair("q-1", probability=None)], [("q-1", True, 0.5)])
    assert make_evaluation_set(unknown, "v1.0.0").champion_probability is None


def test_join_paired_reviews_drops_self_selected() -> None:
    reviews: Reviews = [("q-1", True, 0.5), ("q-2", False, None), ("q-3", True, 0.5)]
    assert join([make_pair(f"q-{n}") for n in range(5)], reviews)["interaction_id"].tolist() == ["q-1", "q-3"]


def test_join_paired_reviews_without_pairs_or_reviews_is_empty() -> None:
    reviews: Reviews = [("q-1", True, 0.5)]
    for rows in (join([], []), join([make_pair("q-1")], []), join([], reviews)):
        assert len(rows) == 0 and len(make_evaluation_set(rows, "v1.0.0").correct) == 0


def test_hash_reviews_changes_with_compared_reviews() -> None:
    both, reviews = [make_pair("q-1"), make_pair("q-2")], [("q-1", True, 0.5)]
    first = hash_reviews(join(both, reviews))
    assert first == hash_reviews(join([*reversed(both), make_pair("q-5")], [*reviews, ("q-9", True, 0.5)]))
    for other in ([("q-1", False, 0.5)], [("q-1", True, 0.4)], [*reviews, ("q-2", True, 0.5)]):
        assert hash_reviews(join(both, other)) != first
