import gzip
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
from abstain.data.store.splits import (
    MIN_SAMPLED,
    Split,
    assign_splits,
    check_splits,
    compute_holdout_digest,
    hash_to_unit_interval,
    select_reviewed,
    select_reviewed_holdout,
    split_by_sampling,
)
from abstain.sample.files import INCOMING_FROM
from benchmarks.sample.handbook import build_handbook
from benchmarks.sample.questions import build_questions
from tests.conftest import ROOT
from tests.data.frames import BY_GROUP, BY_TIME, FROZEN

QA_FROM_HF = ROOT.parent / "shared" / "data" / "qa_from_hf" / "user_feedback.jsonl.gz"
OPENS = BY_TIME.holdout_from
SAMPLE_COUNTS = {"validation": 181, "train": 338, "holdout": 95, "newest": 26}
SAMPLE_DIGEST = "8f8ae1cbb6c78916381ee1ac76588a4075ece8a586503cabe52a01d88c4a11d6"

Rows = list[tuple[str, datetime]]

moments = st.datetimes(min_value=datetime(2026, 1, 1), max_value=datetime(2026, 12, 31), timezones=st.just(UTC))
rows = st.lists(st.tuples(st.sampled_from([f"g{n}" for n in range(12)]) | st.text(), moments), max_size=40)


def split(rows: Rows, params: SplitParams) -> list[str]:
    groups = pd.Series([group for group, _ in rows], dtype="str")
    asked_at = pd.Series([asked_at for _, asked_at in rows], dtype="datetime64[us, UTC]")
    return assign_splits(groups, asked_at, params).tolist()


def part(split: str) -> str:
    """Hold-out and newest are one part: the same groups, told apart by time."""
    return "held out" if split in ("holdout", "newest") else split


@given(rows, st.sampled_from([BY_GROUP, BY_TIME]))
def test_a_date_after_every_row_moves_none(rows: Rows, params: SplitParams) -> None:
    """What the first promotion writes."""
    open_ended = params.model_copy(update={"holdout_frozen_at": None})
    frozen = params.model_copy(update={"holdout_frozen_at": datetime(2027, 1, 1, tzinfo=UTC)})
    assert split(rows, open_ended) == split(rows, frozen)
    assert "newest" not in split(rows, open_ended)


@given(rows)
def test_no_group_straddles_and_time_decides_only_within_the_held_out_groups(rows: Rows) -> None:
    parts: dict[str, set[str]] = {}
    for (group, asked_at), found in zip(rows, split(rows, BY_GROUP), strict=True):
        parts.setdefault(group, set()).add(part(found))
        assert (found == "newest") <= (asked_at >= FROZEN)
        assert (found == "holdout") <= (asked_at < FROZEN)
    assert all(len(found) == 1 for found in parts.values())


@given(rows, rows)
def test_by_group_more_rows_never_move_the_rows_there_are(rows: Rows, more: Rows) -> None:
    before = split(rows, BY_GROUP)
    assert split([*rows, *more], BY_GROUP)[: len(rows)] == before
    assert split([*more, *rows], BY_GROUP)[len(more) :] == before


@given(rows)
def test_by_time_the_window_is_the_holdout_and_no_group_both_trains_and_judges(rows: Rows) -> None:
    parts: dict[str, set[str]] = {}
    for (group, asked_at), found in zip(rows, split(rows, BY_TIME), strict=True):
        parts.setdefault(group, set()).add(part(found))
        assert (found == "holdout") == (OPENS <= asked_at < FROZEN)
        assert (found == "newest") == (asked_at >= FROZEN)
    for found in parts.values():
        assert found in ({"train"}, {"validation"}, {"held out"}, {"held out", "excluded"})


@given(rows, rows)
def test_by_time_the_judging_rows_never_move_and_a_row_that_trained_can_only_be_left_out(
    rows: Rows, more: Rows
) -> None:
    for before, after in zip(split(rows, BY_TIME), split([*rows, *more], BY_TIME), strict=False):
        assert after == before or (before in ("train", "validation") and after == "excluded")


@given(st.integers(), st.text())
def test_uniform_lies_in_the_half_open_interval(seed: int, group: str) -> None:
    assert 0 <= hash_to_unit_interval(seed, group) < 1


@pytest.mark.parametrize(("params", "expected"), [(BY_GROUP, {"holdout", "validation"}), (BY_TIME, {"validation"})])
def test_the_fractions_are_met_over_many_groups(params: SplitParams, expected: set[str]) -> None:
    counts = Counter(split([(f"group {n}", OPENS - timedelta(days=1)) for n in range(4000)], params))
    assert set(counts) == {"train", *expected}
    for name in expected:
        assert counts[name] / 4000 == pytest.approx(0.25, abs=0.03)


