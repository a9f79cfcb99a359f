"""Tables of a team's database for tests, and readings of them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

from abstain.ingest.pipeline.parsing import InputRow
from abstain.ingest.sources.config import TableConfig, TablesConfig
from abstain.ingest.sources.sql import SqlSource

THUMBS = TablesConfig(feedback=TableConfig(table="thumbs", key=("id",), watermark="written_at"))

MAKE = """
CREATE TABLE thumbs (id INTEGER PRIMARY KEY AUTOINCREMENT, interaction_id TEXT, given_at TEXT, thumb TEXT, written_at TEXT);
CREATE TABLE interactions (
  interaction_id TEXT PRIMARY KEY, asked_at TEXT, question TEXT, answer TEXT, contexts TEXT, model TEXT, product TEXT);
CREATE TABLE reviews (
  id INTEGER PRIMARY KEY, interaction_id TEXT, reviewed_at TEXT, reviewer TEXT, complete BOOLEAN, correct BOOLEAN,
  truthful BOOLEAN, inclusion_probability REAL);
"""


def new_database(folder: Path) -> Path:
    """An SQLite file with empty tables."""
    path = folder / "feedback.db"
    with closing(sqlite3.connect(path)) as link:
        link.executescript(MAKE)
    return path


def run(path: Path, statement: str, *rows: tuple[Any, ...]) -> None:
    with closing(sqlite3.connect(path)) as link:
        link.executemany(statement, rows or [()])
        link.commit()


def add_thumb(path: Path, key: int, written_at: str | None, thumb: str = "up") -> None:
    values = (key, f"i-{key}", "2026-09-02T12:00:00Z", thumb, written_at)
    run(path, "INSERT INTO thumbs VALUES (?, ?, ?, ?, ?)", values)


def read(
    path: Path | str, state: Mapping[str, Any] | None = None, tables: TablesConfig | None = THUMBS, **options: Any
) -> tuple[list[InputRow], dict[str, Any]]:
    """The rows of one reading, and its state after a journey through JSON."""
    url = f"sqlite:///{path}" if isinstance(path, Path) else path
    options = {"late_by": timedelta(days=1), **options}
    reading = SqlSource("warehouse", url, tables, **options).read(state or {})
    rows = list(reading)
    return rows, json.loads(json.dumps(reading.state))


def lines(rows: list[InputRow]) -> list[int]:
    return [row.line for row in rows]
