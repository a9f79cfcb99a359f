import hashlib
import json
from collections import Counter
from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.config.params import SplitParams
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.data.store import splits as module
from abstain.data.store.splits import assign_splits, check_splits, hash_to_unit_interval
from abstain.sample.files import INCOMING_FROM
from benchmarks.sample.handbook import build_handbook
from benchmarks.sample.questions import build_questions
from tests.data.frames import BY_GROUP, BY_TIME, FROZEN

OPENS = BY_TIME.holdout_from
ENOUGH = ["train", "train", "validation", "validation", "holdout", "holdout"]
SAMPLE_COUNTS = {"validation": 181, "train": 338, "holdout": 95, "newest": 26}
SAMPLE_DIGEST = "8f8ae1cbb6c78916381ee1ac76588a4075ece8a586503cabe52a01d88c4a11d6"

Rows = list[tuple[str, datetime]]

moments = st.datetimes(min_value=datetime(2026, 1, 1), max_value=datetime(2026, 12, 31), timezones=st.just(UTC))
rows = st.lists(st.tuples(st.sampled_from([f"g{n}" for n in range(12)]) | st.text(), moments), max_size=40)


def split(rows: Rows, params: SplitParams) -> list[str]:
    index = pd.RangeIndex(7, 7 + len(rows))
    groups = pd.Series([group for group, _ in rows], index, dtype="str")
    asked_at = pd.Series([asked_at for _, asked_at in rows], index, dtype="datetime64[us, UTC]")
    found = assign_splits(groups, asked_at, params)
    assert found.index.equals(index)
    return found.tolist()


def part(split: str) -> str:
    """Join hold-out and newest, which have the same groups."""
    return "held out" if split in ("holdout", "newest") else split


@pytest.mark.heavy
@given(rows, st.sampled_from([BY_GROUP, BY_TIME]))
def test_assign_splits_late_freeze_moves_no_row(rows: Rows, params: SplitParams) -> None:
    open_ended = params.model_copy(update={"holdout_frozen_at": None})
    frozen = params.model_copy(update={"holdout_frozen_at": datetime(2027, 1, 1, tzinfo=UTC)})
    assert split(rows, open_ended) == split(rows, frozen)
    assert "newest" not in split(rows, open_ended)


@given(rows)
def test_assign_splits_by_group_never_straddles(rows: Rows) -> None:
    parts: dict[str, set[str]] = {}
    for (group, asked_at), found in zip(rows, split(rows, BY_GROUP), strict=True):
        parts.setdefault(group, set()).add(part(found))
        assert (found == "newest") <= (asked_at >= FROZEN)
        assert (found == "holdout") <= (asked_at < FROZEN)
    assert all(len(found) == 1 for found in parts.values())


@pytest.mark.heavy
@given(rows, rows)
def test_assign_splits_by_group_more_rows_move_none(rows: Rows, more: Rows) -> None:
    before = split(rows, BY_GROUP)
    assert split([*rows, *more], BY_GROUP)[: len(rows)] == before
    assert split([*more, *rows], BY_GROUP)[len(more) :] == before


@given(rows)
def test_assign_splits_by_time_window_is_holdout(rows: Rows) -> None:
    parts: dict[str, set[str]] = {}
    for (group, asked_at), found in zip(rows, split(rows, BY_TIME), strict=True):
        parts.setdefault(group, set()).add(part(found))
        assert (found == "holdout") == (OPENS <= asked_at < FROZEN)
        assert (found == "newest") == (asked_at >= FROZEN)
    for found in parts.values():
        assert found in ({"train"}, {"validation"}, {"held out"}, {"held out", "excluded"})


@pytest.mark.heavy
@given(rows, rows)
def test_assign_splits_by_time_more_rows_only_exclude(rows: Rows, more: Rows) -> None:
    for before, after in zip(split(rows, BY_TIME), split([*rows, *more], BY_TIME), strict=False):
        assert after == before or (before in ("train", "validation") and after == "excluded")


@pytest.mark.parametrize(("params", "expected"), [(BY_GROUP, {"holdout", "validation"}), (BY_TIME, {"validation"})])
def test_assign_splits_meets_fractions(params: SplitParams, expected: set[str]) -> None:
    counts = Counter(split([(f"group {n}", OPENS - timedelta(days=1)) for n in range(4000)], params))
    assert set(counts) == {"train", *expected}
    for name in expected:
        assert counts[name] / 4000 == pytest.approx(0.25, abs=0.03)


@given(st.integers(), st.text())
def test_hash_to_unit_interval_value_is_fixed(seed: int, group: str) -> None:
    assert 0 <= hash_to_unit_interval(seed, group) < 1
    assert hash_to_unit_interval(11, "fees") == pytest.approx(0.8855024657, abs=1e-9)
    assert hash_to_unit_interval(12, "fees") != hash_to_unit_interval(11, "fees")


