from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from abstain.core.errors import AbstainError
from abstain.data.store.dataset import REVIEW_QUEUE_PREFIX, DataStore
from abstain.ingest.pipeline.run import ingest
from abstain.ingest.sources.files import make_explicit_sources
from abstain.review.candidates import read_candidates, stream_interactions
from tests.factories import ASKED, NOW, PARAMS, accept_all, alone, later, row, thumb, verdict, write_lines


def take(data: Path, *rows: dict, name: str = "history.jsonl") -> DataStore:
    file = write_lines(data.parent / name, *rows)
    report = ingest(make_explicit_sources([str(file)]), data, PARAMS, NOW, validate=accept_all)
    assert report.accepted == len(rows), report.reasons
    return DataStore(data)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def make_row(key: str, days: float, **more: object) -> dict:
    return row(key, asked_at=later(days).isoformat(), **more)


def test_read_candidates_default_is_the_last_days(data: Path) -> None:
    store = take(data, make_row("old", 0), make_row("first", 10), make_row("last", 40))
    window = read_candidates(store)
    assert list(window.frame.index) == ["first", "last"]
    assert (window.since, window.until) == (later(10), later(40) + timedelta(microseconds=1))


def test_read_candidates_window_excludes_its_end(data: Path) -> None:
    store = take(data, *(make_row(f"d{n}", n) for n in range(5)))
    assert list(read_candidates(store, later(1), later(3)).frame.index) == ["d1", "d2"]
    assert list(read_candidates(store, since=later(3)).frame.index) == ["d3", "d4"]
    assert list(read_candidates(store, until=later(2)).frame.index) == ["d0", "d1"]


def test_read_candidates_empty_window_raises(data: Path) -> None:
    store = take(data, make_row("a", 0), make_row("b", 3))
    with pytest.raises(AbstainError, match="from 2027-01-01 .* data/ holds 2026-09-01 12:00 to 2026-09-04"):
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
    assert frame["reviewed"].all()
    assert frame["queued"].tolist() == [True, False, False]
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


def test_stream_interactions_gives_those_of_some_ids(data: Path) -> None:
    store = take(data, make_row("a", 0), make_row("b", 1), make_row("c", 2))
    assert [one.interaction_id for one in stream_interactions(store, {"c", "a", "x"})] == ["a", "c"]
