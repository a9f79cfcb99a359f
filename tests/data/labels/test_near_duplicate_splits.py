from datetime import timedelta
from itertools import islice

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abstain.config.params import SplitParams
from abstain.data.labels.near_duplicate_splits import has_near_duplicate_in_training, split_rows
from abstain.data.store.splits import assign_splits, hash_to_unit_interval
from tests.data.frames import BY_GROUP, BY_TIME, FROZEN, OPENS

Row = tuple[str, int | None, int | None, int]
"""Group, question's and answer's twin, days after the hold-out of `BY_TIME` opens."""

PARAMS = BY_GROUP.model_copy(update={"max_component": 0.3})
twin = st.none() | st.integers(0, 5)
nights = st.lists(
    st.lists(st.tuples(st.sampled_from([f"g{n}" for n in range(12)]), twin, twin, st.integers(-20, 60)), min_size=1, max_size=12),
    min_size=1,
    max_size=5,
)  # fmt: skip


def make_rows(*nights: list[Row]) -> pd.DataFrame:
    """Make the rows of some nights, in the order of `training_table`."""
    rows = [
        (f"{night:06d}", OPENS + timedelta(days=days), group, question, answer)
        for night, batch in enumerate(nights)
        for group, question, answer, days in sorted(batch, key=lambda row: row[3])
    ]
    frame = pd.DataFrame(rows, columns=["batch", "asked_at", "group", "question_duplicate", "answer_duplicate"])
    return frame.astype({"question_duplicate": "Int64", "answer_duplicate": "Int64", "group": "str"})


def find_groups(side: str, count: int = 1) -> list[str]:
    """Find groups whose name alone puts them on this side."""
    names = (f"g{n}" for n in range(1000))
    found = (n for n in names if (hash_to_unit_interval(PARAMS.seed, n) < PARAMS.holdout) == (side == "holdout"))
    return list(islice(found, count))


(HELD,), (TRAINED,) = find_groups("holdout"), find_groups("train")


def make_fillers(count: int) -> list[Row]:
    return [(f"filler {n}", None, None, 0) for n in range(count)]


def count_component_rows(rows: pd.DataFrame) -> pd.Series:
    """Count the rows of each whole component, by row."""
    label, before = pd.Series(range(len(rows))), None
    while not label.equals(before):
        before = label
        for name in ("group", "question_duplicate", "answer_duplicate"):
            label = label.groupby(rows[name]).transform("min").fillna(label).astype(int)
    return label.map(label.value_counts())


def test_split_rows_first_group_decides_for_joined() -> None:
    for first, other in ((HELD, TRAINED), (TRAINED, HELD)):
        rows = make_rows([(first, 1, None, 0), (other, 1, None, 1), *make_fillers(38)])
        found = split_rows(rows, BY_GROUP)
        sides = found["split"].groupby(rows["group"]).first()
        assert (sides[first] == "holdout") == (first == HELD) == (sides[other] == "holdout")
        assert rows["group"][found["joined"]].tolist() == [other]


def test_has_near_duplicate_marks_validation_rows() -> None:
    others = find_groups("train", 30)
    splits = assign_splits(pd.Series(others), pd.Series([OPENS] * len(others)), BY_GROUP)
    validating, trained = (others[splits.tolist().index(name)] for name in ("validation", "train"))
    rows = make_rows([(validating, 1, None, 0), (validating, 2, None, 0), *make_fillers(20)], [(trained, 1, None, 1)])
    flagged = has_near_duplicate_in_training(rows.assign(split=split_rows(rows, BY_GROUP)["split"]))
    assert flagged[flagged].index.tolist() == [0]


def test_split_rows_newest_twin_leaves_training_alone() -> None:
    days = (FROZEN - OPENS).days
    rows = make_rows([(HELD, None, None, 0), (TRAINED, 1, None, 0), *make_fillers(60)], [(HELD, 1, None, days)])
    found = split_rows(rows, BY_GROUP)
    assert found["split"].iloc[-1] == "newest" and not found["left_out"].any()
    assert not has_near_duplicate_in_training(rows.assign(split=found["split"])).any()


@pytest.mark.heavy
@settings(max_examples=40)
@given(nights)
def test_split_rows_batches_keep_holdout(nights: list[list[Row]]) -> None:
    before: pd.DataFrame | None = None
    for count in range(1, len(nights) + 1):
        rows = make_rows(*nights[:count])
        after = split_rows(rows, PARAMS)
        by_group = after["split"].where(after["split"] != "newest", "holdout")[~after["left_out"]]
        assert by_group.groupby(rows["group"]).nunique().le(1).all()
        if before is not None:
            now = after.head(len(before))
            held = before["split"].isin(["holdout", "newest"])
            assert now["split"][held].equals(before["split"][held])
            moved = now["split"] != before["split"]
            assert (now["left_out"] | before["left_out"])[moved].all() and not held[moved].any()
        before = after


@pytest.mark.heavy
@settings(max_examples=40)
@given(nights, st.sampled_from([PARAMS, BY_TIME.model_copy(update={"max_component": 0.3})]))
def test_split_rows_holdout_twins_are_not_trained_on(nights: list[list[Row]], params: SplitParams) -> None:
    """Only in small components; other twins are not left out."""
    rows = make_rows(*nights)
    found = split_rows(rows, params)
    flagged = has_near_duplicate_in_training(rows.assign(split=found["split"]))
    held = found["split"] == "holdout"
    assert not flagged[held & (count_component_rows(rows) <= 0.3 * len(rows))].any()
    assert found["split"][flagged].isin(["holdout", "validation"]).all()
    unsplit = rows.assign(split=found["split"].mask(found["left_out"], "train"))
    held = unsplit[unsplit["split"] == "holdout"]
    for at in found.index[found["left_out"]]:
        assert any((rows.loc[at, name] == held[name]).any() for name in ("question_duplicate", "answer_duplicate"))
    if params.by == "time":
        plain = assign_splits(rows["group"], rows["asked_at"], params)
        assert found["split"][~found["left_out"]].equals(plain[~found["left_out"]]) and not found["joined"].any()


@pytest.mark.heavy
@settings(max_examples=40)
@given(nights)
def test_split_rows_small_components_are_on_one_side(nights: list[list[Row]]) -> None:
    rows = make_rows([row for night in nights for row in night])
    found = split_rows(rows, PARAMS)
    small = count_component_rows(rows) <= PARAMS.max_component * len(rows)
    assert not found["left_out"][small].any()
