"""The same source against a real server: native types, transactions, connections that break."""

import tempfile
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from abstain.core.errors import AbstainError
from abstain.ingest.sources import sql_database
from abstain.ingest.sources.config import SqlConfig, TableConfig, TablesConfig, load_sources
from abstain.ingest.sources.sql import SqlSource
from tests.data.builders import feedback, interaction, review
from tests.ingest.sources.databases import lines, read
from tests.postgres import database, start_postgres

pytestmark = pytest.mark.slow

MAKE = """
CREATE TABLE interactions (
  interaction_id bigint PRIMARY KEY, asked_at timestamptz, question text, answer text, contexts jsonb, model text,
  product varchar(20));
CREATE TABLE thumbs (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, interaction_id bigint, given_at timestamptz, thumb text,
  written_at timestamptz DEFAULT clock_timestamp());
CREATE SCHEMA sme;
CREATE TABLE sme.reviews (
  interaction_id bigint, reviewed_at timestamp, reviewer uuid, complete boolean, correct boolean, truthful boolean,
  inclusion_probability numeric, PRIMARY KEY (interaction_id, reviewer));
"""
THUMBS = TablesConfig(feedback=TableConfig(table="thumbs", watermark="written_at"))
CUT = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
  WHERE pid <> pg_backend_pid() AND datname = current_database()"""
ADD = "INSERT INTO thumbs (interaction_id, given_at, thumb, written_at) VALUES (1, '2026-09-02T12:00:00Z', 'up', %s)"


@pytest.fixture
def url(postgres: str) -> Iterator[str]:
    with database(postgres) as url:
        run(url, MAKE)
        yield url


def run(url: str, *statements: str, **options: Any) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as link:
        for statement in statements:
            link.execute(statement.encode())


def add_many(url: str, count: int) -> None:
    run(
        url,
        "INSERT INTO thumbs (interaction_id, given_at, thumb, written_at) SELECT n, '2026-09-02T12:00:00Z', 'up', "
        f"'2026-09-02T12:00:00Z'::timestamptz + n / 3 * interval '1 second' FROM generate_series(1, {count}) n",
    )


def test_native_types_and_schemas(url: str) -> None:
    run(
        url,
        "INSERT INTO interactions VALUES (1, '2026-09-01 14:00+02', 'What is the fee?', 'None.', '[]', 'm@1', NULL)",
        """INSERT INTO interactions VALUES (2, '2026-09-01 12:00+00', 'q', 'a', '[{"chunk_id": "a#1", "text": "x"}]', 'm', 'p')""",
        "INSERT INTO thumbs (interaction_id, given_at, thumb) VALUES (1, '2026-09-02T12:00:00Z', 'up')",
        "INSERT INTO sme.reviews VALUES (1, '2026-09-03 12:00', '00000000-0000-0000-0000-000000000001', true, false, true, 0.25)",
    )
    tables = TablesConfig(
        interactions=TableConfig(table="interactions"),
        feedback=TableConfig(table="thumbs"),
        reviews=TableConfig(table="sme.reviews"),
    )
    rows, state = read(url, tables=tables, naive_is_utc=True)
    assert [row.reasons for row in rows] == [()] * 4
    assert rows[0].interaction == interaction("1")
    assert rows[1].interaction is not None
    assert (rows[1].interaction.product, rows[1].interaction.contexts[0].text) == ("p", "x")
    assert rows[2].feedback == feedback("1")
    reviewer = "00000000-0000-0000-0000-000000000001"
    assert rows[3].review == review("1", right=False, reviewer=reviewer, inclusion_probability=0.25)
    assert state["tables"]["reviews"]["since"] == "2026-09-02T12:00:00"
    assert len(read(url, state, tables, naive_is_utc=True)[0]) == 4
    refused = read(url, tables=TablesConfig(reviews=TableConfig(table="sme.reviews")))[0]
    assert refused[0].reasons[0].startswith("reviewed_at: value error, timestamp without a time zone")


def test_a_query_with_casts_and_joins(url: str) -> None:
    run(
        url,
        "INSERT INTO interactions VALUES (1, '2026-09-01 12:00+00', 'What is the fee?', 'None.', '[]', 'm@1', '50%')",
    )
    query = "SELECT interaction_id::text, asked_at, question, answer, contexts, model FROM interactions WHERE product LIKE '%\\%' -- :x"
    tables = TablesConfig(interactions=TableConfig(query=f"{query}\n", key=("interaction_id",)))
    rows, _ = read(url, tables=tables)
    assert [row.interaction for row in rows] == [interaction("1")]


@pytest.mark.parametrize("odd", ["infinity", "-infinity", "0044-03-15 12:00:00+00 BC", "12026-01-01 00:00:00+00"])
@pytest.mark.parametrize("page", [2, 1000])
def test_a_time_that_python_cannot_hold_costs_its_row(
    url: str, odd: str, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_database, "PAGE", page)
    add_many(url, 6)
    run(url, f"UPDATE thumbs SET given_at = '{odd}', written_at = '{odd}' WHERE id IN (2, 3, 4)")
    rows, state = read(url, tables=THUMBS)
    good = {row.line for row in rows if row.feedback}
    assert (sorted(lines(rows)), good) == ([1, 2, 3, 4, 5, 6], {1, 5, 6})
    for row in rows:
        if row.line not in good:
            assert row.reasons[0].startswith("given_at: "), row.reasons
            assert odd.encode() in row.raw
    add_many(url, 2)
    again, state = read(url, state, THUMBS)
    assert {7, 8} <= set(lines(again))
    assert {row.raw for row in again if row.reasons} <= {row.raw for row in rows}
    assert state["tables"]["feedback"]["since"].startswith("2026-09-01T")
    run(url, f"UPDATE thumbs SET written_at = '{odd}'")
    assert sorted(lines(read(url, state, THUMBS)[0])) == list(range(1, 9))


def test_other_types_of_time_that_python_cannot_hold(url: str) -> None:
    run(
        url,
        "CREATE TABLE odd (id bigint PRIMARY KEY, interaction_id text, given_at timestamp, thumb time, comment date)",
        "INSERT INTO odd VALUES (1, 'i-1', 'infinity', '24:00', '-infinity'), (2, 'i-2', '0044-03-15 BC', '01:00', '12026-01-01')",
    )
    tables = TablesConfig(feedback=TableConfig(table="odd"))
    first, second = sorted(read(url, tables=tables, naive_is_utc=True)[0], key=lambda row: row.line)
    assert first.raw == (
        b'{"interaction_id": "i-1", "given_at": "infinity", "thumb": "24:00:00", "comment": "-infinity"}'
    )
    assert b'"given_at": "0044-03-15 00:00:00 BC"' in second.raw
    assert first.reasons and second.reasons


def test_the_warehouse_of_the_documentation(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[3] / "docs" / "sources.md").read_text()
    example = next(block for block in text.split("```yaml\n")[1:] if "name: warehouse" in block).split("```")[0]
    (tmp_path / "sources.yaml").write_text(example)
    (config,) = load_sources(tmp_path / "sources.yaml")
    assert isinstance(config, SqlConfig)
    run(
        url,
        "CREATE SCHEMA app",
        "CREATE TABLE app.answers (id text PRIMARY KEY, asked_at timestamptz, prompt text, reply text, retrieved jsonb, "
        "model text, written_at timestamptz)",
        "CREATE TABLE app.thumbs (id bigint, answer_id text, at timestamptz, thumb text, employee text, remark text, spam boolean)",
        "INSERT INTO app.answers VALUES ('i-1', '2026-09-01 12:00+00', 'What is the fee?', 'None.', '[]', 'm@1', now())",
        "INSERT INTO app.thumbs VALUES (1, 'i-1', '2026-09-02 12:00+00', 'up', 'u-1', 'fine', false), "
        "(2, 'i-1', '2026-09-02 12:00+00', 'down', 'u-2', 'spam', true)",
    )
    rows, _ = read(url, tables=config.tables)
    assert [part for row in rows for part in row.contents()] == [interaction(), feedback(user="u-1", comment="fine")]


def test_a_row_that_is_committed_after_later_ones_were_read(url: str) -> None:
    import psycopg

    with psycopg.connect(url) as slow, psycopg.connect(url, autocommit=True) as quick:
        slow.execute(ADD, ["2026-09-01T12:00:00Z"])  # number 1, and nobody sees it yet
        for day in ("2026-09-02", "2026-09-09", "2026-09-10"):
            quick.execute(ADD, [f"{day}T12:00:00Z"])
        rows, state = read(url, tables=THUMBS)
        assert lines(rows) == [2, 3, 4]
        slow.commit()
    rows, state = read(url, state, THUMBS)
    assert lines(rows) == [1, 2, 3, 4]
    assert lines(read(url, state, THUMBS)[0]) == [3, 4]


def test_rows_written_by_others_while_it_is_read(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers with clocks of their own, and transactions of any length, against repeated readings."""
    import random

    import psycopg

    monkeypatch.setattr(sql_database, "PAGE", 7)
    ended = threading.Event()

    def write(seed: int) -> None:
        chance = random.Random(seed)
        with psycopg.connect(url) as link:
            for _ in range(60):
                late = timedelta(seconds=chance.choice([0, 0, 0, 1, 40]))
                link.execute(
                    b"INSERT INTO thumbs (interaction_id, given_at, thumb, written_at) "
                    b"VALUES (1, '2026-09-02T12:00:00Z', 'up', clock_timestamp() - %s)",
                    [late],
                )
                if chance.random() < 0.3:
                    link.commit()

    def write_all() -> None:
        writers = [threading.Thread(target=write, args=(seed,)) for seed in range(3)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        ended.set()

    everything = threading.Thread(target=write_all)
    everything.start()
    state: dict[str, Any] = {}
    given: set[int] = set()
    readings = 0
    while not ended.is_set() or readings < 3:
        rows, state = read(url, state, THUMBS, late_by=timedelta(milliseconds=20))
        given.update(lines(rows))
        readings += 1
    everything.join()
    rows, state = read(url, state, THUMBS, late_by=timedelta(milliseconds=20))
    given.update(lines(rows))
    assert given == set(range(1, 181))


def test_a_connection_that_is_cut_again_and_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_database, "PAGE", 1000)
    monkeypatch.setattr(sql_database, "_AT_ONCE", 100)
    monkeypatch.setattr(sql_database, "WAITS", (0.01,) * 3)
    add_many(url, 3000)
    seen, cut = 0, [150, 160, 450, 1500, 2500, 2999]
    measure = sql_database._page

    def cut_now_and_then(link: Any, **arguments: Any) -> Any:
        def execute(statement: Any) -> Iterator[Any]:
            nonlocal seen
            for row in original(statement):
                seen += 1
                if cut and seen >= cut[0]:  # with rows of this statement still on the server
                    cut.pop(0)
                    run(url, CUT)
                yield row

        original, link = link.execution_options(yield_per=100).execute, Executing(execute)
        return measure(link, **arguments)

    monkeypatch.setattr(sql_database, "_page", cut_now_and_then)
    rows, state = read(url, tables=THUMBS)
    assert cut == []
    assert lines(rows) == list(range(1, 3001))
    assert state["tables"]["feedback"]["count"] == 0


