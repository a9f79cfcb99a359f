from dataclasses import astuple, dataclass

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta
from sklearn.metrics import cohen_kappa_score

from abstain.config.params import LabelParams
from abstain.data.labels.contradictions import Contradictions, find_contradictions
from abstain.data.labels.reliability import Agreement, Reliability, Share, estimate_reliability, measure_agreement
from abstain.data.labels.reviewers import MAX_LISTED, ReviewerAgreement, ReviewerPair, summarize_reviewer_agreement
from abstain.data.labels.user_share import LargestUserShare, cap_user_weights
from benchmarks.poison import Crowd
from tests.data.frames import LABELS, votes

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:crowdkit")

SKENE = LABELS.model_copy(update={"thumb_model": "dawid_skene"})
FEW = LABELS.model_copy(update={"min_agreement": 3})
Vote = tuple[int, int, bool]


@dataclass
class World:
    """Answers with one thumb each, and the reviews of some of them."""

    truth: np.ndarray
    votes: pd.DataFrame
    verdicts: pd.DataFrame

    def fit(self, users: int = 50, params: LabelParams = LABELS) -> tuple[Agreement, Reliability]:
        pool = measure_agreement(self.votes, self.verdicts)
        known = estimate_reliability(self.votes, self.verdicts, pool, users, params)
        return pool, known


def draw_world(
    seed: int,
    answers: int = 4000,
    likes_right: float | np.ndarray = 0.86,
    dislikes_wrong: float | np.ndarray = 0.8,
    reviewed: tuple[float, float] = (0.05, 0.3),
) -> World:
    """Draw 50 users; `reviewed` is the probability with which a liked and a disliked answer is reviewed."""
    rng = np.random.default_rng(seed)
    truth, user = rng.random(answers) < 0.6, rng.integers(1, 51, answers)
    likes, dislikes = (np.broadcast_to(rate, 51)[user] for rate in (likes_right, dislikes_wrong))
    up = np.where(truth, rng.random(answers) < likes, rng.random(answers) >= dislikes)
    probability = np.where(up, *reviewed)
    drawn = rng.random(answers) < probability
    verdicts = pd.DataFrame({"label": truth, "inclusion_probability": probability})[drawn]
    return World(truth, pd.DataFrame({"row": np.arange(answers), "user": user, "up": up}), verdicts)


def make_rates(rate: float, *, first: float) -> np.ndarray:
    """Make the rates of 50 users, of whom the first is different."""
    return np.array([rate, first, *[rate] * 49])


@given(st.lists(st.booleans(), max_size=40))
def test_share_equal_weights_is_jeffreys(hit: list[bool]) -> None:
    weight, rows = np.full(len(hit), 7.0), np.arange(len(hit))
    share, missed = (Share.from_votes(np.array(votes, bool), weight, rows) for votes in (hit, [not one for one in hit]))
    expected = beta(sum(hit) + 0.5, len(hit) - sum(hit) + 0.5)
    assert (share.n_eff, share.value) == pytest.approx((len(hit), expected.mean()))
    assert (share.low, share.high) == pytest.approx(expected.interval(0.95))
    assert astuple(share.complement()) == pytest.approx(astuple(missed))


def test_share_uneven_weights_reduce_n_eff() -> None:
    hit = np.array([True, False, True, True])
    even = Share.from_votes(hit, np.ones(4), np.arange(4))
    uneven = Share.from_votes(hit, np.array([1.0, 1, 1, 10]), np.arange(4))
    together = Share.from_votes(hit, np.ones(4), np.array([0, 0, 0, 1]))
    assert even.n_eff == 4 and uneven.n_eff == pytest.approx(13**2 / 103) and together.n_eff == 1.6
    assert uneven.value > even.value


