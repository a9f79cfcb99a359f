import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abstain.config.settings import load_settings
from abstain.core.contracts import Interaction, Review, Thumb
from abstain.core.errors import AbstainError
from abstain.data.decision_log import changes as module
from abstain.data.decision_log import queries
from abstain.data.decision_log.decisions import LoggedDecision
from abstain.data.decision_log.log import DecisionLog
from abstain.data.store.dataset import DataStore
from abstain.ingest.parsing import ParsedRow
from abstain.ingest.pipeline.run import ingest
from abstain.ingest.report import IngestReport
from abstain.ingest.sources import SourceReader
from abstain.ingest.sources.config import load_sources
from abstain.ingest.sources.decision_log import DecisionLogSource
from tests.data.decision_log.builders import AT, decision, open_log, url_of
from tests.factories import NOW, PARAMS, accept_all, feedback, interaction, review

Open = Callable[..., DecisionLog]
NONE = {"withheld_sampling_rate": 0.0, "shown_sampling_rate": 0.0}
ALL = {"withheld_sampling_rate": 1.0, "shown_sampling_rate": 1.0}


@pytest.fixture
def open_here(tmp_path: Path) -> Iterator[Open]:
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(closing(open_log(url_of(tmp_path), **options)))


def open_reader(folder: Path, state: Mapping[str, Any] | None = None) -> SourceReader:
    return DecisionLogSource(name="decisions", url=url_of(folder)).read(state or {})


def read(folder: Path, state: Mapping[str, Any] | None = None) -> tuple[list[ParsedRow], dict[str, Any]]:
    reading = open_reader(folder, state)
    rows = list(reading)
    assert [row.reasons for row in rows] == [()] * len(rows)
    return rows, json.loads(json.dumps(reading.outcome.state))


def record(log: DecisionLog, *entries: LoggedDecision | Thumb | Review) -> None:
    for entry in entries:
        is_decision = isinstance(entry, LoggedDecision)
        (log.record_decision(entry) if is_decision else log.record_feedback(token_hex(8), entry)).result()


def list_parts(rows: list[ParsedRow]) -> list[tuple[str | None, str | None]]:
    """The interaction of each row, and that of its thumb or review."""
    pairs = [(row.interaction, row.thumb or row.review) for row in rows]
    return [(asked and asked.interaction_id, reply and reply.interaction_id) for asked, reply in pairs]


def take(folder: Path) -> IngestReport:
    source = DecisionLogSource(name="decisions", url=url_of(folder))
    return ingest([source], folder / "data", PARAMS, NOW, incremental=True, validate=accept_all)


def test_decisions_only_sampled_and_rated_ones_come(tmp_path: Path, open_here: Open) -> None:
    record(open_here(**NONE), *map(decision, "abc"), feedback("b", user="u-1"), review("c"))
    record(open_here(**ALL), decision("drawn", shown=False))
    rows, state = read(tmp_path)
    assert list_parts(rows) == [("drawn", None), ("b", "b"), ("c", "c")]
    assert rows[0].interaction == interaction("drawn", display="withheld")
    assert rows[1].interaction == interaction("b", display="shown", propensity=1.0)
    assert (rows[1].thumb, rows[2].review) == (feedback("b", user="u-1"), review("c"))
    assert read(tmp_path, state) == ([], state)


def test_decisions_one_that_replaces_an_empty_one_comes_once(tmp_path: Path, open_here: Open) -> None:
    log = open_here(**ALL)
    record(log, decision("a", shown=False, decision="unavailable", interaction=None), decision("b"), feedback("a"))
    reading = open_reader(tmp_path)
    assert list_parts(list(reading)) == [("b", None), (None, "a")] and reading.outcome.notes == ()
    record(log, decision("a"))
    rows, state = read(tmp_path, reading.outcome.state)
    assert list_parts(rows) == [("a", None)]
    assert read(tmp_path, state)[0] == []


numbers = st.integers(0, 7)
steps = st.one_of(
    *(st.tuples(st.just(step), numbers) for step in ("decide", "thumb", "review")),
    st.tuples(st.just("ingest"), st.booleans()),
)


