"""A database: tables of interactions, thumbs and reviews, read on from where the last reading ended.

A watermark alone loses rows: clocks differ, and a transaction that began early may be committed late. So

* each reading begins `late_by` before the highest watermark that the one before saw;
* and it counts the rows below that. Where they are not as many as they were then, some came later than `late_by` (or
  were deleted), and everything is read again: what is known by then is a duplicate, and no harm.

The count is taken before the rows are read, so whatever it counts has been given once the reading ends. A connection
that breaks is made anew, and reading goes on after the last row.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, inspect, literal_column, select
from sqlalchemy.engine import URL

from abstain.ingest.pipeline.parsing import InputRow, parse_object
from abstain.ingest.sources import Outcome, Reading
from abstain.ingest.sources.cells import object_of
from abstain.ingest.sources.config import CONTRACTS, TableConfig, TablesConfig
from abstain.ingest.sources.sql_database import Database, parse_url
from abstain.ingest.sources.sql_table import Below, Table, bound_of, origin_of, same_type, start_of

_TIMES = {"interactions": "asked_at", "feedback": "given_at", "reviews": "reviewed_at"}


class SqlSource:
    """Tables of a database. `tables` None stands for those called interactions, feedback and reviews."""

    def __init__(
        self,
        name: str,
        url: str,
        tables: TablesConfig | None = None,
        *,
        home: Path = Path(),
        late_by: timedelta = timedelta(days=1),
        naive_is_utc: bool = False,
    ) -> None:
        self.name = name
        self._url = parse_url(url, name, home)
        self._tables = tables
        self._late_by = late_by
        self._naive_is_utc = naive_is_utc

    def read(self, state: Mapping[str, Any]) -> Reading:
        """What the reading that gave `state` cannot have seen.

        Raises `AbstainError` for a database that cannot be reached, and for tables that are not as configured; and,
        while it is walked, for a connection that breaks for good.
        """
        database = Database(self._url)
        tables = {name: self._resolve(database, name, config) for name, config in self._configured(database)}
        return Reading(self._steps(database, tables, state.get("tables", {})))

    def _steps(
        self, database: Database, tables: Mapping[str, Table], known: Mapping[str, Mapping[str, Any]]
    ) -> Generator[InputRow, None, Outcome]:
        state: dict[str, dict[str, Any]] = {}
        for name, table in tables.items():
            since, left = self._plan(database, table, known.get(name, {}))
            for number, row in enumerate(database.rows(table, since), start=1):
                cells = {field: value for (field, _), value in zip(table.fields, row, strict=False)}
                key = row[-1] if len(table.key) == 1 else None
                line = key if isinstance(key, int) else number
                yield parse_object(object_of(cells, naive_is_utc=self._naive_is_utc), f"{self.name}/{name}", line)
            state[name] = left
        return Outcome({"tables": state})

    def _plan(self, database: Database, table: Table, known: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Where to begin (None: with everything), and what to remember once that is read."""
        identity = _identity(self._url, table)
        samples = database.ask(lambda link: list(link.execute(table.probe())))
        if not samples:
            return None, {"of": identity}
        # A text among times is one that Python cannot hold.
        sample = next((one for kind in (date, str) for one in samples if isinstance(one[0], kind)), None)
        if sample is None:
            held = type(samples[0][0]).__name__
            raise database.refuse(
                f"the watermark '{table.watermark}' of {table.origin} holds {held}: name a column of timestamps"
            )
        bound = bound_of(sample[0])
        highest = database.first(table.highest_before(bound))
        start = start_of(highest[0], self._late_by) if highest else None
        if start is None:
            return None, {"of": identity}
        before = same_type(known["since"], sample[0]) if known.get("of") == identity and "since" in known else None
        numbers = isinstance(sample[1], int)
        counted = database.first(table.below(start, before if before is not None else start, numbers=numbers))
        assert counted is not None
        now, then = Below(*counted[:2]), Below(*counted[2:])
        left = {"of": identity, "since": _written(start), "count": now.count, "highest": now.highest}
        same = before is not None and then == Below(known["count"], known["highest"])
        return (before if same else None), left

    def _configured(self, database: Database) -> list[tuple[str, TableConfig]]:
        if self._tables is not None:
            configs = [(name, getattr(self._tables, name)) for name in CONTRACTS]
            return [(name, config) for name, config in configs if config is not None]
        there = database.ask(lambda link: {*inspect(link).get_table_names(), *inspect(link).get_view_names()})
        found = [name for name in CONTRACTS if name in there]
        if not found:
            names = ", ".join(CONTRACTS)
            raise database.refuse(f"none of the tables {names} is there: name yours under `tables` in sources.yaml")
        return [(name, TableConfig(table=name)) for name in found]

    def _resolve(self, database: Database, name: str, config: TableConfig) -> Table:
        """The table with its columns. Raises `AbstainError` where a required one is missing."""
        origin, is_query = config.query or config.table or "", config.query is not None
        shown = f"{name}: " + ("the query" if is_query else f"the table '{origin}'")
        statement: Any = select(literal_column("*")).select_from(origin_of(origin, is_query)).limit(0)
        columns = database.ask(lambda link: list(link.execute(statement).keys()), shown)
        contract = CONTRACTS[name]
        fields = [(field, config.columns.get(field, field)) for field in contract.model_fields]
        for field, column in fields:
            if column not in columns and (field in config.columns or contract.model_fields[field].is_required()):
                raise database.refuse(
                    f"{shown} has no column '{column}' (it has {', '.join(columns)}): "
                    f"under `columns`, name the one that holds the field {field}"
                )
        watermark = config.watermark or dict(fields)[_TIMES[name]]
        key = config.key or (() if is_query else database.ask(lambda link: _primary_key(link, origin), shown))
        if not key and name == "interactions":
            key = (dict(fields)["interaction_id"],)
        if not key:
            raise database.refuse(f"{shown} has no primary key: say which columns tell its rows apart, as in key: [id]")
        for column in (watermark, *key):
            if column not in columns:
                raise database.refuse(f"{shown} has no column '{column}': it has {', '.join(columns)}")
        present = tuple((field, column) for field, column in fields if column in columns)
        return Table(origin, is_query, present, watermark, key)


def _primary_key(link: Connection, table: str) -> tuple[str, ...]:
    schema, _, name = table.rpartition(".")
    return tuple(inspect(link).get_pk_constraint(name, schema=schema or None)["constrained_columns"])


def _identity(url: URL, table: Table) -> str:
    """What a remembered watermark holds for: it means nothing for another table, or another reading of this one."""
    place = url.set(username=None, password=None).render_as_string()
    parts = [place, table.origin, table.fields, table.watermark, table.key]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _written(start: Any) -> str:
    return start if isinstance(start, str) else str(start.isoformat())
