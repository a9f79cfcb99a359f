import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abstain.core.errors import AbstainError
from abstain.ingest.pipeline.parsing import reread
from abstain.ingest.sources import sql_database
from abstain.ingest.sources.config import TableConfig, TablesConfig
from abstain.ingest.sources.sql import SqlSource
from tests.data.builders import feedback, interaction, review
from tests.ingest.sources.databases import THUMBS, add_thumb, lines, new_database, read, run

DAY = "2026-09-{:02}T12:00:00Z"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return new_database(tmp_path)


def test_the_three_tables_are_read_without_being_named(database: Path) -> None:
    run(database, "ALTER TABLE thumbs RENAME TO feedback")
    run(
        database,
        "INSERT INTO interactions VALUES (?, '2026-09-01 12:00:00+00:00', 'What is the fee?', 'None.', ?, 'm@1', NULL)",
        ("i-1", "[]"),
        ("i-2", '[{"chunk_id": "a#1", "text": "x"}]'),
    )
    run(database, "INSERT INTO feedback VALUES (7, 'i-1', '2026-09-02T12:00:00Z', 'up', '?')")
    run(database, "INSERT INTO reviews VALUES (4, 'i-1', '2026-09-03T12:00:00Z', 'sme-1', 1, 0, 1, 0.5)")
    rows, state = read(database, tables=None)
    assert [row.reasons for row in rows] == [()] * 4
    assert rows[0].interaction == interaction()
    assert rows[1].interaction is not None and rows[1].interaction.contexts[0].chunk_id == "a#1"
    assert (rows[2].feedback, rows[3].review) == (feedback(), review(right=False, inclusion_probability=0.5))
    assert [(row.source, row.line) for row in rows] == [
        ("warehouse/interactions", 1),
        ("warehouse/interactions", 2),
        ("warehouse/feedback", 7),
        ("warehouse/reviews", 4),
    ]
    assert state["tables"].keys() == {"interactions", "feedback", "reviews"}
    assert reread(rows[0].raw, rows[0].source, rows[0].line) == rows[0]


def test_columns_have_names_of_their_own(database: Path) -> None:
    run(
        database,
        'CREATE TABLE answers (nr INTEGER PRIMARY KEY, "asked at" TEXT, q TEXT, reply TEXT, docs TEXT, llm TEXT)',
    )
    run(database, "INSERT INTO answers VALUES (17, '2026-09-01T12:00:00Z', 'What is the fee?', 'None.', '[]', 'm@1')")
    columns = {
        "interaction_id": "nr",
        "asked_at": "asked at",
        "question": "q",
        "answer": "reply",
        "contexts": "docs",
        "model": "llm",
    }
    tables = TablesConfig(interactions=TableConfig(table="answers", columns=columns))
    (row,), _ = read(database, tables=tables)
    assert row.interaction == interaction("17")


def test_a_query_is_read_like_a_table(database: Path) -> None:
    for key in range(1, 6):
        add_thumb(database, key, DAY.format(key), "up" if key % 2 else "sideways")
    query = "SELECT t.*, '100%' || ':share' AS comment FROM thumbs t WHERE thumb = 'up' AND given_at LIKE '2026-%12:00:00Z';"
    tables = TablesConfig(feedback=TableConfig(query=query, key=("id",)))
    rows, state = read(database, tables=tables)
    assert lines(rows) == [1, 3, 5]
    assert rows[0].feedback is not None and rows[0].feedback.comment == "100%:share"
    assert lines(read(database, state, tables)[0]) == [1, 3, 5]  # all were given on one day


def test_reading_goes_on_a_day_before_the_watermark(database: Path) -> None:
    for key in range(1, 11):
        add_thumb(database, key, DAY.format(key))
    rows, state = read(database)
    assert lines(rows) == list(range(1, 11))
    rows, state = read(database, state)
    assert lines(rows) == [9, 10]
    add_thumb(database, 11, DAY.format(11))
    rows, state = read(database, state)
    assert lines(rows) == [9, 10, 11]
    assert lines(read(database, state)[0]) == [10, 11]


def test_a_row_that_comes_late_but_not_too_late_is_read(database: Path) -> None:
    for key in (1, 2, 3):
        add_thumb(database, key, DAY.format(10 * key - 9))
    _, state = read(database)
    add_thumb(database, 4, "2026-09-20T15:00:00Z")
    assert lines(read(database, state)[0]) == [4, 3]