def test_assign_splits_sample_is_fixed() -> None:
    asked = [question for question in build_questions(build_handbook()) if question.asked_at < INCOMING_FROM]
    found = split([(question.group, question.asked_at) for question in asked], BY_GROUP)
    pairs = sorted(zip((question.question_id for question in asked), found, strict=True))
    assert Counter(found) == SAMPLE_COUNTS
    assert hashlib.sha256(json.dumps(pairs).encode()).hexdigest() == SAMPLE_DIGEST


def test_assign_splits_at_the_freezing_moment_and_refilled() -> None:
    names = [f"g{n}" for n in range(100)]
    group, other = (next(n for n in names if low < hash_to_unit_interval(11, n) < low + 0.25) for low in (0, 0.75))
    days = [FROZEN - timedelta(seconds=1), FROZEN, FROZEN + timedelta(days=30)]
    assert split([(group, day) for day in days], BY_GROUP) == ["holdout", "newest", "newest"]
    assert split([("a", FROZEN), ("b", OPENS)], BY_TIME) == ["newest", "holdout"]
    refilled = BY_GROUP.model_copy(update={"holdout_from": FROZEN, "holdout_frozen_at": days[2]})
    assert split([(group, day) for day in days], refilled) == ["excluded", "holdout", "newest"]
    assert split([(other, day) for day in days], refilled) == ["train"] * 3


def test_split_params_empty_window_or_training_raises() -> None:
    for opens in (None, FROZEN, FROZEN + timedelta(days=1)):
        with pytest.raises(ValueError, match="by: time needs a holdout_from before holdout_frozen_at"):
            SplitParams(**{**BY_TIME.model_dump(), "holdout_from": opens})
    assert SplitParams(**{**BY_TIME.model_dump(), "holdout": 0.9}).by == "time"
    with pytest.raises(ValueError, match="leave nothing to train on"):
        SplitParams(**{**BY_GROUP.model_dump(), "holdout": 0.9})


@pytest.mark.parametrize(("by", "remedy"), [("group", "ingest feedback on more"), ("time", ".*split.holdout_from")])
def test_check_splits_empty_split_raises(by: str, remedy: str) -> None:
    frame = pd.DataFrame({"split": [*ENOUGH, "newest"], "correct": [True, False] * 3 + [True]})
    check_splits(frame, by)
    for missing in ("train", "validation", "holdout"):
        with pytest.raises(AbstainError, match=f"no labelled rows in the split '{missing}': {remedy}") as error:
            check_splits(frame[frame["split"] != missing], by)
        assert error.value.code == Code.TOO_FEW_LABELS
    assert split([], BY_GROUP) == split([], BY_TIME) == []
    with pytest.raises(AbstainError, match="'train'"):
        check_splits(frame.head(0), by)


@pytest.mark.parametrize(("correct", "only", "lack"), [(True, "correct", "incorrect"), (False, "incorrect", "correct")])
def test_check_splits_one_label_raises(correct: bool, only: str, lack: str) -> None:
    frame = pd.DataFrame({"split": ENOUGH, "correct": [True, False, correct, correct, True, False]})
    expected = f"only {only} answers in the split 'validation' .*feedback on {lack} ones"
    with pytest.raises(AbstainError, match=expected, check=lambda error: error.code is Code.TOO_FEW_LABELS):
        check_splits(frame, "group")


def test_split_by_sampling_separates_self_selected() -> None:
    rows = pd.DataFrame({"sampled": [at % 3 > 0 for at in range(3 * module.MIN_SAMPLED // 2)]})
    assert rows["sampled"].sum() == module.MIN_SAMPLED
    counted, apart = module.split_by_sampling(rows)
    assert counted["sampled"].all() and not apart["sampled"].any() and len(counted) + len(apart) == len(rows)
    for few, of_all in ((rows.drop(index=1), True), (rows, False)):
        counted, apart = module.split_by_sampling(few, of_all)
        assert counted.equals(few) and apart.empty


def test_select_reviewed_holdout_by_position() -> None:
    splits = ["holdout", "holdout", "train", "holdout"]
    frame = pd.DataFrame({"source": ["review", "thumb", "review", "review"], "split": splits})
    assert module.select_reviewed(frame).index.tolist() == [0, 2, 3]
    assert module.select_reviewed_holdout(frame, ["a", "b", "c", "d"]) == ["a", "d"]


def test_compute_holdout_digest_hashes_sorted_utf8_json() -> None:
    """The digests of former promotions are stored, so they may not change."""
    text = '[["b", false], ["ä", true]]'
    digests = [
        module.compute_holdout_digest(["ä", "b"], [True, False]),
        module.compute_holdout_digest(["b", "ä"], [False, True]),
    ]
    assert digests == [hashlib.sha256(text.encode()).hexdigest()] * 2