def test_measure_agreement_counts_reviewed_thumbs() -> None:
    verdicts = pd.DataFrame({"label": [True, False], "inclusion_probability": [0.5, np.nan]}, index=[0, 2])
    found = measure_agreement(votes((0, 0, True), (0, 1, False), (1, 0, True), (2, 2, False)), verdicts)
    assert found.votes.tolist() == [[1, 1], [0, 1]]  # answer 1 has no review
    assert found.prior.n_eff == pytest.approx(3**2 / 5)  # one stands for two answers, the other for itself
    assert found.prior.value == pytest.approx((1.8 * 2 / 3 + 0.5) / 2.8)


@pytest.mark.heavy
def test_measure_agreement_weights_undo_uneven_sampling() -> None:
    inside = raw_inside = 0
    for seed in range(100):
        rows = draw_world(seed)
        share = measure_agreement(rows.votes, rows.verdicts).up_given_label[1]
        inside += share.low <= 0.86 <= share.high
        raw = measure_agreement(rows.votes, rows.verdicts.assign(inclusion_probability=np.nan)).up_given_label[1]
        raw_inside += raw.low <= 0.86 <= raw.high
    assert inside >= 88
    assert raw_inside <= 5


def test_estimate_reliability_too_few_answers_gives_none() -> None:
    def estimate(verdicts: pd.DataFrame, **changes: object) -> Reliability | None:
        params = LABELS.model_copy(update=changes)
        return estimate_reliability(rows.votes, verdicts, measure_agreement(rows.votes, verdicts), 50, params)

    rows = draw_world(0)
    fewest = int(min(measure_agreement(rows.votes, rows.verdicts).n_eff_by_class))
    assert estimate(rows.verdicts, min_agreement=fewest) is not None
    assert estimate(rows.verdicts, min_agreement=fewest + 1) is None
    assert estimate(rows.verdicts[:0]) is None
    assert estimate(rows.verdicts[rows.verdicts["label"]]) is None


def test_compute_posterior_is_bayes_rule() -> None:
    up_correct, up_incorrect, prior = 0.9, 0.3, 0.7
    evidence = np.log([[1, 1], [(1 - up_correct) / (1 - up_incorrect), up_correct / up_incorrect]])
    found = Reliability(prior, evidence).compute_posterior(votes((0, 1, True), (2, 1, True), (2, 1, False)), 4)
    both = up_correct * (1 - up_correct) * prior, up_incorrect * (1 - up_incorrect) * (1 - prior)
    assert found == pytest.approx([0.63 / (0.63 + 0.09), prior, both[0] / sum(both), prior])
    assert Reliability(prior, evidence).compute_posterior(votes((0, 0, True)), 1) == pytest.approx([prior])


def test_compute_labels_weight_is_removed_doubt() -> None:
    given = votes((0, 0, True), (1, 0, False))
    found = Reliability(0.7, np.log([[0.1 / 0.7, 0.9 / 0.3]])).compute_labels(given, 3, LABELS)
    assert found["label"].tolist() == [True, False, True]
    assert found["weight"].tolist() == [round(0.6 * (0.875 - 0.7) / 0.3, 3), round(0.6 * (0.75 - 0.3) / 0.7, 3), 0.0]
    assert Reliability(0.7, np.zeros((1, 2))).compute_labels(given, 2, LABELS)["weight"].tolist() == [0, 0]
    outweighed = Reliability(0.95, np.log([[0.1 / 0.7, 0.9 / 0.3]])).compute_labels(votes((0, 0, False)), 1, LABELS)
    assert outweighed.loc[0].tolist() == [True, 0.0]