@pytest.mark.heavy
@given(st.lists(steps, max_size=25))
@settings(max_examples=25)
def test_decisions_every_row_is_ingested_exactly_once(tmp_path_factory: pytest.TempPathFactory, steps: list) -> None:
    folder = tmp_path_factory.mktemp("log")
    log = open_log(url_of(folder), withheld_sampling_rate=0.5, shown_sampling_rate=0.5)
    keys: dict[str, list[str]] = {"decide": [], "thumb": [], "review": []}
    for number, (step, value) in enumerate(steps):
        if step == "ingest" and value:  # killed before it published: nothing of it is kept
            list(open_reader(folder, DataStore(folder / "data").read_source_state("decisions")))
        elif step == "ingest":
            take(folder)
        else:
            key = f"i-{value}"
            thumb, verdict = feedback(key, user=f"u-{number}"), review(key, reviewer=f"r-{number}")
            record(log, {"decide": decision(key), "thumb": thumb, "review": verdict}[step])
            keys[step].append(key)
    take(folder)
    decided = set(keys["decide"])
    drawn = {key for key in decided if queries.get_decision(log.database, key).sampled}
    log.close()
    thumbs, reviews = (sorted(key for key in keys[step] if key in decided) for step in ("thumb", "review"))
    rows = [DataStore(folder / "data").iter_rows(kind) for kind in (Interaction, Thumb, Review)]
    stored = [sorted(row.interaction_id for row in of_kind) for of_kind in rows]
    assert stored == [sorted({*drawn, *thumbs, *reviews}), thumbs, reviews]
    assert take(folder).read == 0


def test_decisions_pages_come_in_order(tmp_path: Path, open_here: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE_ROWS", 3)
    log = open_here(**ALL)
    record(log, *(make(f"i-{n}") for n in range(9) for make in (decision, feedback)))
    reading = open_reader(tmp_path)
    rows = iter(reading)
    first = next(rows)
    record(log, decision("late"))
    assert [row.line for row in (first, *rows)] == [*range(1, 10), *range(1, 10)]
    assert list_parts(read(tmp_path, reading.outcome.state)[0]) == [("late", None)]


def test_decisions_another_log_is_read_from_its_beginning(tmp_path: Path) -> None:
    for name in ("old", "new"):
        with closing(open_log(url_of(tmp_path / name), **ALL)) as log:
            record(log, decision(name), *([decision("more")] if name == "old" else []))
    _, state = read(tmp_path / "old")
    assert list_parts(read(tmp_path / "new", state)[0]) == [("new", None)]


def test_decisions_missing_log_gives_nothing_and_keeps_state(tmp_path: Path) -> None:
    reading = open_reader(tmp_path / "nowhere", {"log": "5e", "decisions": 3, "feedback": 2})
    assert list(reading) == []
    assert reading.outcome.state == {"log": "5e", "decisions": 3, "feedback": 2} and reading.outcome.notes == ()
    assert not (tmp_path / "nowhere").exists()


def test_decisions_expired_texts_are_skipped_and_noted(tmp_path: Path, open_here: Open) -> None:
    log = open_here(**ALL, keep_days=30)
    record(log, decision("old", decided_at=AT - timedelta(days=40)), decision("new"), feedback("old"))
    assert log.purge_expired_texts(AT) == 1
    reading = open_reader(tmp_path)
    assert list_parts(list(reading)) == [("new", None), (None, "old")]
    (note,) = reading.outcome.notes
    assert note.startswith("decisions: 2 ")


def test_decisions_log_named_by_the_settings_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sources.yaml").write_text(
        "sources:\n- {name: decisions, kind: decisions}\n- {name: other, kind: decisions, url: '${OTHER}'}\n"
    )
    monkeypatch.setenv("OTHER", "postgresql://ann:s3cret@other/log")
    own, other = load_sources(tmp_path / "sources.yaml", tmp_path)
    assert (own.url, other.url) == (url_of(tmp_path), "postgresql://ann:s3cret@other/log")
    assert "s3cret" not in repr(other)
    monkeypatch.setenv("ABSTAIN_DECISION_LOG", "postgresql://ann:s3cret@host/log")
    (own, _) = load_sources(tmp_path / "sources.yaml", tmp_path)
    assert own.url == "postgresql://ann:s3cret@host/log"
    assert "s3cret" not in repr(load_settings())
    monkeypatch.delenv("OTHER")
    with pytest.raises(AbstainError, match="'other': .*OTHER"):
        load_sources(tmp_path / "sources.yaml", tmp_path)
