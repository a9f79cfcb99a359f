import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abstain.core.errors import AbstainError
from abstain.ingest.parsing import ParsedRow, reparse
from abstain.ingest.sources.sql import SqlSource, TableConfig, TablesConfig
from abstain.ingest.sources.sql_database import parse_url
from tests.factories import feedback, interaction, review

THUMBS = TablesConfig(feedback=TableConfig(table="thumbs", watermark="written_at"))

MAKE = """
CREATE TABLE thumbs (id INTEGER PRIMARY KEY AUTOINCREMENT, interaction_id TEXT, given_at TEXT, thumb TEXT, written_at TEXT);
CREATE TABLE interactions (
  interaction_id TEXT PRIMARY KEY, asked_at TEXT, question TEXT, answer TEXT, contexts TEXT, model TEXT, product TEXT);
CREATE TABLE reviews (
  id INTEGER PRIMARY KEY, interaction_id TEXT, reviewed_at TEXT, reviewer TEXT, complete BOOLEAN, correct BOOLEAN,
  truthful BOOLEAN, inclusion_probability REAL);
"""


def new_database(folder: Path) -> Path:
    path = folder / "feedback.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(MAKE)
    return path


def run(path: Path, statement: str, *rows: tuple[Any, ...]) -> None:
    with closing(sqlite3.connect(path, timeout=0)) as connection:
        connection.executemany(statement, rows or [()])
        connection.commit()


def add_thumb(path: Path, key: int, written_at: str | None, thumb: str = "up") -> None:
    values = (key, f"i-{key}", "2026-09-02T12:00:00Z", thumb, written_at)
    run(path, "INSERT INTO thumbs VALUES (?, ?, ?, ?, ?)", values)


def source(path: Path | str, tables: TablesConfig | None = THUMBS, **options: Any) -> SqlSource:
    url = f"sqlite:///{path}" if isinstance(path, Path) else path
    return SqlSource(name="warehouse", url=url, tables=tables, **options)


def read(
    path: Path | str, state: Mapping[str, Any] | None = None, tables: TablesConfig | None = THUMBS, **options: Any
) -> tuple[list[ParsedRow], dict[str, Any]]:
    """Return the rows of one reading, and its state after a round trip through JSON."""
    reading = source(path, tables, **options).read(state or {})
    rows = list(reading)
    return rows, json.loads(json.dumps(reading.outcome.state))


def lines(rows: list[ParsedRow]) -> list[int]:
    return [row.line for row in rows]


DAY = "2026-09-{:02}T12:00:00Z"


def thumbs(**config: Any) -> TablesConfig:
    return TablesConfig(feedback=TableConfig(**config))


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return new_database(tmp_path)


@pytest.fixture
def ten_days(database: Path) -> Path:
    """A database with a thumb a day, numbered like the days 1 to 10."""
    for key in range(1, 11):
        add_thumb(database, key, DAY.format(key))
    return database


def test_sql_without_tables_reads_the_three_by_name(database: Path) -> None:
    asked = (
        "INSERT INTO interactions VALUES (?, '2026-09-01 12:00:00+00:00', 'What is the fee?', 'None.', ?, 'm@1', NULL)"
    )
    run(database, asked, ("i-1", "[]"), ("i-2", '[{"chunk_id": "a#1", "text": "x"}]'))
    run(database, "ALTER TABLE thumbs RENAME TO feedback")
    run(database, "INSERT INTO feedback VALUES (7, 'i-1', '2026-09-02T12:00:00Z', 'up', '?')")
    run(database, "INSERT INTO reviews VALUES (4, 'i-1', '2026-09-03T12:00:00Z', 'sme-1', 1, 0, 1, 0.5)")
    rows, state = read(database, tables=None)
    assert [row.reasons for row in rows] == [()] * 4
    assert (rows[0].interaction, rows[1].interaction.contexts[0].chunk_id) == (interaction(), "a#1")
    assert (rows[2].thumb, rows[3].review) == (feedback(), review(right=False, inclusion_probability=0.5))
    places = [("interactions", 1), ("interactions", 2), ("feedback", 7), ("reviews", 4)]
    assert [(row.source, row.line) for row in rows] == [(f"warehouse/{table}", line) for table, line in places]
    assert state["tables"].keys() == {"interactions", "feedback", "reviews"}
    assert reparse(rows[0].raw, rows[0].source, rows[0].line) == rows[0]