def test_a_row_that_comes_later_than_that_makes_everything_be_read_again_once(database: Path) -> None:
    for key in range(1, 11):
        add_thumb(database, key, DAY.format(key + 10))
    _, state = read(database)
    add_thumb(database, 11, DAY.format(3))
    rows, state = read(database, state)
    assert lines(rows) == [11, *range(1, 11)]
    assert lines(read(database, state)[0]) == [9, 10]


def test_a_deletion_does_not_hide_a_row_that_came_late(database: Path) -> None:
    for key in range(1, 11):
        add_thumb(database, key, DAY.format(key))
    _, state = read(database)
    run(database, "DELETE FROM thumbs WHERE id = 2")
    add_thumb(database, 11, DAY.format(3))
    assert 11 in lines(read(database, state)[0])


def test_a_row_written_while_the_others_are_read_is_not_lost(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_database, "PAGE", 2)
    for key in range(1, 11):
        add_thumb(database, key, DAY.format(key))
    reading = SqlSource("warehouse", f"sqlite:///{database}", THUMBS).read({})
    found = []
    for row in reading:
        found.append(row.line)
        if row.line == 6:
            add_thumb(database, 11, DAY.format(2))  # behind what has been read
            add_thumb(database, 12, DAY.format(12))  # ahead of it
    assert found == [*range(1, 11), 12]
    rows, state = read(database, reading.state)
    assert 11 in lines(rows)
    assert lines(read(database, state)[0]) == [12]


def test_a_page_of_long_texts_ends_early(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_database, "_PAGE_BYTES", 1000)
    for key in range(1, 11):
        add_thumb(database, key, DAY.format(key), "x" * 400)
    asked: list[Any] = []
    monkeypatch.setattr(
        sql_database.Table, "page", lambda *given, page=sql_database.Table.page: asked.append(given) or page(*given)
    )
    assert lines(read(database)[0]) == list(range(1, 11))
    assert len(asked) == 4  # three rows a page, and one
    assert sql_database._size({"a": ["bc", b"d", None, ("ef",)]}) == 2 + 1 + 8 + 2


@pytest.mark.parametrize("page", [1, 2, 3, 4, 100])
def test_equal_watermarks_may_straddle_pages(database: Path, page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_database, "PAGE", page)
    for key in (5, 3, 9, 1, 7, 2, 8):
        add_thumb(database, key, DAY.format(2 if key > 2 else 3))
    rows, state = read(database)
    assert lines(rows) == [3, 5, 7, 8, 9, 1, 2]
    assert lines(read(database, state)[0]) == [3, 5, 7, 8, 9, 1, 2]


def test_a_key_of_several_columns(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_database, "PAGE", 2)
    run(
        database,
        "CREATE TABLE verdicts (interaction_id, reviewer, reviewed_at, complete, correct, truthful, PRIMARY KEY (interaction_id, reviewer))",
    )
    wanted = [(f"i-{n}", reviewer) for n in range(3) for reviewer in ("sme-1", "sme-2", "sme-3")]
    run(database, "INSERT INTO verdicts VALUES (?, ?, '2026-09-03T12:00:00Z', 1, 1, 1)", *reversed(wanted))
    rows, _ = read(database, tables=TablesConfig(reviews=TableConfig(table="verdicts")))
    assert [(row.review.interaction_id, row.review.reviewer) for row in rows if row.review] == wanted


def test_rows_without_watermark_or_key_are_not_lost(database: Path) -> None:
    add_thumb(database, 1, DAY.format(1))
    add_thumb(database, 2, None)
    rows, state = read(database)
    assert lines(rows) == [1, 2]
    assert lines(read(database, state)[0]) == [1]
    add_thumb(database, 3, None)
    rows, state = read(database, state)
    assert lines(rows) == [1, 2, 3]
    tables = TablesConfig(feedback=TableConfig(table="thumbs", key=("thumb",), watermark="written_at"))
    run(database, "UPDATE thumbs SET thumb = NULL WHERE id = 1")
    rows, _ = read(database, tables=tables)
    assert sorted(row.raw.count(b"interaction_id") for row in rows) == [1, 1, 1]


def test_a_clock_that_is_ahead_hides_nothing(database: Path) -> None:
    add_thumb(database, 1, DAY.format(1))
    add_thumb(database, 2, "2999-01-01T00:00:00Z")
    _, state = read(database)
    assert state["tables"]["feedback"]["since"] == "2026-08-31"
    add_thumb(database, 3, DAY.format(2))
    assert lines(read(database, state)[0]) == [1, 3, 2]