def test_estimate_reliability_shrinks_users_to_pool() -> None:
    rates = {"likes_right": make_rates(0.86, first=0.1), "dislikes_wrong": make_rates(0.8, first=0.1)}
    contrary = draw_world(3, reviewed=(1, 1), **rates)
    pool, known = contrary.fit(users=60)
    assert known.evidence[0] == pytest.approx(pool.evidence) == known.evidence[55], "anonymous, or without reviews"
    assert known.evidence[1, 1] < 0 < known.evidence[1, 0]  # 80 reviewed thumbs: an up of theirs means wrong
    few = contrary.verdicts[(contrary.votes["user"] != 1).to_numpy() | (np.arange(4000) < 150)]
    somewhat = World(contrary.truth, contrary.votes, few).fit()[1].evidence[1]
    assert known.evidence[1, 1] < somewhat[1] < pool.evidence[1]
    stubborn = LABELS.model_copy(update={"user_shrinkage": 1e6})
    assert contrary.fit(params=stubborn)[1].evidence[1] == pytest.approx(pool.evidence, abs=0.01)
    pool, known = World(contrary.truth, contrary.votes.assign(user=0), contrary.verdicts).fit(users=0)
    assert known.evidence.tolist() == [pool.evidence.tolist()]


def test_compute_user_reliability_by_given_thumbs() -> None:
    known = Reliability(0.5, np.log([[1, 1], [0.1 / 0.8, 0.9 / 0.2]]))
    assert known.compute_user_reliability(votes((0, 1, True), (1, 1, False), (2, 0, True))) == pytest.approx(
        [(9 / 11 + 8 / 9) / 2]
    )
    assert len(known.compute_user_reliability(votes((0, 0, True)))) == 0


@pytest.mark.slow
def test_dawid_skene_finds_unreviewed_careless_user() -> None:
    rows = draw_world(7, 20_000, make_rates(0.86, first=0.99), make_rates(0.8, first=0.02))
    rows.verdicts = rows.verdicts[(rows.votes["user"] != 1).to_numpy()[rows.verdicts.index]]
    pool, by_agreement = rows.fit()
    by_skene = rows.fit(params=SKENE)[1]
    assert by_agreement.evidence[1] == pytest.approx(pool.evidence)
    assert by_skene.evidence[1, 1] < 0.3 < 1 < pool.evidence[1]
    others = by_skene.evidence[2:].mean(axis=0)
    assert others == pytest.approx(np.log([0.14 / 0.8, 0.86 / 0.2]), abs=0.25)


@pytest.mark.slow
def test_dawid_skene_ignores_order_needs_both_thumbs() -> None:
    rows = draw_world(8)
    shuffled = World(rows.truth, rows.votes.sample(frac=1, random_state=0), rows.verdicts)
    evidence = [each.fit(params=SKENE)[1].evidence for each in (rows, shuffled)]
    assert evidence[0] == pytest.approx(evidence[1])
    ups = rows.votes[rows.votes["up"]]
    one_kind = World(rows.truth, ups, pd.DataFrame({"label": rows.truth, "inclusion_probability": 1.0}))
    assert one_kind.fit(params=SKENE)[1].compute_labels(ups, 4000, SKENE)["weight"].max() < 0.02


def cap_weights(rows: list[Vote], limit: float = 0.05, correct: bool = True) -> tuple[pd.Series, LargestUserShare]:
    """Cap labels of weight 0.4; the evidence of a vote is its thumb."""
    given = votes(*rows)
    labels = pd.DataFrame({"label": correct, "weight": 0.4}, index=sorted(set(given["row"])))
    return cap_user_weights(given, np.where(given["up"], 1.0, -1.0), labels, limit)


def make_votes(*thumbs: int) -> list[Vote]:
    users = np.repeat(np.arange(1, len(thumbs) + 1), thumbs)
    return [(row, int(user), True) for row, user in enumerate(users)]


