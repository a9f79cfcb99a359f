from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.errors import AbstainError
from abstain.feedback.splits import Split, assign_splits, check_splits, holdout_digest, uniform
from abstain.params import SplitParams

FROZEN = datetime(2026, 10, 15, tzinfo=UTC)
PARAMS = SplitParams(seed=11, validation=0.25, holdout=0.25, holdout_frozen_at=FROZEN)

moments = st.datetimes(min_value=datetime(2026, 1, 1), max_value=datetime(2026, 12, 31), timezones=st.just(UTC))
rows = st.lists(st.tuples(st.sampled_from([f"g{n}" for n in range(12)]) | st.text(), moments), max_size=40)


def part(split: Split) -> str:
    """Hold-out and newest are one part: the same groups, told apart by time."""
    return "held out" if split in ("holdout", "newest") else split


@given(rows)
def test_no_group_straddles_and_time_decides_only_within_the_held_out_groups(rows: list[tuple[str, datetime]]) -> None:
    parts: dict[str, set[str]] = {}
    for (group, asked_at), split in zip(rows, assign_splits(rows, PARAMS), strict=True):
        parts.setdefault(group, set()).add(part(split))
        assert (split == "newest") <= (asked_at >= FROZEN)
        assert (split == "holdout") <= (asked_at < FROZEN)
    assert all(len(found) == 1 for found in parts.values())


@given(rows, rows)
def test_more_rows_never_move_the_rows_there_are(
    rows: list[tuple[str, datetime]], more: list[tuple[str, datetime]]
) -> None:
    before = assign_splits(rows, PARAMS)
    assert assign_splits([*rows, *more], PARAMS)[: len(rows)] == before
    assert assign_splits([*more, *rows], PARAMS)[len(more) :] == before


@given(st.integers(), st.text())
def test_uniform_lies_in_the_half_open_interval(seed: int, group: str) -> None:
    assert 0 <= uniform(seed, group) < 1


def test_the_fractions_are_met_over_many_groups() -> None:
    splits = assign_splits([(f"group {n}", FROZEN - timedelta(days=1)) for n in range(4000)], PARAMS)
    counts = Counter(splits)
    assert set(counts) == {"train", "validation", "holdout"}
    assert counts["holdout"] / 4000 == pytest.approx(0.25, abs=0.03)
    assert counts["validation"] / 4000 == pytest.approx(0.25, abs=0.03)


def test_the_assignment_is_the_same_on_every_machine() -> None:
    assert uniform(11, "fees") == pytest.approx(0.8855024657, abs=1e-9)
    assert uniform(12, "fees") != uniform(11, "fees")


def test_the_freezing_moment_itself_is_newest() -> None:
    group = next(f"g{n}" for n in range(100) if uniform(11, f"g{n}") < 0.25)
    assert assign_splits([(group, FROZEN), (group, FROZEN - timedelta(seconds=1))], PARAMS) == ["newest", "holdout"]


def test_enough_of_both_classes_passes_and_newest_may_be_empty() -> None:
    check_splits(["train", "train", "validation", "validation", "holdout", "holdout"], [True, False] * 3)


@pytest.mark.parametrize("missing", ["train", "validation", "holdout"])
def test_an_empty_split_is_named_with_a_remedy(missing: str) -> None:
    splits: list[Split] = [s for s in ("train", "validation", "holdout") for _ in range(2) if s != missing]
    with pytest.raises(
        AbstainError, match=f"no labelled rows in the split '{missing}': ingest feedback on more groups"
    ):
        check_splits(splits, [True, False] * 2)


@pytest.mark.parametrize(("right", "only", "lacking"), [(True, "right", "wrong"), (False, "wrong", "right")])
def test_one_class_only_is_named_with_a_remedy(right: bool, only: str, lacking: str) -> None:
    splits: list[Split] = ["train", "train", "validation", "validation", "holdout", "holdout"]
    message = f"only {only} answers in the split 'validation' \\(2 rows\\): ingest feedback on {lacking} ones"
    with pytest.raises(AbstainError, match=message):
        check_splits(splits, [True, False, right, right, True, False])


def test_no_rows_at_all() -> None:
    assert assign_splits([], PARAMS) == []
    with pytest.raises(AbstainError, match="'train'"):
        check_splits([], [])


def test_the_holdout_digest_sees_rows_and_labels_but_not_their_order() -> None:
    digest = holdout_digest(["a", "b"], [True, False])
    assert digest == holdout_digest(["b", "a"], [False, True])
    assert digest != holdout_digest(["a", "b"], [True, True])
    assert digest != holdout_digest(["a", "c"], [True, False])
    assert len(digest) == 64
