import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import cohen_kappa_score

from abstain.data.labels.reviewers import MAX_LISTED, ReviewerAgreement, ReviewerPair, summarize_reviewer_agreement
from tests.data.frames import LABELS

FEW = LABELS.model_copy(update={"min_agreement": 3})

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:crowdkit")


def make_reviews(*rows: tuple[int, str, bool]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["row", "reviewer", "label"])


def draw_panel(answers: int, *flips: float) -> pd.DataFrame:
    """Draw the reviews of all answers by reviewers a, b, c ... with these error rates."""
    rng = np.random.default_rng(0)
    truth = rng.random(answers) < 0.5
    return pd.concat(
        pd.DataFrame({"row": range(answers), "reviewer": name, "label": truth ^ (rng.random(answers) < flip)})
        for name, flip in zip("abcdef", flips, strict=False)
    )


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
    rows = draw_panel(60, 0.0, 0.1, 0.4)
    found = summarize_reviewer_agreement(rows.sample(frac=1, random_state=1), FEW)
    says = {name: own["label"].tolist() for name, own in rows.groupby("reviewer")}
    assert {pair.reviewers for pair in found.pairs} == {("a", "b"), ("a", "c"), ("b", "c")}
    for pair in found.pairs:
        a, b = (says[name] for name in pair.reviewers)
        assert pair.kappa == pytest.approx(cohen_kappa_score(a, b))
        assert pair.disagree == sum(x != y for x, y in zip(a, b, strict=True))
        assert pair.shared == 60
    disagreements = [pair.disagree for pair in found.pairs]
    assert disagreements == sorted(disagreements, reverse=True)


@pytest.mark.slow
def test_summarize_reviewer_agreement_alpha_is_krippendorff() -> None:
    rows = make_reviews(
        (0, "a", True), (0, "b", True), (1, "a", False), (1, "b", False), (2, "a", True), (2, "b", False)
    )
    alone = make_reviews((3, "a", True))
    found = summarize_reviewer_agreement(pd.concat([rows, alone]), FEW)
    assert found.alpha == pytest.approx(1 - (2 / 6) / (18 / 30))  # observed against expected disagreement


@pytest.mark.slow
def test_summarize_reviewer_agreement_list_is_cut() -> None:
    rng = np.random.default_rng(0)
    rows = make_reviews(*[(row, f"r{name:02d}", bool(rng.random() < 0.5)) for row in range(6) for name in range(30)])
    assert len(summarize_reviewer_agreement(rows, FEW).pairs) == MAX_LISTED