@pytest.mark.parametrize("n_dominant", [1, 10])
def test_cap_user_weights_dominant_user_is_cut(n_dominant: int) -> None:
    weight, largest = cap_weights(make_votes(*[1000 // n_dominant] * n_dominant, *[1] * 100))
    assert weight[:1000].nunique() == 1 and (weight[1000:] == 0.4).all()
    assert weight[:1000].sum() / n_dominant == pytest.approx(0.05 * weight.sum())
    assert largest.n_users == 100 + n_dominant
    assert (largest.before, largest.after) == pytest.approx((1000 / n_dominant / 1100, 0.05))


def test_cap_user_weights_few_users_have_equal_shares() -> None:
    weight, largest = cap_weights(make_votes(50, 20, 10))
    assert [weight[:50].sum(), weight[50:70].sum(), weight[70:].sum()] == pytest.approx([4.0, 4.0, 4.0])
    assert largest.limit == 1 / 3 and largest.after == pytest.approx(1 / 3)
    assert cap_weights(make_votes(7))[0].tolist() == [0.4] * 7


def test_cap_user_weights_within_limit_is_unchanged() -> None:
    assert (cap_weights(make_votes(1000, 1), limit=1.0)[0] == 0.4).all()
    assert (cap_weights(make_votes(*[5] * 40))[0] == 0.4).all()
    weight, largest = cap_weights([])
    assert weight.empty and largest.n_users == 0


def test_cap_user_weights_only_supporters_share() -> None:
    rows = [(0, 1, True), (0, 2, True), (0, 3, False), (1, 2, True)]
    weight, largest = cap_weights(rows, limit=0.6)
    assert largest.n_users == 2  # user 3 was outvoted
    assert largest.before == pytest.approx(0.75) and largest.after == pytest.approx(0.6)
    assert weight[0] == pytest.approx(0.2 + 0.2 * 0.3 / 0.6) and weight[1] == pytest.approx(0.4 * 0.3 / 0.6)
    assert cap_weights(rows, limit=0.6, correct=False)[1] == LargestUserShare(1, 1.0, 1.0, 1.0)


def test_cap_user_weights_anonymous_thumb_is_own_user() -> None:
    rows = [(row, 0, True) for row in range(40)] + [(40 + row, 1, True) for row in range(40)]
    weight, largest = cap_weights(rows)
    assert largest.n_users == 41
    assert (weight[:40] == 0.4).all()
    assert weight[40:].sum() == pytest.approx(0.05 * weight.sum())


def test_cap_user_weights_contrary_user_supports_label() -> None:
    labels = pd.DataFrame({"label": [False], "weight": [0.3]})
    weight, largest = cap_user_weights(votes((0, 1, True)), np.array([-2.0]), labels, 0.05)
    assert (weight[0], largest.n_users) == (0.3, 1)


@pytest.mark.heavy
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30), st.booleans()), max_size=200), st.floats(0.01, 1))
def test_cap_user_weights_never_exceeds_limit(rows: list[Vote], limit: float) -> None:
    given = votes(*rows)
    chosen = sorted(set(given["row"]))
    rng = np.random.default_rng(len(rows))
    labels = pd.DataFrame({"label": rng.random(len(chosen)) < 0.5, "weight": rng.random(len(chosen))}, index=chosen)
    evidence = np.where(given["up"], 1.0, -1.0)
    weight, largest = cap_user_weights(given, evidence, labels, limit)
    assert (weight >= 0).all() and (weight <= labels["weight"] + 1e-12).all()
    assert largest.after <= max(limit, 1 / max(largest.n_users, 1)) + 1e-9
    if not given["row"].duplicated().any():  # else a label's parts differ by now
        again = cap_user_weights(given, evidence, labels.assign(weight=weight), limit)[1]
        assert again.before == pytest.approx(largest.after, abs=1e-9)


def make_reviews(*rows: tuple[int, str, bool]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["row", "reviewer", "label"]).assign(batch="000001")


def list_flagged(found: Contradictions) -> list[tuple[str, str | None]]:
    return [(one.person, one.batch) for one in found.flagged]


@pytest.mark.heavy
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
def test_reviewer_agreement_undefined_is_none(rows: list[tuple[int, str, bool]], agreement: ReviewerAgreement) -> None:
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
