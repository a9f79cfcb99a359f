from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abstain.core.errors import AbstainError
from abstain.core.labels import Labels


def make_labels(correct: list[int], groups: list[str], weight: list[float] | None = None) -> Labels:
    weights = np.array(weight, float) if weight else np.ones(len(correct))
    return Labels(np.array(correct, int), weights, np.array(groups, object))


def draw_labels(rows: int, groups: int) -> Labels:
    correct = np.random.default_rng(1).integers(0, 2, rows)
    return make_labels(correct.tolist(), [f"g-{row % groups}" for row in range(rows)])


@pytest.mark.parametrize(
    ("correct", "groups", "right", "wrong"),
    [
        ([1, 0, 1, 0], "aaaa", 1, 1),
        ([1, 1, 0, 0], "abcc", 2, 1),  # all wrong answers are of one group: nothing to learn from outside of it
        ([0, 0, 1, 1], "abcc", 1, 2),
        ([1] * 44 + [1] * 6 + [0] * 5 + [0] * 2, "a" * 44 + "b" * 11 + "c" * 2, 2, 2),  # wherever b goes
    ],
)
def test_assign_folds_too_few_groups_raises(correct: list[int], groups: str, right: int, wrong: int) -> None:
    expected = f"correct answers of only {right}, incorrect ones of only {wrong}: bring feedback on more groups"
    with pytest.raises(AbstainError, match=expected):
        make_labels(correct, list(groups)).assign_folds(4, 7)


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1), st.sampled_from([0.0, 0.4, 1.0])), max_size=60),
    folds=st.integers(2, 6),
    seed=st.integers(0, 3),
)
def test_assign_folds_keeps_groups_whole(rows: list[tuple[int, int, float]], folds: int, seed: int) -> None:
    counted = [(g, y) for g, y, w in rows if w > 0]
    of_kind = [len({g for g, y in counted if y == kind}) for kind in (0, 1)]
    labels = make_labels([y for _, y, _ in rows], [f"g{g}" for g, *_ in rows], [w for *_, w in rows])
    try:
        fold = labels.assign_folds(folds, seed)
    except AbstainError:
        assert min(of_kind) <= 2, "sixty rows in three groups of a kind can be spread"
        return
    assert fold.shape == (len(rows),)
    assert len({(g, f) for (g, *_), f in zip(rows, fold.tolist(), strict=True)}) == len({g for g, *_ in rows})
    used = sorted(set(fold.tolist()))
    assert used == list(range(len(used))) and 2 <= len(used) <= min(folds, *of_kind)
    for number in used:
        outside = {y for (_, y, w), f in zip(rows, fold.tolist(), strict=True) if f != number and w > 0}
        assert outside == {0, 1}


def test_assign_folds_many_groups_gives_balanced_folds() -> None:
    labels = draw_labels(300, 50)
    fold = labels.assign_folds(5, 7)
    sizes, shares = Counter(fold.tolist()), [float(labels.correct[fold == f].mean()) for f in range(5)]
    assert not np.array_equal(fold, labels.assign_folds(5, 8))
    assert set(sizes) == set(range(5)) and max(sizes.values()) - min(sizes.values()) <= 20
    assert max(shares) - min(shares) < 0.15


def test_assign_folds_ignores_rows_of_weight_zero() -> None:
    labels = draw_labels(120, 20)
    with_more = Labels(
        np.concatenate([labels.correct, labels.correct[:30]]),
        np.concatenate([labels.weight, np.zeros(30)]),
        np.concatenate([labels.groups, np.array(["g-0", "new"] * 15, object)]),
    )
    fold, again = labels.assign_folds(4, 7), with_more.assign_folds(4, 7)
    assert np.array_equal(again[:120], fold)
    assert set(again[120::2]) == {fold[0]} and set(again[121::2]) == {0}