def test_sql_columns_map_fields_to_other_names(database: Path) -> None:
    run(database, 'CREATE TABLE answers (nr INTEGER, "asked at" TEXT, q TEXT, reply TEXT, docs TEXT, llm TEXT)')
    run(database, "INSERT INTO answers VALUES (17, '2026-09-01T12:00:00Z', 'What is the fee?', 'None.', '[]', 'm@1')")
    columns = {"interaction_id": "nr", "asked_at": "asked at", "question": "q", "answer": "reply"}
    columns |= {"contexts": "docs", "model": "llm"}
    (row,), _ = read(database, tables=TablesConfig(interactions=TableConfig(table="answers", columns=columns)))
    assert row.interaction == interaction("17")


def test_sql_query_is_read_like_a_table(database: Path) -> None:
    for key in range(1, 6):
        add_thumb(database, key, DAY.format(key), "up" if key % 2 else "sideways")
    query = "SELECT *, '100%' || ':x' AS comment FROM thumbs WHERE thumb = 'up' AND given_at LIKE '2026-%12:00:00Z';"
    tables = thumbs(query=query, key="id")
    rows, state = read(database, tables=tables)
    assert lines(rows) == [1, 3, 5]
    assert rows[0].thumb.comment == "100%:x"
    assert lines(read(database, state, tables)[0]) == [1, 3, 5]  # all were given on one day


def test_sql_reading_begins_a_day_before_the_watermark(ten_days: Path) -> None:
    rows, state = read(ten_days)
    assert lines(rows) == list(range(1, 11))
    mapped = thumbs(table="thumbs", watermark="written_at", columns={"comment": "written_at"})
    assert lines(read(ten_days, state, mapped)[0]) == list(range(1, 11)), "of another configuration"
    rows, state = read(ten_days, state)
    assert lines(rows) == [9, 10]
    add_thumb(ten_days, 11, DAY.format(11))
    rows, state = read(ten_days, state)
    assert lines(rows) == [9, 10, 11]
    add_thumb(ten_days, 12, DAY.format(3))
    rows, state = read(ten_days, state)
    assert lines(rows) == [1, 2, 3, 12, *range(4, 12)], "all, once, because of the later row"
    assert lines(read(ten_days, state)[0]) == [10, 11]


def test_sql_rows_written_during_a_reading_are_read_next(ten_days: Path) -> None:
    reading = source(ten_days).read({})
    found = []
    for row in reading:
        found.append(row.line)
        if row.line == 6:
            add_thumb(ten_days, 11, DAY.format(2))  # behind what has been read; its writer need not wait
            add_thumb(ten_days, 12, DAY.format(12))  # ahead of it
    assert found[:10] == [*range(1, 11)]
    rows, state = read(ten_days, reading.outcome.state)
    assert {11, 12} <= {*found, *lines(rows)}
    assert lines(read(ten_days, state)[0]) == [12]


def test_sql_rows_without_watermark_or_key_are_read(database: Path) -> None:
    add_thumb(database, 1, DAY.format(1))
    add_thumb(database, 2, None)
    rows, state = read(database)
    assert sorted(lines(rows)) == [1, 2]
    add_thumb(database, 3, None)
    assert sorted(lines(read(database, state)[0])) == [1, 2, 3]
    run(database, "UPDATE thumbs SET thumb = NULL WHERE id = 1")
    assert len(read(database, tables=thumbs(table="thumbs", key="thumb", watermark="written_at"))[0]) == 3


@pytest.mark.parametrize("odd", ["soon", "", "0000", "31.12.2026", b"\xff", "2999-01-01T00:00:00Z"])
def test_sql_watermark_that_is_no_past_time_hides_no_row(database: Path, odd: Any) -> None:
    add_thumb(database, 1, odd)
    add_thumb(database, 2, DAY.format(1))
    add_thumb(database, 3, DAY.format(9))
    rows, state = read(database)
    assert sorted(lines(rows)) == [1, 2, 3]
    add_thumb(database, 4, DAY.format(3))
    assert 4 in lines(read(database, state)[0])


