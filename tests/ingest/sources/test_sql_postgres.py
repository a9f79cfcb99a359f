"""The same source against a real server: native types, transactions, connections that break."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from sqlalchemy.engine import make_url
from tenacity import wait_none

from abstain.core.errors import AbstainError
from abstain.ingest.sources import sql_database
from abstain.ingest.sources.sql import TableConfig, TablesConfig
from tests.factories import feedback, interaction, review
from tests.ingest.sources.test_sql import lines, read, source
from tests.postgres import database

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
CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()"
ADD = "INSERT INTO thumbs (interaction_id, given_at, thumb, written_at) VALUES (1, '2026-09-02T12:00:00Z', 'up', "
MANY = (
    "INSERT INTO thumbs (interaction_id, given_at, thumb, written_at) SELECT n, '2026-09-02T12:00:00Z', 'up', "
    "'2026-09-02T12:00:00Z'::timestamptz + n / 3 * interval '1 second' FROM generate_series(1, 3000) n"
)


@pytest.fixture
def url(postgres: str) -> Iterator[str]:
    with database(postgres) as url:
        run(url, MAKE)
        yield url


def run(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def test_postgres_native_types_are_read(url: str) -> None:
    reviewer = "00000000-0000-0000-0000-000000000001"
    run(
        url,
        "INSERT INTO interactions VALUES (1, '2026-09-01 14:00+02', 'What is the fee?', 'None.', '[]', 'm@1', NULL)",
        """INSERT INTO interactions VALUES (2, '2026-09-01 12:00+00', 'q', 'a', '[{"chunk_id": "a#1", "text": "x"}]', 'm', 'p')""",
        f"{ADD} DEFAULT)",
        f"INSERT INTO sme.reviews VALUES (1, '2026-09-03 12:00', '{reviewer}', true, false, true, 0.25)",
    )
    names = {"interactions": "interactions", "feedback": "thumbs", "reviews": "sme.reviews"}
    tables = TablesConfig(**{name: TableConfig(table=table) for name, table in names.items()})
    rows, state = read(url, tables=tables, naive_is_utc=True)
    assert [row.reasons for row in rows] == [()] * 4
    first, second = (row.interaction for row in rows[:2])
    assert (first, second.product, second.contexts[0].text) == (interaction("1"), "p", "x")
    assert rows[2].thumb == feedback("1")
    assert rows[3].review == review("1", right=False, reviewer=reviewer, inclusion_probability=0.25)
    assert state["tables"]["reviews"]["since"] == "2026-09-02T12:00:00"
    assert len(read(url, state, tables, naive_is_utc=True)[0]) == 4
    refused = read(url, tables=TablesConfig(reviews=TableConfig(table="sme.reviews")))[0]
    assert refused[0].reasons[0].field == "reviewed_at"


def test_postgres_query_may_hold_casts_but_not_write(url: str) -> None:
    asked = "(1, '2026-09-01 12:00+00', 'What is the fee?', 'None.', '[]', 'm@1', '50%')"
    run(url, f"INSERT INTO interactions VALUES {asked}", f"{ADD} now())")
    query = "SELECT interaction_id::text, asked_at, question, answer, contexts, model FROM interactions WHERE product LIKE '%\\%' -- :x"
    rows, _ = read(url, tables=TablesConfig(interactions=TableConfig(query=f"{query}\n")))
    assert [row.interaction for row in rows] == [interaction("1")]
    writing = TablesConfig(feedback=TableConfig(query="SELECT *, nextval('thumbs_id_seq') FROM thumbs"))
    with pytest.raises(AbstainError, match="read-only transaction"):
        read(url, tables=writing)
    run(url, "UPDATE thumbs SET given_at = '0044-03-15 12:00:00+00 BC'")  # which Python cannot hold
    with pytest.raises(AbstainError, match=r"^.*feedback: the table 'thumbs': .*: correct this value.*\Z"):
        read(url)


def test_postgres_concurrent_writers_lose_no_row(url: str) -> None:
    """Writers with clocks of their own, and transactions of any length, against repeated readings."""

    def write(seed: int) -> None:
        chance = random.Random(seed)
        with psycopg.connect(url) as connection:
            for _ in range(60):
                late = chance.choice([0, 0, 0, 1, 40])
                connection.execute(f"{ADD} clock_timestamp() - interval '{late} seconds')".encode())
                if chance.random() < 0.3:
                    connection.commit()

    state, given, is_last = {}, set(), False
    with ThreadPoolExecutor(3) as pool:
        writers = [pool.submit(write, seed) for seed in range(3)]
        while not is_last:
            is_last = all(writer.done() for writer in writers)
            rows, state = read(url, state, late_by_days=0.02 / 86400)
            given.update(lines(rows))
    assert given == set(range(1, 181))


def test_postgres_broken_connections_lose_no_row(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_database, "CHUNK_ROWS", 100)
    monkeypatch.setattr(sql_database, "RETRY_WAIT", wait_none())
    run(url, MANY)
    reading = source(url).read({})
    found = []
    for row in reading:
        found.append(row.line)
        if len(found) in (150, 160, 1500, 2990):  # with rows of this statement still on the server
            run(url, CUT)
    assert sorted(set(found)) == list(range(1, 3001))
    assert len(found) < 3100
    assert reading.outcome.state["tables"]["feedback"]["count"] == 0


def test_postgres_lost_database_is_an_error(postgres: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_database, "CHUNK_ROWS", 100)
    monkeypatch.setattr(sql_database, "RETRY_WAIT", wait_none())
    run(url, MANY)
    reading = source(url).read({})
    rows = iter(reading)
    next(rows)
    name = make_url(url).database
    run(postgres, f"ALTER DATABASE {name} ALLOW_CONNECTIONS false", CUT.replace("current_database()", f"'{name}'"))
    with pytest.raises(AbstainError, match=r"^.*the connection broke, and 4 attempts to go on failed: .*\Z"):
        list(rows)
    with pytest.raises(RuntimeError):
        _ = reading.outcome.state
    with pytest.raises(AbstainError, match=r"^.*not currently accepting connections.*\Z"):
        source(url).read({})


def test_postgres_errors_hide_the_password(postgres: str) -> None:
    secret = "o'tool%40secret"
    run(postgres, "DROP ROLE IF EXISTS reader", "CREATE ROLE reader LOGIN")
    with database(postgres) as url:
        run(url, MAKE)
        for role, message in (("reader", "permission denied for table thumbs"), ("nobody", 'role "nobody" does not')):
            with pytest.raises(AbstainError, match=message) as refused:
                read(url.replace("postgres:@", f"{role}:{secret}@"))
            assert f"{role}:***@" in str(refused.value)
            assert "secret" not in str(refused.value)
    run(postgres, "DROP ROLE reader")