class Executing:
    """As much of a connection as reading a page needs."""

    def __init__(self, execute: Any) -> None:
        self.execute = execute

    def execution_options(self, **_: Any) -> "Executing":
        return self


def test_a_server_that_is_stopped_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_database, "PAGE", 100)
    monkeypatch.setattr(sql_database, "WAITS", (0.01, 0.01))
    with tempfile.TemporaryDirectory(prefix="abstain-postgres-") as name:
        Path(name).chmod(0o755)
        with start_postgres(Path(name) / "data") as server:
            run(server, MAKE)
            add_many(server, 300)
            reading = SqlSource("warehouse", server, THUMBS).read({})
            rows = iter(reading)
            first = [next(rows) for _ in range(10)]
            stop(Path(name) / "data")
            with pytest.raises(AbstainError, match="the connection broke, and 2 attempts to go on failed: ") as refused:
                list(rows)
        assert len(first) == 10
        assert "\n" not in str(refused.value)
        with pytest.raises(RuntimeError):
            _ = reading.state
        with pytest.raises(AbstainError, match="connection failed|No such file") as refused:
            SqlSource("warehouse", server, THUMBS).read({})
        assert "\n" not in str(refused.value)


def stop(data: Path) -> None:
    """End the server at once, as a machine that is switched off would."""
    import os
    import signal

    os.kill(int((data / "postmaster.pid").read_text().split("\n")[0]), signal.SIGQUIT)
    for _ in range(100):
        if not (data / "postmaster.pid").exists():
            return
        threading.Event().wait(0.05)
    raise TimeoutError("the server does not end")


def test_a_password_is_in_no_message(postgres: str) -> None:
    import psycopg

    secret = "o'tool%40secret"
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute(b"DROP ROLE IF EXISTS reader")
        admin.execute(b"CREATE ROLE reader LOGIN")
    with database(postgres) as url:
        run(url, MAKE)
        given = url.replace("postgres:@", f"reader:{secret}@")
        with pytest.raises(AbstainError, match="permission denied for table thumbs") as refused:
            read(given, tables=THUMBS)
        assert "reader:***@" in str(refused.value)
        assert "secret" not in str(refused.value)
        with pytest.raises(AbstainError, match='role "nobody" does not exist') as refused:
            read(url.replace("postgres:@", f"nobody:{secret}@"), tables=THUMBS)
        assert "secret" not in str(refused.value)
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute(b"DROP ROLE reader")
