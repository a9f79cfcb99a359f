import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.data.labels.user_share import LargestUserShare, cap_user_weights
from tests.data.frames import votes

Vote = tuple[int, int, bool]


def cap_weights(
    rows: list[Vote], weight: float = 0.4, limit: float = 0.05, correct: bool = True
) -> tuple[pd.Series, LargestUserShare]:
    """Cap labels of equal weight; the evidence of a vote is its thumb."""
    given = votes(*rows)
    labels = pd.DataFrame({"label": correct, "weight": weight}, index=sorted(set(given["row"])))
    return cap_user_weights(given, np.where(given["up"], 1.0, -1.0), labels, limit)


def make_votes(*thumbs: int) -> list[Vote]:
    """Make this number of ups by each user, each on an answer of its own."""
    users = np.repeat(np.arange(1, len(thumbs) + 1), thumbs)
    return [(row, int(user), True) for row, user in enumerate(users)]


def sum_by_user(rows: list[Vote], weight: pd.Series) -> pd.Series:
    return weight.groupby([user for _, user, _ in rows]).sum()


@pytest.mark.parametrize("n_dominant", [1, 10])
def test_cap_user_weights_dominant_user_is_cut(n_dominant: int) -> None:
    rows = make_votes(*[1000 // n_dominant] * n_dominant, *[1] * 100)
    weight, largest = cap_weights(rows)
    by_user = sum_by_user(rows, weight)
    assert by_user[:n_dominant].to_numpy() == pytest.approx(0.05 * weight.sum())
    assert (by_user[n_dominant:] == 0.4).all()
    assert weight[:1000].nunique() == 1
    assert largest.n_users == 100 + n_dominant
    assert (largest.before, largest.after) == pytest.approx((1000 / n_dominant / 1100, 0.05))


def test_cap_user_weights_few_users_have_equal_shares() -> None:
    rows = make_votes(50, 20, 10)
    weight, largest = cap_weights(rows)
    assert sum_by_user(rows, weight).to_numpy() == pytest.approx([4.0, 4.0, 4.0])
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


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30), st.booleans()), max_size=200),
    st.floats(0.01, 1),
)
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