def test_the_assignment_is_the_same_on_every_machine() -> None:
    assert hash_to_unit_interval(11, "fees") == pytest.approx(0.8855024657, abs=1e-9)
    assert hash_to_unit_interval(12, "fees") != hash_to_unit_interval(11, "fees")


def test_the_shipped_sample_keeps_its_splits() -> None:
    asked = [question for question in build_questions(build_handbook()) if question.asked_at < INCOMING_FROM]
    found = split([(question.group, question.asked_at) for question in asked], BY_GROUP)
    pairs = sorted(zip((question.question_id for question in asked), found, strict=True))
    assert Counter(found) == SAMPLE_COUNTS
    assert hashlib.sha256(json.dumps(pairs).encode()).hexdigest() == SAMPLE_DIGEST


def test_the_freezing_moment_itself_is_newest() -> None:
    group = next(f"g{n}" for n in range(100) if hash_to_unit_interval(11, f"g{n}") < 0.25)
    assert split([(group, FROZEN), (group, FROZEN - timedelta(seconds=1))], BY_GROUP) == ["newest", "holdout"]
    assert split([("a", FROZEN), ("b", OPENS)], BY_TIME) == ["newest", "holdout"]


def test_a_refilled_hold_out_begins_where_the_former_one_ended() -> None:
    group = next(f"g{n}" for n in range(100) if hash_to_unit_interval(11, f"g{n}") < 0.25)
    other = next(f"g{n}" for n in range(100) if hash_to_unit_interval(11, f"g{n}") > 0.75)
    refilled = BY_GROUP.model_copy(update={"holdout_from": FROZEN, "holdout_frozen_at": FROZEN + timedelta(days=30)})
    days = [FROZEN - timedelta(seconds=1), FROZEN, FROZEN + timedelta(days=30)]
    assert split([(group, day) for day in days], refilled) == ["excluded", "holdout", "newest"]
    assert split([(other, day) for day in days], refilled) == ["train"] * 3


def test_the_index_is_kept() -> None:
    groups = pd.Series(["a", "b"], index=[7, 3], dtype="str")
    found = assign_splits(groups, pd.Series([FROZEN, OPENS], index=[7, 3]), BY_TIME)
    assert found.to_dict() == {7: "newest", 3: "holdout"}


@pytest.mark.skipif(not QA_FROM_HF.exists(), reason="../shared/data/qa_from_hf is not here")
def test_rounds_of_user_feedback_split_as_their_authors_split_them() -> None:
    """Rounds 1 to 6 train, 7 to 9 judge, and no topic does both."""
    with gzip.open(QA_FROM_HF, "rt", encoding="utf-8") as file:
        rounds = pd.DataFrame([row for row in map(json.loads, file) if row["study"] == "long-term"])
    asked_at = pd.Timestamp("2026-01-01", tz="UTC") + pd.to_timedelta(rounds["round"], "D")
    opens, closes = (pd.Timestamp(f"2026-01-{day}", tz="UTC").to_pydatetime() for day in ("08", "11"))
    params = SplitParams(**{**BY_TIME.model_dump(), "holdout_from": opens, "holdout_frozen_at": closes})
    found = assign_splits(rounds["title"], asked_at, params)
    assert set(rounds["round"][found == "holdout"]) == {7, 8, 9}
    assert set(rounds["round"][found != "holdout"]) == {1, 2, 3, 4, 5, 6}
    judged = set(rounds["title"][rounds["round"] >= 7])
    assert not judged & set(rounds["title"][found.isin(["train", "validation"])])
    assert (found == "excluded").tolist() == ((rounds["round"] <= 6) & rounds["title"].isin(judged)).tolist()
    assert (found == "excluded").sum() > 0 and (found == "train").sum() > 300


@pytest.mark.parametrize("opens", [None, FROZEN, FROZEN + timedelta(days=1)])
def test_a_window_that_is_none_is_refused(opens: datetime | None) -> None:
    with pytest.raises(ValueError, match="by: time needs a holdout_from before holdout_frozen_at"):
        SplitParams(**{**BY_TIME.model_dump(), "holdout_from": opens})


