"""Which reviews of what both have decided about count, and what they say."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from abstain.data.decision_log.queries import PairedDecision
from abstain.data.store.dataframes import INTERACTION_DTYPES, REVIEW_DTYPES, THUMB_DTYPES, StoreFrames
from abstain.release.evaluation_set import CANDIDATE
from abstain.release.paired_reviews import hash_reviews, join_paired_reviews, make_evaluation_set
from tests.checkout import shipped_params
from tests.data.builders import later

LABELS = shipped_params().labels


def pair(key: str, shadow: float = 0.25, probability: float | None = 0.5) -> PairedDecision:
    return PairedDecision(key, True, 0.75, probability, 0.5, shadow >= 0.5, shadow, 0.2, 0.5)


def frames(reviews: list[tuple[str, bool, float | None]], interactions: int = 200) -> StoreFrames:
    """Answers q-0, q-1 ... about a document each two; reviews by key, whether correct, and inclusion probability."""
    asked = {
        **dict.fromkeys(INTERACTION_DTYPES),
        "interaction_id": [f"q-{n}" for n in range(interactions)],
        "group": [f"doc-{n // 2}" for n in range(interactions)],
    }
    keys, right, probability = zip(*reviews, strict=True) if reviews else ((), (), ())
    said = {
        **dict.fromkeys(("complete", "truthful"), True),
        "interaction_id": keys,
        "correct": right,
        "inclusion_probability": probability,
        "reviewed_at": [later(n) for n in range(len(keys))],
        "reviewer": "sme-1",
    }
    empty = pd.DataFrame({name: pd.Series([], dtype=dtype) for name, dtype in THUMB_DTYPES.items()})
    return StoreFrames(
        pd.DataFrame(asked), empty, pd.DataFrame(said, columns=list(REVIEW_DTYPES)).astype(REVIEW_DTYPES)
    )


def test_the_reviewed_ones_are_joined_by_id_and_the_last_review_of_one_counts() -> None:
    rows = join_paired_reviews(
        [pair("q-3", 0.9), pair("q-1"), pair("q-2"), pair("elsewhere")],
        frames([("q-1", True, 0.5), ("q-3", True, 0.25), ("q-3", False, 0.25), ("q-9", True, 0.5)]),
        LABELS,
    )
    assert rows["interaction_id"].tolist() == ["q-1", "q-3"]
    assert rows["correct"].tolist() == [1, 0] and rows["group"].tolist() == ["doc-0", "doc-1"]
    window = make_evaluation_set(rows, "v1.0.0")
    assert window.confidences[CANDIDATE].tolist() == [0.25, 0.9]
    assert window.confidences["v1.0.0"].tolist() == [0.75, 0.75]
    assert window.weight == pytest.approx(np.array([0.5, 1.0]))
    assert window.probabilities is not None and window.champion_probability is not None
    unknown = join_paired_reviews([pair("q-1", probability=None)], frames([("q-1", True, 0.5)]), LABELS)
    assert make_evaluation_set(unknown, "v1.0.0").champion_probability is None


def test_a_review_that_somebody_chose_to_give_does_not_count() -> None:
    """Most are of what production has shown, among which its confidences are all alike."""
    found = frames([("q-1", True, 0.5), ("q-2", False, None), ("q-3", True, 0.5)])
    rows = join_paired_reviews([pair(f"q-{n}") for n in range(5)], found, LABELS)
    assert rows["interaction_id"].tolist() == ["q-1", "q-3"]


def test_nothing_reviewed_is_no_row_and_no_error() -> None:
    for both, found in (([], frames([])), ([pair("q-1")], frames([])), ([], frames([("q-1", True, 0.5)]))):
        rows = join_paired_reviews(both, found, LABELS)
        assert len(rows) == 0 and len(make_evaluation_set(rows, "v1.0.0").correct) == 0


def test_equal_digests_say_that_nothing_was_reviewed_since() -> None:
    both = [pair("q-1"), pair("q-2")]
    first = join_paired_reviews(both, frames([("q-1", True, 0.5)]), LABELS)
    again = join_paired_reviews(
        [*reversed(both), pair("q-5")], frames([("q-1", True, 0.5), ("q-9", True, 0.5)]), LABELS
    )
    assert hash_reviews(first) == hash_reviews(again)
    for reviews in ([("q-1", False, 0.5)], [("q-1", True, 0.4)], [("q-1", True, 0.5), ("q-2", True, 0.5)]):
        assert hash_reviews(join_paired_reviews(both, frames(reviews), LABELS)) != hash_reviews(first)
