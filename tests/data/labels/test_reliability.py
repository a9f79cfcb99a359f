from dataclasses import astuple, dataclass

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta

from abstain.config.params import LabelParams
from abstain.data.labels.reliability import Agreement, Reliability, Share, estimate_reliability, measure_agreement
from tests.data.frames import LABELS, votes

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:crowdkit")

SKENE = LABELS.model_copy(update={"thumb_model": "dawid_skene"})


@dataclass
class World:
    """Answers with one thumb each, and the reviews of some of them."""

    truth: np.ndarray
    votes: pd.DataFrame
    verdicts: pd.DataFrame


def draw_world(
    seed: int,
    answers: int = 4000,
    likes_right: float | np.ndarray = 0.86,
    dislikes_wrong: float | np.ndarray = 0.8,
    users: int = 50,
    reviewed: tuple[float, float] = (0.05, 0.3),
    right: float = 0.6,
) -> World:
    """`reviewed`: the probability with which a liked and a disliked answer is reviewed."""
    rng = np.random.default_rng(seed)
    truth, user = rng.random(answers) < right, rng.integers(1, users + 1, answers)
    likes, dislikes = (np.broadcast_to(rate, users + 1)[user] for rate in (likes_right, dislikes_wrong))
    up = np.where(truth, rng.random(answers) < likes, rng.random(answers) >= dislikes)
    probability = np.where(up, *reviewed)
    drawn = rng.random(answers) < probability
    verdicts = pd.DataFrame({"label": truth, "inclusion_probability": probability})[drawn]
    return World(truth, pd.DataFrame({"row": np.arange(answers), "user": user, "up": up}), verdicts)


def fit_reliability(rows: World, users: int = 50, params: LabelParams = LABELS) -> tuple[Agreement, Reliability]:
    pool = measure_agreement(rows.votes, rows.verdicts)
    known = estimate_reliability(rows.votes, rows.verdicts, pool, users, params)
    assert known is not None
    return pool, known


def make_rates(rate: float, *, users: int = 50, first: float) -> np.ndarray:
    rates = np.full(users + 1, rate)
    rates[1] = first
    return rates


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
    known = Reliability(0.7, np.log([[0.1 / 0.7, 0.9 / 0.3]]))
    found = known.compute_labels(votes((0, 0, True), (1, 0, False)), 3, LABELS)
    assert found["label"].tolist() == [True, False, True]
    assert found["weight"].tolist() == [round(0.6 * (0.875 - 0.7) / 0.3, 3), round(0.6 * (0.75 - 0.3) / 0.7, 3), 0.0]


def test_label_votes_uninformative_thumb_has_zero_weight() -> None:
    says_nothing = Reliability(0.7, np.zeros((1, 2))).compute_labels(votes((0, 0, True), (1, 0, False)), 2, LABELS)
    assert says_nothing["weight"].tolist() == [0, 0]
    outweighed = Reliability(0.95, np.log([[0.1 / 0.7, 0.9 / 0.3]])).compute_labels(votes((0, 0, False)), 1, LABELS)
    assert outweighed.loc[0].tolist() == [True, 0.0]


@pytest.mark.heavy
@given(
    st.floats(0.01, 0.99),
    st.lists(st.floats(-6, 6), min_size=2, max_size=2),
    st.lists(st.tuples(st.integers(0, 3), st.just(0), st.booleans()), max_size=9),
)
def test_compute_labels_weight_is_in_range(
    prior: float, evidence: list[float], rows: list[tuple[int, int, bool]]
) -> None:
    found = Reliability(prior, np.array([evidence])).compute_labels(votes(*rows), 4, LABELS)
    assert found["weight"].between(0, LABELS.max_thumb_weight).all()
    unthumbed = ~np.isin(np.arange(4), [row for row, _, _ in rows])
    assert (found["weight"][unthumbed] == 0).all()


