import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import cohen_kappa_score

from abstain.data.labels.contradictions import Contradictions, find_contradictions
from abstain.data.labels.reviewers import MAX_LISTED, ReviewerAgreement, ReviewerPair, summarize_reviewer_agreement
from benchmarks.poison import Crowd
from tests.data.frames import LABELS, votes

FEW = LABELS.model_copy(update={"min_agreement": 3})

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:crowdkit")


def make_reviews(*rows: tuple[int, str, bool]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["row", "reviewer", "label"]).assign(batch="000001")


def list_flagged(found: Contradictions) -> list[tuple[str, str | None]]:
    return [(one.person, one.batch) for one in found.flagged]


def test_find_contradictions_flipped_batch_with_user() -> None:
    for seed in range(5):
        rows, given, users = Crowd(seed=seed).draw_rows()
        assert list_flagged(find_contradictions(rows, given, users)) == []
        rows["label"] ^= rows["reviewer"] == "sme-0"
        assert list_flagged(find_contradictions(rows, given, users)) == [("reviewer sme-0", None)], "in all batches"
        rows, given, users = Crowd(seed=seed).draw_rows(flipped_user=True, flipped_batch=True)
        found = list_flagged(find_contradictions(rows, given, users))
        assert set(found) == {("user u1", None), ("reviewer sme-0", "000002")}
        shuffled = (part.sample(frac=1, random_state=seed) for part in (rows, given))
        assert list_flagged(find_contradictions(*shuffled, users)) == found


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
    wrong = make_reviews(*[(row, "r-0123456789abcdef0123", False) for row in range(200, 240)]).assign(batch="000002")
    given = votes(*[(row, 1 + row // 20, True) for row in range(240)])
    found = find_contradictions(pd.concat([right, wrong]), given, [f"u{n}" for n in range(12)])
    (message,) = (one.message for one in found.flagged)
    assert message == "reviewer r-01234567: 40 of 40 answers are judged the other way by others; 0 would be as usual"


def test_find_contradictions_anonymous_thumbs_are_witnesses() -> None:
    """They count once for an answer, however many there are."""
    given = [(row, 0, True) for row in range(200)]
    rows = make_reviews(*[(row, f"r{row % 4}", row % 4 > 0) for row in range(200)])
    assert list_flagged(find_contradictions(rows, votes(*given), [])) == [("reviewer r0", None)]
    rows = make_reviews(*[(row, f"r{row % 4}", True) for row in range(200)], (200, "late", False))
    assert find_contradictions(rows, votes(*given, *[(200, 0, True)] * 50), []).flagged == ()


def test_find_contradictions_strict_user_is_not_flagged() -> None:
    rows, given, users = Crowd(seed=3).draw_rows()
    downs = pd.DataFrame({"row": rows["row"].unique()[:60], "user": len(users) + 1, "up": False})
    wrong = pd.DataFrame({"row": rows.loc[~rows["label"], "row"].unique()[:60], "user": len(users) + 2, "up": False})
    found = find_contradictions(rows, pd.concat([given, downs, wrong]), [*users, "strict", "unlucky"])
    assert ("user unlucky", None) not in list_flagged(found)


@pytest.mark.heavy
@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_find_contradictions_honest_crowd_keeps_alpha(spread: float) -> None:
    quiet = sum(
        not find_contradictions(*Crowd(seed=seed, answers=800, spread=spread).draw_rows()).flagged
        for seed in range(100)
    )
    assert quiet >= 95


@pytest.mark.parametrize(
    ("rows", "agreement"),
    [
        ([(0, "a", True), (1, "b", False)], ReviewerAgreement(0, None, ())),
        (
            [(0, "b", True), (0, "a", False), (1, "a", True), (1, "b", True), (2, "a", True)],
            ReviewerAgreement(2, None, (ReviewerPair(("a", "b"), 2, 1, None),)),
        ),
        (
            [(row, name, True) for row in range(5) for name in "ab"],
            ReviewerAgreement(5, None, (ReviewerPair(("a", "b"), 5, 0, None),)),
        ),
    ],
    ids=["no shared answers", "few shared answers", "constant labels"],
)
def test_summarize_reviewer_agreement_undefined_is_none(
    rows: list[tuple[int, str, bool]], agreement: ReviewerAgreement
) -> None:
    assert summarize_reviewer_agreement(make_reviews(*rows), FEW) == agreement


@pytest.mark.heavy
def test_summarize_reviewer_agreement_kappa_worst_pair_first() -> None:
    rng = np.random.default_rng(0)
    truth = rng.random(60) < 0.5
    says = {name: truth ^ (rng.random(60) < flip) for name, flip in zip("abc", (0.0, 0.1, 0.4), strict=True)}
    rows = make_reviews(*[(row, name, label) for name, own in says.items() for row, label in enumerate(own)])
    found = summarize_reviewer_agreement(rows.sample(frac=1, random_state=1), FEW)
    assert {pair.reviewers for pair in found.pairs} == {("a", "b"), ("a", "c"), ("b", "c")}
    for pair in found.pairs:
        a, b = (says[name] for name in pair.reviewers)
        assert pair.kappa == pytest.approx(cohen_kappa_score(a, b))
        assert (pair.disagree, pair.shared) == ((a != b).sum(), 60)
    disagreements = [pair.disagree for pair in found.pairs]
    assert disagreements == sorted(disagreements, reverse=True)


@pytest.mark.slow
def test_summarize_reviewer_agreement_alpha_is_krippendorff() -> None:
    shared = [(0, "a", True), (0, "b", True), (1, "a", False), (1, "b", False), (2, "a", True), (2, "b", False)]
    found = summarize_reviewer_agreement(make_reviews(*shared, (3, "a", True)), FEW)
    assert found.alpha == pytest.approx(1 - (2 / 6) / (18 / 30))  # observed against expected disagreement


@pytest.mark.slow
def test_summarize_reviewer_agreement_list_is_cut() -> None:
    rng = np.random.default_rng(0)
    rows = make_reviews(*[(row, f"r{name:02d}", bool(rng.random() < 0.5)) for row in range(6) for name in range(30)])
    assert len(summarize_reviewer_agreement(rows, FEW).pairs) == MAX_LISTED
