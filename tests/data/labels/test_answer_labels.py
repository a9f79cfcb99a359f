import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest

from abstain.core.contracts import Review, Thumb
from abstain.data.labels.answer_labels import (
    assign_labels,
    find_disagreements,
    resolve_reviews,
    select_countable_thumbs,
    select_latest_reviews,
)
from tests.data.frames import LABELS, reviews, thumbs
from tests.factories import feedback, review


def tally(*rows: Thumb) -> list[tuple[int, int, bool]]:
    """Return the countable thumbs on answers `a`, `b` ... as (row, user, up)."""
    placed = thumbs(rows)
    placed = placed.assign(row=placed.pop("interaction_id").map("abc".index))
    placed["user"] = pd.factorize(placed["user"], sort=True)[0] + 1
    return list(select_countable_thumbs(placed).itertuples(index=False, name=None))


def place(rows: Sequence[Review]) -> pd.DataFrame:
    placed = reviews(rows)
    return placed.assign(row=placed.pop("interaction_id").map("abc".index))


def resolve_first(*rows: Review, **changes: object) -> pd.Series:
    return resolve_all(*rows, **changes).loc[0]


def assign_all(
    verdicts: pd.DataFrame, balance: list[int], weight: float = 0.4, shown_with: list[float] | None = None
) -> pd.DataFrame:
    said = pd.DataFrame({"label": np.array(balance) > 0, "weight": weight})
    return assign_labels(pd.Series(shown_with or [np.nan] * len(balance)), verdicts, np.array(balance), said, LABELS)


def resolve_all(*rows: Review, **changes: object) -> pd.DataFrame:
    params = LABELS.model_copy(update=changes)
    return resolve_reviews(select_latest_reviews(place(rows), params), params)


NOBODY = resolve_all()


def test_assign_labels_review_outranks_thumbs() -> None:
    judged = review("a", complete=False, correct=True, truthful=False, inclusion_probability=0.2)
    found = assign_all(resolve_all(judged), [5, -1, 2])
    assert found["correct"].tolist() == [0, 0, 1] and found["source"].tolist() == ["review", "thumb", "thumb"]
    assert found["weight"].tolist() == [1.0, 0.4, 0.4]
    criteria = ["complete", "review_correct", "truthful", "inclusion_probability"]
    assert found.loc[0, criteria].tolist() == [False, True, False, 0.2]
    assert found.loc[1:, criteria].isna().all(axis=None)


def test_assign_labels_unsampled_label_gets_propensity() -> None:
    judged = resolve_all(review("a", inclusion_probability=0.2), review("b"))
    found = assign_all(judged, [0, 0, 1], shown_with=[0.9, 0.5, 0.25])
    assert found["inclusion_probability"].tolist() == [0.2, 0.5, 0.25]
    assert found["sampled"].tolist() == [True, False, False], "a propensity says nothing of who reviews"
    assert assign_all(judged, [0, 0, 1])["inclusion_probability"].isna().tolist() == [False, True, True]


def test_assign_labels_no_balance_or_weight_gives_none() -> None:
    assert assign_all(NOBODY, [0, 0]).source.isna().all()
    assert assign_all(NOBODY, [3], weight=0.0).source.isna().all()
    assert assign_all(resolve_all(review("a")), [0], weight=0.0).source.tolist() == ["review"]


@pytest.mark.parametrize("failing", ["complete", "correct", "truthful"])
def test_resolve_reviews_correct_needs_all_criteria(failing: str) -> None:
    one = review("a", **{failing: False})
    assert not resolve_first(one)["label"]
    assert resolve_first(one, correct_if=tuple(name for name in LABELS.correct_if if name != failing))["label"]


FIRST, SECOND, THIRD = (
    review("a", right=True, days=1, reviewer="x"),
    review("a", right=True, days=2, reviewer="y"),
    review("a", right=False, days=3, reviewer="z"),
)


@pytest.mark.parametrize(
    ("rows", "latest", "majority", "strict"),
    [
        ((FIRST, SECOND), True, True, True),
        ((FIRST, SECOND, THIRD), False, True, False),
        ((SECOND, THIRD), False, False, False),  # one against one is not right
        ((THIRD, review("a", days=4, reviewer="x")), True, False, False),
        ((THIRD, review("a", days=4, reviewer="z")), True, True, True),  # z has changed their mind
        ((review("a", reviewer="x"), review("a", right=False, reviewer="y")), False, False, False),  # of one moment
    ],
)
def test_resolve_reviews_conflict_rules(rows: tuple[Review, ...], latest: bool, majority: bool, strict: bool) -> None:
    expected = {"latest": latest, "majority": majority, "strict": strict}
    for order in itertools.permutations(rows):
        assert {rule: bool(resolve_first(*order, conflicts=rule)["label"]) for rule in expected} == expected


def test_resolve_reviews_inclusion_probability_of_deciding() -> None:
    earlier, later = review("a", inclusion_probability=0.9), review("a", days=3, inclusion_probability=0.1)
    other = review("a", days=3, reviewer="other", inclusion_probability=0.1)
    for rows, rule, probability in (
        ((earlier, later), "latest", 0.1),
        ((earlier, later), "strict", 0.1),  # both decide: one reviewer
        ((earlier, other), "strict", 0.9),
    ):
        assert resolve_first(*rows, conflicts=rule)["inclusion_probability"] == probability
    assert np.isnan(resolve_first(earlier, review("a", days=3))["inclusion_probability"])


def test_find_disagreements_compares_labels_of_all_reviews() -> None:
    changed_mind = [review("a", right=False, days=1), review("a", right=True, days=2)]
    agreed = [review("b", days=1), review("b", days=2, reviewer="other")]
    same_label = [review("c", truthful=truthful, right=False, days=days) for days, truthful in ((1, False), (2, True))]
    assert find_disagreements(place([*changed_mind, *agreed, *same_label]), LABELS).tolist() == [0]


def test_select_countable_thumbs_last_thumb_of_user() -> None:
    up, down = feedback("a", "up"), feedback("a", "down", days=2)
    assert tally(up, up, down) == [(0, 0, True), (0, 0, True), (0, 0, False)], "every anonymous thumb counts"
    own = feedback("a", "down", days=4, user="u"), feedback("a", "up", days=1, user="u")
    same_moment = feedback("a", "up", user="u"), feedback("a", "down", user="u")
    for thumbs_of_user in (own, same_moment):
        assert tally(*thumbs_of_user) == tally(*thumbs_of_user[::-1]) == [(0, 1, False)]
    assert tally(*own, feedback("b", "up", user="u")) == [(0, 1, False), (1, 1, True)]