def test_the_fraction_of_the_holdout_is_not_looked_at_by_time() -> None:
    assert SplitParams(**{**BY_TIME.model_dump(), "holdout": 0.9}).by == "time"
    with pytest.raises(ValueError, match="leave nothing to train on"):
        SplitParams(**{**BY_GROUP.model_dump(), "holdout": 0.9})


def refusal(splits: list[Split], correct: list[bool]) -> str | None:
    """What `check_splits` has against them; None where it lets them pass."""
    try:
        check_splits(splits, correct)
    except AbstainError as error:
        return str(error)
    return None


def test_enough_of_both_classes_passes_and_newest_may_be_empty() -> None:
    enough: list[Split] = ["train", "train", "validation", "validation", "holdout", "holdout"]
    assert refusal(enough, [True, False] * 3) is None
    assert refusal([*enough, "newest"], [True, False] * 3 + [True]) is None


@pytest.mark.parametrize("missing", ["train", "validation", "holdout"])
def test_an_empty_split_is_named_with_a_remedy(missing: str) -> None:
    splits: list[Split] = [s for s in ("train", "validation", "holdout") for _ in range(2) if s != missing]
    with pytest.raises(
        AbstainError, match=f"no labelled rows in the split '{missing}': ingest feedback on more groups"
    ):
        check_splits(splits, [True, False] * 2)
    with pytest.raises(AbstainError, match=f"no labelled rows in the split '{missing}': .*split.holdout_from"):
        check_splits(splits, [True, False] * 2, "time")


@pytest.mark.parametrize(
    ("right", "only", "lacking"), [(True, "correct", "incorrect"), (False, "incorrect", "correct")]
)
def test_one_class_only_is_named_with_a_remedy(right: bool, only: str, lacking: str) -> None:
    splits: list[Split] = ["train", "train", "validation", "validation", "holdout", "holdout"]
    message = f"only {only} answers in the split 'validation' \\(2 rows\\): ingest feedback on {lacking} ones"
    with pytest.raises(AbstainError, match=message):
        check_splits(splits, [True, False, right, right, True, False])


def test_splits_and_labels_of_different_length_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="2 splits for 1 labels"):
        check_splits(["train", "train"], [True])


def test_no_rows_at_all() -> None:
    assert split([], BY_GROUP) == split([], BY_TIME) == []
    with pytest.raises(AbstainError, match="'train'"):
        check_splits([], [])


def test_the_holdout_digest_sees_rows_and_labels_but_not_their_order() -> None:
    digest = compute_holdout_digest(["a", "b"], [True, False])
    assert digest == compute_holdout_digest(["b", "a"], [False, True])
    assert digest != compute_holdout_digest(["a", "b"], [True, True])
    assert digest != compute_holdout_digest(["a", "c"], [True, False])
    assert len(digest) == 64


def test_only_experts_labels_are_tested_on() -> None:
    frame = pd.DataFrame({"source": ["thumb", "review", "thumb", "review"], "row": range(4)})
    assert select_reviewed(frame)["row"].tolist() == [1, 3]
    thumbs = frame[frame["source"] == "thumb"]
    assert select_reviewed(thumbs).empty


def test_reviews_that_chose_themselves_are_apart_where_enough_were_drawn() -> None:
    rows = pd.DataFrame({"sampled": [at % 3 > 0 for at in range(3 * MIN_SAMPLED // 2)]})
    assert rows["sampled"].sum() == MIN_SAMPLED
    counted, apart = split_by_sampling(rows)
    assert counted["sampled"].all() and not apart["sampled"].any() and len(counted) + len(apart) == len(rows)
    for few, of_all in ((rows.drop(index=1), True), (rows, False)):
        counted, apart = split_by_sampling(few, of_all)
        assert counted.equals(few) and apart.empty


def test_the_reviewed_hold_out_is_picked_by_place() -> None:
    frame = pd.DataFrame(
        {"source": ["review", "thumb", "review", "review"], "split": ["holdout", "holdout", "train", "holdout"]}
    )
    assert select_reviewed_holdout(frame, ["a", "b", "c", "d"]) == ["a", "d"]


def test_compute_holdout_digest_hashes_sorted_utf8_json() -> None:
    """The digests of former promotions are stored, so they may not change."""
    text = '[["b", false], ["ä", true]]'
    assert compute_holdout_digest(["ä", "b"], [True, False]) == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("correct", [[], [True, True]])
def test_check_splits_too_few_labels_raises_code(correct: list[bool]) -> None:
    with pytest.raises(AbstainError) as error:
        check_splits(["train"] * len(correct), correct)
    assert error.value.code == Code.TOO_FEW_LABELS