def test_estimate_reliability_shrinks_users_to_pool() -> None:
    contrary = draw_world(
        3, likes_right=make_rates(0.86, first=0.1), dislikes_wrong=make_rates(0.8, first=0.1), reviewed=(1, 1)
    )
    pool, known = fit_reliability(contrary)
    assert known.evidence[0] == pytest.approx(pool.evidence)
    assert known.evidence[1, 1] < 0 < known.evidence[1, 0]  # 80 reviewed thumbs: an up of theirs means wrong
    few = contrary.verdicts[(contrary.votes["user"] != 1).to_numpy() | (np.arange(4000) < 150)]
    somewhat = fit_reliability(World(contrary.truth, contrary.votes, few))[1].evidence[1]
    assert known.evidence[1, 1] < somewhat[1] < pool.evidence[1]
    stubborn = LABELS.model_copy(update={"user_shrinkage": 1e6})
    assert fit_reliability(contrary, params=stubborn)[1].evidence[1] == pytest.approx(pool.evidence, abs=0.01)


def test_estimate_reliability_unreviewed_or_anonymous_is_pooled() -> None:
    pool, known = fit_reliability(draw_world(4), users=60)
    assert known.evidence[55] == pytest.approx(pool.evidence)
    contrary = draw_world(5, reviewed=(1, 1))
    anonymous = World(contrary.truth, contrary.votes.assign(user=0), contrary.verdicts)
    pool, known = fit_reliability(anonymous, users=0)
    assert known.evidence.tolist() == [pool.evidence.tolist()]


def test_compute_user_reliability_by_given_thumbs() -> None:
    known = Reliability(0.5, np.log([[1, 1], [0.1 / 0.8, 0.9 / 0.2]]))
    assert known.compute_user_reliability(votes((0, 1, True), (1, 1, False), (2, 0, True))) == pytest.approx(
        [(9 / 11 + 8 / 9) / 2]
    )
    assert len(known.compute_user_reliability(votes((0, 0, True)))) == 0


@pytest.mark.slow
def compute_unreviewed_loss(rows: World, params: LabelParams) -> float:
    """Compute the cross-entropy of the posterior on the answers without a review."""
    unreviewed = ~np.isin(np.arange(len(rows.truth)), rows.verdicts.index)
    correct = fit_reliability(rows, params=params)[1].compute_posterior(rows.votes, len(rows.truth))[unreviewed]
    return float(-np.log(np.where(rows.truth[unreviewed], correct, 1 - correct)).mean())


def test_estimate_reliability_by_user_lowers_loss() -> None:
    careless = np.random.default_rng(1).random(51) < 0.4  # users who like nearly everything
    rows = draw_world(6, 20_000, np.where(careless, 0.97, 0.86), np.where(careless, 0.05, 0.8))
    pooled = LABELS.model_copy(update={"user_shrinkage": 1e6})
    assert compute_unreviewed_loss(rows, LABELS) < compute_unreviewed_loss(rows, pooled) - 0.01


def test_dawid_skene_finds_unreviewed_careless_user() -> None:
    rows = draw_world(7, 20_000, make_rates(0.86, first=0.99), make_rates(0.8, first=0.02))
    unseen = rows.verdicts[(rows.votes["user"] != 1).to_numpy()[rows.verdicts.index]]
    rows = World(rows.truth, rows.votes, unseen)
    pool, by_agreement = fit_reliability(rows)
    by_skene = fit_reliability(rows, params=SKENE)[1]
    assert by_agreement.evidence[1] == pytest.approx(pool.evidence)
    assert by_skene.evidence[1, 1] < 0.3 < 1 < pool.evidence[1]
    others = by_skene.evidence[2:].mean(axis=0)
    assert others == pytest.approx(np.log([0.14 / 0.8, 0.86 / 0.2]), abs=0.25)


@pytest.mark.slow
def test_dawid_skene_ignores_order_needs_both_thumbs() -> None:
    rows = draw_world(8)
    _, known = fit_reliability(rows, params=SKENE)
    shuffled = rows.votes.sample(frac=1, random_state=0)
    assert fit_reliability(World(rows.truth, shuffled, rows.verdicts), params=SKENE)[1].evidence == pytest.approx(
        known.evidence
    )
    ups = rows.votes[rows.votes["up"]]
    one_kind = World(rows.truth, ups, pd.DataFrame({"label": rows.truth, "inclusion_probability": 1.0}))
    labels = fit_reliability(one_kind, params=SKENE)[1].compute_labels(ups, 4000, SKENE)
    assert labels["weight"].max() < 0.02
