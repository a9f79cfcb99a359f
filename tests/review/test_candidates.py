from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from abstain.core.errors import AbstainError
from abstain.data.store.dataset import REVIEW_QUEUE_PREFIX, DataStore
from abstain.review import question_drift as module
from abstain.review.candidates import read_candidates, stream_interactions
from abstain.review.question_drift import compute_nearest_distances, measure_question_drift
from tests.factories import ASKED, PARAMS, alone, later, row, thumb, verdict, write_lines
from tests.ingest import builders


def take(data: Path, *rows: dict, name: str = "history.jsonl") -> DataStore:
    report = builders.take(data, write_lines(data.parent / name, *rows), params=PARAMS)
    assert report.accepted == len(rows), report.reasons
    return DataStore(data)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def make_row(key: str, days: float, **more: object) -> dict:
    return row(key, asked_at=later(days).isoformat(), **more)


def test_read_candidates_window_excludes_its_end(data: Path) -> None:
    store = take(data, make_row("old", 0), *(make_row(f"d{n}", n) for n in (31, 32, 33, 34)))
    window = read_candidates(store)  # by default the last days
    assert list(window.frame.index) == ["d31", "d32", "d33", "d34"]
    assert (window.since, window.until) == (later(4), later(34) + timedelta(microseconds=1))
    assert list(read_candidates(store, later(31), later(33)).frame.index) == ["d31", "d32"]
    assert list(read_candidates(store, since=later(33)).frame.index) == ["d33", "d34"]
    assert list(read_candidates(store, until=later(32)).frame.index) == ["d31"]
    assert [one.interaction_id for one in stream_interactions(store, {"d32", "old", "x"})] == ["old", "d32"]
    with pytest.raises(AbstainError, match="from 2027-01-01 .* data/ holds 2026-09-01 12:00 to 2026-10-05"):
        read_candidates(store, since=ASKED.replace(year=2027, month=1, day=1))
    with pytest.raises(AbstainError, match="abstain ingest"):
        read_candidates(DataStore(data / "nowhere"))


def test_read_candidates_too_old_for_a_review_raises(data: Path) -> None:
    store = take(data, make_row("a", 0), make_row("b", 10), make_row("c", 20))
    assert list(read_candidates(store, oldest=later(5)).frame.index) == ["b", "c"]
    assert list(read_candidates(store, since=later(5), oldest=later(5)).frame.index) == ["b", "c"]
    for since, oldest in ((later(4), later(5)), (None, later(21))):
        with pytest.raises(AbstainError, match="validation.max_feedback_delay_days"):
            read_candidates(store, since, oldest=oldest)


def test_read_candidates_columns_of_a_row(data: Path) -> None:
    store = take(
        data,
        make_row("thumbs", 0, product="cards", line_of_business="retail", thumb=thumb("up", 3)),
        alone(thumb("down", 2), "thumbs"),
        make_row("alone", 0),
        make_row("reviewed", 0, product="loans", review=verdict(days=1, inclusion_probability=0.25)),
    )
    frame = read_candidates(store).frame
    assert frame["thumb"].to_dict() == {"thumbs": "up", "alone": "none", "reviewed": "none"}, "the last one given"
    assert frame["product"].tolist()[:1] == ["cards"] and frame["product"].isna().tolist() == [False, True, False]
    assert frame["line_of_business"].isna().tolist() == [False, True, True]
    assert frame["reviewed"].tolist() == [False, False, True]
    assert not frame["queued"].any()
    np.testing.assert_array_equal(frame["recorded_probability"], [np.nan, np.nan, 0.25])


def test_read_candidates_queued_review_is_known_by_its_source(data: Path) -> None:
    take(data, make_row("a", 0), make_row("b", 0), make_row("c", 0, review=verdict(inclusion_probability=0.5)))
    take(data, alone(verdict(inclusion_probability=0.1), "a"), name=f"{REVIEW_QUEUE_PREFIX}-week 1.jsonl")
    store = take(data, alone(verdict(), "b"), name="other.jsonl")
    frame = read_candidates(store).frame
    assert frame["reviewed"].all() and frame["queued"].tolist() == [True, False, False]
    assert read_candidates(store, queued={"b"}).frame["queued"].tolist() == [True, True, False], "on the gate's page"
    np.testing.assert_array_equal(frame["recorded_probability"], [0.1, np.nan, 0.5])


def test_read_candidates_keeps_last_review_of_each_reviewer(data: Path) -> None:
    take(data, make_row("a", 0, review=verdict(True, 1, inclusion_probability=0.1)))
    store = take(
        data,
        alone(verdict(False, 3, inclusion_probability=0.2), "a"),
        alone(verdict(True, 2, inclusion_probability=0.9), "a"),
        alone(verdict(True, 5, reviewer="sme-2"), "a"),
        name="more.jsonl",
    )
    window = read_candidates(store)
    words = {review.reviewer: (review.reviewed_at, review.correct) for review in window.reviews["a"]}
    assert words == {"sme-1": (later(3), False), "sme-2": (later(5), True)}
    assert window.frame["recorded_probability"].tolist() == [0.2]


def encode_letters(texts: Sequence[str]) -> NDArray[np.float32]:
    """Texts by the letters that they are made of: enough to know near from far."""
    return np.array([[text.count(letter) for letter in "abcdef"] for text in texts], np.float32).reshape(-1, 6)


LETTERS = SimpleNamespace(encode=encode_letters)


def test_distance_to_trained_questions_is_small_repeated_nan() -> None:
    trained_on = ["aaab", "aab", "aba", "abaa", "baaa", "cc", "ccc", "cccc", "cc c", "c c"]
    known, rare, new, half = compute_nearest_distances(["aaab", "cc", "ff", "fc"], trained_on, LETTERS)
    assert known < 0.05 and rare == pytest.approx(0, abs=1e-6), "rare, but trained on"
    assert new == pytest.approx(1) and 0.2 < half < 0.4
    found = compute_nearest_distances(["ff", "aa", "ff", "ff"], ["aa"] * 5, LETTERS)
    assert np.isnan(found).tolist() == [False, False, True, True]
    assert np.isnan(compute_nearest_distances(["a", "b"], [], LETTERS)).all()
    assert compute_nearest_distances([], ["a"], LETTERS).shape == (0,)


@given(st.lists(st.text("abcdef", min_size=1), min_size=1, max_size=20), st.lists(st.text("abcdef"), max_size=20))
def test_distance_is_independent_of_the_batch_size(questions: list[str], trained_on: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        whole = compute_nearest_distances(questions, trained_on, LETTERS)
        patch.setattr(module, "BATCH_SIZE", 3)
        np.testing.assert_allclose(compute_nearest_distances(questions, trained_on, LETTERS), whole, atol=1e-6)
    assert np.nanmin([0.0, *whole]) >= -1e-6 and np.nanmax([0.0, *whole]) <= 2


def test_measure_question_drift_reads_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(f"t{n}", question="aab") for n in range(6)] + [row("new", question="ff"), row("old", question="aab")]
    store = take(tmp_path / "data", *rows)
    found = measure_question_drift(store, {"new", "old", "gone"}, {f"t{n}" for n in range(6)}, LETTERS, seed=0)
    assert found["new"] == pytest.approx(1) and found["old"] == pytest.approx(0, abs=1e-6) and "gone" not in found
    monkeypatch.setattr(module, "MAX_COMPARED", 1)
    assert len(measure_question_drift(store, {"new", "old"}, {"t0", "t1"}, LETTERS, seed=0)) == 1
