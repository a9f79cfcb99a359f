"""Tables of a team's database for tests, and readings of them."""

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from abstain.ingest.parsing import ParsedRow
from abstain.ingest.sources.sql import SqlSource, TableConfig, TablesConfig

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
    """Make an SQLite file with empty tables."""
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
