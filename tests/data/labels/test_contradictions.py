import numpy as np
import pandas as pd
import pytest

from abstain.data.labels.contradictions import Contradictions, find_contradictions
from benchmarks.poison import Crowd
from tests.data.frames import votes

REVIEWER = "r-0123456789abcdef0123"


def make_reviews(*rows: tuple[int, str, bool], batch: str = "000001") -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["row", "reviewer", "label"]).assign(batch=batch)


def list_flagged(found: Contradictions) -> list[tuple[str, str | None]]:
    return [(one.person, one.batch) for one in found.flagged]


def test_find_contradictions_flipped_batch_with_user() -> None:
    for seed in range(5):
        crowd = Crowd(seed=seed)
        assert list_flagged(find_contradictions(*crowd.draw_rows())) == []
        found = find_contradictions(*crowd.draw_rows(flipped_user=True, flipped_batch=True))
        assert set(list_flagged(found)) == {("user u1", None), ("reviewer sme-0", "000002")}


def test_find_contradictions_wrong_reviewer_over_all_batches() -> None:
    rows, given, users = Crowd().draw_rows()
    rows["label"] ^= rows["reviewer"] == "sme-0"
    assert list_flagged(find_contradictions(rows, given, users)) == [("reviewer sme-0", None)]


def test_find_contradictions_reviews_without_thumbs() -> None:
    rows, given, users = Crowd(double_reviewed=0.3).draw_rows(flipped_batch=True)
    found = find_contradictions(rows, given[:0], users)
    assert list_flagged(found) == [("reviewer sme-0", "000002")]
    alone = rows[~rows["row"].duplicated(keep=False)]
    assert find_contradictions(alone, given[:0], users) == Contradictions(0, ())


def test_find_contradictions_two_reviewers_are_both_flagged() -> None:
    rows = make_reviews(*[(row, name, (row < 60) ^ (name == "a" and row >= 60)) for row in range(90) for name in "ab"])
    rows["batch"] = np.where(rows["row"] < 60, "000001", "000002")
    flagged = list_flagged(find_contradictions(rows, votes(), []))
    assert flagged == [("reviewer a", "000002"), ("reviewer b", "000002")]


def test_find_contradictions_victims_are_not_flagged() -> None:
    """In batch 000002 there is no other reviewer, so every user there contradicts all verdicts."""
    right = make_reviews(*[(row, "b", True) for row in range(200)])
    wrong = make_reviews(*[(row, REVIEWER, False) for row in range(200, 240)], batch="000002")
    given = votes(*[(row, 1 + row // 20, True) for row in range(240)])
    found = find_contradictions(pd.concat([right, wrong]), given, [f"u{n}" for n in range(12)])
    (only,) = found.flagged
    assert (
        only.message == "reviewer r-01234567: 40 of 40 answers are judged the other way by others; 0 would be as usual"
    )


def test_find_contradictions_anonymous_thumbs_are_witnesses() -> None:
    rows = make_reviews(*[(row, f"r{row % 4}", row % 4 > 0) for row in range(200)])
    found = find_contradictions(rows, votes(*[(row, 0, True) for row in range(200)]), [])
    assert list_flagged(found) == [("reviewer r0", None)]


def test_find_contradictions_answer_counts_once() -> None:
    rows = make_reviews(*[(row, f"r{row % 4}", True) for row in range(200)], (200, "late", False))
    given = votes(*[(row, 0, True) for row in range(200)], *[(200, 0, True)] * 50)
    assert find_contradictions(rows, given, []).flagged == ()


def test_find_contradictions_strict_user_is_not_flagged() -> None:
    crowd = Crowd(seed=3)
    rows, given, users = crowd.draw_rows()
    downs = pd.DataFrame({"row": rows["row"].unique()[:60], "user": len(users) + 1, "up": False})
    wrong = pd.DataFrame({"row": rows.loc[~rows["label"], "row"].unique()[:60], "user": len(users) + 2, "up": False})
    users += ["strict", "unlucky"]
    assert ("user unlucky", None) not in list_flagged(
        find_contradictions(rows, pd.concat([given, downs, wrong]), users)
    )


@pytest.mark.heavy
@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_find_contradictions_honest_crowd_keeps_alpha(spread: float) -> None:
    quiet = sum(
        not find_contradictions(*Crowd(seed=seed, answers=800, spread=spread).draw_rows()).flagged
        for seed in range(100)
    )
    assert quiet >= 95


def test_find_contradictions_is_independent_of_order() -> None:
    rows, given, users = Crowd().draw_rows(flipped_user=True, flipped_batch=True)
    again = find_contradictions(rows.sample(frac=1, random_state=0), given.sample(frac=1, random_state=1), users)
    assert list_flagged(again) == list_flagged(find_contradictions(rows, given, users))