@pytest.mark.parametrize("odd", ["soon", "", "0000", "31.12.2026", b"\xff"])
def test_a_watermark_that_is_no_time_is_only_an_odd_row(database: Path, odd: Any) -> None:
    add_thumb(database, 1, odd)
    add_thumb(database, 2, DAY.format(1))
    add_thumb(database, 3, DAY.format(9))
    rows, state = read(database)
    assert sorted(lines(rows)) == [1, 2, 3]
    add_thumb(database, 4, DAY.format(3))
    assert 4 in lines(read(database, state)[0])


def test_a_watermark_of_numbers_is_refused(database: Path) -> None:
    add_thumb(database, 1, DAY.format(1))
    tables = TablesConfig(feedback=TableConfig(table="thumbs", watermark="id"))
    with pytest.raises(AbstainError, match="the watermark 'id' of thumbs holds int: name a column of timestamps"):
        read(database, tables=tables)


def test_an_empty_table_is_read_from_its_beginning_next_time(database: Path) -> None:
    rows, state = read(database)
    assert rows == []
    add_thumb(database, 1, "2020-01-01T00:00:00Z")
    assert lines(read(database, state)[0]) == [1]


def test_a_source_that_is_configured_otherwise_is_read_from_its_beginning(database: Path) -> None:
    for key in range(1, 6):
        add_thumb(database, key, DAY.format(key))
    _, state = read(database)
    mapped = TablesConfig(
        feedback=TableConfig(table="thumbs", watermark="written_at", columns={"comment": "written_at"})
    )
    assert lines(read(database, state, mapped)[0]) == [1, 2, 3, 4, 5]


def test_what_stands_in_a_cell_costs_a_row_at_most(database: Path) -> None:
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
    assert [row.reasons[0].partition(" (")[0] if row.reasons else None for row in rows] == [
        None,
        "interaction_id: this field is missing",
        "given_at: value error, timestamp without a time zone: write it in UTC, as in 2026-01-31T12:00:00Z",
        "line: not valid UTF-8",
        "line: not valid UTF-8",
        None,
    ]
    assert all(reread(row.raw, row.source, row.line) == row for row in rows)
    assert read(database, naive_is_utc=True)[0][2].feedback == feedback()


def test_twins_at_the_end_of_a_page_are_an_error_and_not_a_loss(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_database, "PAGE", 3)
    for key in range(1, 9):
        add_thumb(database, key, DAY.format(1))
    tables = TablesConfig(feedback=TableConfig(table="thumbs", key=("thumb",), watermark="written_at"))
    with pytest.raises(AbstainError, match="8 rows of thumbs have the key up: say which columns tell its rows apart"):
        read(database, tables=tables)


def table(**config: Any) -> TablesConfig:
    return TablesConfig(feedback=TableConfig(**config))


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (None, None),
        (table(table="thumps"), "feedback: the table 'thumps': no such table: thumps"),
        (table(query="SELEKT 1", key=("id",)), 'feedback: the query: near "1": syntax error'),
        (
            table(table="thumbs", columns={"user": "usr"}),
            r"has no column 'usr' \(it has id, interaction_id, .*the field user",
        ),
        (
            table(table="reviews"),
            r"has no column 'given_at' \(it has .*: under `columns`, name the one that holds the field giv",
        ),
        (table(table="thumbs", key=("nr",)), "the table 'thumbs' has no column 'nr': it has id"),
        (table(table="thumbs", watermark="at"), "the table 'thumbs' has no column 'at': it has id"),
        (table(table="copied"), r"the table 'copied' has no primary key: say which columns tell its rows apart"),
    ],
)
def test_tables_that_are_not_as_configured(database: Path, tables: TablesConfig | None, message: str | None) -> None:
    run(database, "CREATE TABLE copied AS SELECT * FROM thumbs")
    if message is None:
        for name in ("interactions", "reviews"):
            run(database, f"DROP TABLE {name}")
        message = "none of the tables interactions, feedback, reviews is there: name yours under `tables`"
    with pytest.raises(AbstainError, match=message) as refused:
        read(database, tables=tables)
    assert str(refused.value).startswith(f"sqlite:///{database}: ")
    assert "\n" not in str(refused.value)