def test_sql_bad_cell_rejects_its_row_only(database: Path) -> None:
    run(
        database,
        "INSERT INTO thumbs VALUES (?, ?, ?, ?, '2026-09-02T12:00:00Z')",
        (1, "i-1", "2026-09-02T12:00:00Z", "up"),
        (2, None, "2026-09-02T12:00:00Z", "up"),
        (3, "i-1", "2026-09-02 12:00:00", "up"),
        (5, "i-1", "2026-09-02T12:00:00Z", b"\x00\xff"),
        (6, "i-1", "2026-09-02T12:00:00Z", 1),
        (7, b"i-1", "2026-09-02T12:00:00Z", "up"),
    )
    run(database, "UPDATE thumbs SET interaction_id = CAST(x'ff' AS TEXT) WHERE id = 6")
    rows, _ = read(database)
    fields = [row.reasons[0].field if row.reasons else None for row in rows]
    assert fields == [None, "interaction_id", "given_at", "line", "line", None]
    assert all(reparse(row.raw, row.source, row.line) == row for row in rows)
    assert read(database, naive_is_utc=True)[0][2].thumb == feedback()


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (None, "none of the tables interactions, feedback, reviews"),
        (thumbs(table="thumps"), "feedback: the table 'thumps': "),
        (thumbs(query="SELEKT 1", key="id"), "feedback: the query: "),
        (thumbs(query="DELETE FROM thumbs RETURNING *", key="id"), "feedback: the query: "),
        (thumbs(table="thumbs", columns={"user": "usr"}), r"no column 'usr' \(it has id, .*the field user"),
        (thumbs(table="copied"), r"no column 'given_at' \(it has id.*the field given_at"),
        (thumbs(table="thumbs", key="nr"), "'thumbs' has no column 'nr': it has id"),
        (thumbs(table="thumbs", watermark="at"), "'thumbs' has no column 'at': it has id"),
        (thumbs(table="thumbs", watermark="id"), "the watermark 'id' holds int"),
    ],
)
def test_sql_tables_not_as_configured_are_one_error(database: Path, tables: TablesConfig | None, message: str) -> None:
    run(database, "ALTER TABLE interactions RENAME TO old")
    run(database, "ALTER TABLE reviews RENAME TO copied")
    add_thumb(database, 1, DAY.format(1))
    with pytest.raises(AbstainError, match=rf"^sqlite:///{database}: .*{message}.*\Z"):
        read(database, tables=tables)
    assert lines(read(database)[0]) == [1], "and nothing is written"


def test_sql_missing_or_damaged_database_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AbstainError, match="no such database file"):
        read(tmp_path / "missing.db")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "text.db").write_text("this is no database, however long it may be" * 100)
    with pytest.raises(AbstainError, match=r"text\.db: "):
        read(tmp_path / "text.db")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("no url", "'warehouse': "),
        ("nonsense://ann:secret@host/x", r"nonsense://ann:\*\*\*@host/x: "),
        ("nonsense://host/x?password=secret", r"nonsense://host/x\?password=hidden: "),
        ("postgresql://ann:${NO_SUCH_VARIABLE}@host/x", "NO_SUCH_VARIABLE"),
    ],
)
def test_sql_bad_url_is_an_error_without_password(url: str, message: str) -> None:
    with pytest.raises(AbstainError, match=message) as refused:
        read(url)
    assert "secret" not in str(refused.value)


def test_sql_url_expands_variables(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDBACK_URL", f"sqlite:///{database}")
    assert parse_url("${FEEDBACK_URL}", "warehouse").database == str(database)
    monkeypatch.setenv("FEEDBACK_FILE", database.name)
    assert parse_url("sqlite:///${FEEDBACK_FILE}", "warehouse", database.parent).database == str(database)
    monkeypatch.setenv("FEEDBACK_PASSWORD", "p@ss/${word}:%")
    completed = source("postgresql://ann:${FEEDBACK_PASSWORD}@host/x").resolve_paths(Path(), Path())
    parsed = parse_url(completed.url, "warehouse")
    assert (parsed.password, parsed.host, parsed.drivername) == ("p@ss/${word}:%", "host", "postgresql+psycopg")
    assert "word" not in repr(completed)


START = datetime(2026, 9, 1, tzinfo=UTC)
hours = st.integers(0, 24 * 4).map(lambda part: part * 3)
steps = st.lists(
    st.tuples(st.just("add"), hours)
    | st.tuples(st.just("delete"), st.integers(1, 20))
    | st.sampled_from([("read", 0), ("fail", 0)]),
    max_size=20,
)


@pytest.mark.slow
@settings(max_examples=40)
@given(steps, st.sampled_from([0.0, 1.0, 3.0]))
def test_sql_every_row_is_given_when_a_reading_ends(todo: list[tuple[str, int]], late_by_days: float) -> None:
    with TemporaryDirectory() as name:
        path, existing, given_so_far, state = new_database(Path(name)), set(), set(), {}
        for key, (step, value) in enumerate([*todo, ("read", 0)], start=1):
            if step == "add":
                existing.add(key)
                add_thumb(path, key, (START + timedelta(hours=value)).isoformat())
            elif step == "delete":
                existing.discard(value)
                run(path, f"DELETE FROM thumbs WHERE id = {value}")
            elif step == "fail":
                next(iter(source(path, THUMBS, late_by_days=late_by_days).read(state)), None)
            else:
                rows, state = read(path, state, late_by_days=late_by_days)
                given_so_far.update(lines(rows))
                assert existing <= given_so_far
                assert len(rows) == len(set(lines(rows)))