def test_a_database_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(AbstainError, match="no such database file"):
        read(tmp_path / "missing.db")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "text.db").write_text("this is no database, however long it may be" * 100)
    with pytest.raises(AbstainError, match=r"text\.db: .*file is not a database"):
        read(tmp_path / "text.db")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("no url", "source 'warehouse': its url is none that SQLAlchemy reads"),
        ("nonsense://ann:secret@host/x", r"nonsense://ann:\*\*\*@host/x: .*install the package"),
        ("nonsense://host/x?password=secret", r"nonsense://host/x\?password=hidden: .*install the package"),
        ("mssql+pymssql://ann:secret@host/x", r"mssql\+pymssql://ann:\*\*\*@host/x: No module named 'pymssql'"),
        (
            "postgresql://ann:${NO_SUCH_VARIABLE}@host/x",
            "source 'warehouse': the environment variable NO_SUCH_VARIABLE in its url",
        ),
    ],
)
def test_a_url_that_is_none_is_told_without_its_password(url: str, message: str) -> None:
    with pytest.raises(AbstainError, match=message) as refused:
        read(url)
    assert "secret" not in str(refused.value)


def test_a_url_may_hold_variables(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_thumb(database, 1, DAY.format(1))
    monkeypatch.setenv("FEEDBACK_URL", f"sqlite:///{database}")
    assert len(read("${FEEDBACK_URL}")[0]) == 1
    monkeypatch.setenv("FEEDBACK_FILE", database.name)
    assert len(read("sqlite:///${FEEDBACK_FILE}", home=database.parent)[0]) == 1
    monkeypatch.setenv("FEEDBACK_PASSWORD", "p@ss/word:%")
    parsed = sql_database.parse_url("postgresql://ann:${FEEDBACK_PASSWORD}@host/x", "warehouse", Path())
    assert (parsed.password, parsed.host, parsed.drivername) == ("p@ss/word:%", "host", "postgresql+psycopg")


def test_nothing_is_written_through_a_source(database: Path) -> None:
    tables = table(query="DELETE FROM thumbs RETURNING *", key=("id",))
    add_thumb(database, 1, DAY.format(1))
    with pytest.raises(AbstainError):
        read(database, tables=tables)
    with pytest.raises(AbstainError, match="attempt to write a readonly database"):
        SqlSource("warehouse", f"sqlite:///{database}", THUMBS)
        link = sql_database.Database(sql_database.parse_url(f"sqlite:///{database}", "warehouse", Path()))
        link.ask(lambda connection: connection.exec_driver_sql("DELETE FROM thumbs"))
    assert len(read(database)[0]) == 1


START = datetime(2026, 9, 1, tzinfo=UTC)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 24 * 12).map(lambda hours: hours // 3 * 3)),
        st.tuples(st.just("delete"), st.integers(0, 30)),
        st.just(("read", 0)),
        st.just(("fail", 0)),
    ),
    max_size=20,
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(steps, st.integers(1, 4), st.sampled_from([0.0, 1.0, 3.0]))
def test_whatever_is_there_when_a_reading_ends_has_been_given_by_then(
    todo: list[tuple[str, int]], page: int, late_by_days: float
) -> None:
    """Rows arrive in any order of their times, old ones are deleted, readings fail: each reading makes it good."""
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql_database, "PAGE", page)
        path = new_database(Path(name))
        late_by = timedelta(days=late_by_days)
        there: set[int] = set()
        given_by_now: set[int] = set()
        state: dict[str, Any] = {}
        key = 0
        for step, value in [*todo, ("read", 0)]:
            if step == "add":
                key += 1
                there.add(key)
                add_thumb(path, key, (START + timedelta(hours=value)).isoformat())
            elif step == "delete" and value in there:
                there.remove(value)
                run(path, f"DELETE FROM thumbs WHERE id = {value}")
            elif step == "fail":
                next(iter(SqlSource("warehouse", f"sqlite:///{path}", THUMBS, late_by=late_by).read(state)), None)
            elif step == "read":
                rows, state = read(path, state, late_by=late_by)
                given_by_now.update(lines(rows))
                assert there <= given_by_now
                assert len(rows) == len(set(lines(rows)))


def test_a_reading_that_fails_leaves_no_state(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_database, "PAGE", 2)
    for key in range(1, 6):
        add_thumb(database, key, DAY.format(key))
    reading = SqlSource("warehouse", f"sqlite:///{database}", THUMBS).read({})
    rows = iter(reading)
    next(rows)
    with closing(sqlite3.connect(database)) as link:
        link.execute("DROP TABLE thumbs")
    with pytest.raises(AbstainError, match="no such table: thumbs"):
        list(rows)
    with pytest.raises(RuntimeError):
        _ = reading.state
