"""A database as a source: tables of interactions, thumbs and reviews, each read from a watermark on.

A watermark by itself would lose rows, because clocks differ and a transaction may be committed late. Therefore each
read begins `late_by_days` before the highest watermark of the last one, and the rows before that point are counted: if
the count has changed, the whole table is read again (docs/sources.md, "late rows").
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator
from sqlalchemy import ColumnElement, Select, case, column, func, inspect, literal_column, null, or_, select, text
from sqlalchemy import table as named_table

from abstain.config.yaml_model import FrozenModel
from abstain.core.codes import Code
from abstain.core.text import suggest_name
from abstain.data.store.key_index import CONTRACTS
from abstain.ingest.parsing import ParsedRow, parse_object
from abstain.ingest.sources import ReadOutcome, SourceModel, SourceReader, SourceState
from abstain.ingest.sources.cells import make_object
from abstain.ingest.sources.sql_database import Database, parse_url

_TIME_FIELDS = {"interactions": "asked_at", "feedback": "given_at", "reviews": "reviewed_at"}

NonEmptyText = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class TableConfig(FrozenModel):
    """Rows of one contract: a table, or a query whose result is read like a table.

    Attributes:
        table: A table or view, also schema.table.
        query: A query, instead of a table.
        columns: Contract field -> column, for columns with other names.
        watermark: Column of the time when a row was written; by default the row's own time.
        key: Column of rising whole numbers; by default the table's primary key.
    """

    table: NonEmptyText | None = Field(None, description="a table or view, also schema.table")
    query: NonEmptyText | None = None
    columns: dict[str, NonEmptyText] = Field({}, description="contract field -> column; others go by their own names")
    watermark: NonEmptyText | None = Field(
        None, description="column of the time a row was written; default: the row's own time"
    )
    key: NonEmptyText | None = Field(
        None, description="column of rising whole numbers; default: the table's primary key"
    )

    @model_validator(mode="after")
    def _check_origin(self) -> TableConfig:
        if (self.table is None) == (self.query is None):
            raise ValueError("name either a table or a query")
        return self


class TablesConfig(FrozenModel):
    """The tables of a database, by contract.

    Attributes:
        interactions: Table of interactions.
        feedback: Table of thumbs.
        reviews: Table of reviews.
    """

    interactions: TableConfig | None = None
    feedback: TableConfig | None = None
    reviews: TableConfig | None = None

    @model_validator(mode="after")
    def _check_fields(self) -> TablesConfig:
        for name, config in self.get_tables().items():
            fields = CONTRACTS[name].model_fields
            for unknown in config.columns.keys() - fields.keys():
                raise ValueError(f"{name}.columns: unknown field '{unknown}': {suggest_name(unknown, fields)}")
        return self

    def get_tables(self) -> dict[str, TableConfig]:
        """Return the configured tables, in the order of `CONTRACTS`."""
        tables = {name: getattr(self, name) for name in CONTRACTS}
        return {name: config for name, config in tables.items() if config is not None}


@dataclass(frozen=True)
class _Table:
    """A table or query with its columns; `fields` maps each contract field that it has to its column."""

    label: str
    origin: Any
    fields: Mapping[str, str]
    watermark: ColumnElement[Any]
    key: ColumnElement[Any] | None

    def select(self, *columns: Any) -> Select[Any]:
        return select(*columns).select_from(self.origin)

    def select_rows(self, since: Any) -> Select[Any]:
        """Select all rows from the watermark `since` on (None: every row): fields, key, watermark.

        Rows without a watermark belong to no point in time, so they are always included.
        """
        order = [self.watermark] if self.key is None else [self.watermark, self.key]
        key = null() if self.key is None else self.key
        statement = self.select(*map(column, self.fields.values()), key, self.watermark).order_by(*order)
        if since is None:
            return statement
        return statement.where(or_(self.watermark >= since, self.watermark.is_(None)))

    def count_before(self, *watermarks: Any, key: ColumnElement[Any] | None) -> Select[Any]:
        """Count the rows before each of `watermarks`, with their highest `key`, all in one consistent statement."""
        columns: list[Any] = []
        for watermark in watermarks:
            is_before = self.watermark < watermark
            columns.append(func.count(case((is_before, literal_column("1")))))
            columns.append(null() if key is None else func.max(case((is_before, key))))
        return self.select(*columns)


class SqlSource(SourceModel):
    """Tables of a database that SQLAlchemy supports.

    Attributes:
        kind: Distinguishes the sources in sources.yaml.
        url: SQLAlchemy URL, with `${VARIABLE}` from the environment.
        tables: The tables; None for those called interactions, feedback and reviews.
        late_by_days: How far before the watermark a read begins.
        naive_is_utc: Read timestamps without a time zone as UTC; otherwise such rows are rejected.
    """

    kind: Literal["sql"] = "sql"
    url: NonEmptyText = Field(
        "sqlite:///feedback.db", repr=False, description="SQLAlchemy URL, ${VARIABLE} from the environment"
    )
    tables: TablesConfig | None = None
    late_by_days: Annotated[float, Field(ge=0)] = Field(1, description="how far before the watermark readings begin")
    naive_is_utc: bool = Field(False, description="read timestamps without a time zone as UTC; else they are rejected")

    def resolve_paths(self, home: Path, project: Path) -> Self:
        """Complete the URL; see `SourceModel.resolve_paths`.

        Raises:
            AbstainError: A variable is not set, or the URL is malformed.
        """
        url = parse_url(self.url, self.name, home).render_as_string(hide_password=False)
        return self.model_copy(update={"url": url})

    def read(self, state: SourceState) -> SourceReader:
        """Read the rows that an earlier read cannot have seen.

        Args:
            state: State that the earlier read returned.

        Returns:
            A reader that yields the rows.

        Raises:
            AbstainError: The database cannot be reached, or its tables are not as configured. While iterating: the
                connection breaks and cannot be re-established, or a value has no equivalent in Python.
        """
        database = Database(parse_url(self.url, self.name))
        configs = self.tables.get_tables() if self.tables else _find_tables(database)
        tables = {name: _resolve_table(database, name, config) for name, config in configs.items()}
        return SourceReader(self._rows(database, tables, state.get("tables", {})))

    def _rows(
        self, database: Database, tables: Mapping[str, _Table], earlier_states: Mapping[str, SourceState]
    ) -> Generator[ParsedRow, None, ReadOutcome]:
        state: dict[str, dict[str, Any]] = {}
        for name, table in tables.items():
            since, state[name] = self._plan_read(database, table, earlier_states.get(name, {}))
            rows = database.stream(table.select_rows, since, table.label)
            for number, (*values, key, _) in enumerate(rows, start=1):
                cells = dict(zip(table.fields, values, strict=True))
                fields = make_object(cells, naive_is_utc=self.naive_is_utc)
                yield parse_object(fields, f"{self.name}/{name}", key if isinstance(key, int) else number)
        return ReadOutcome({"tables": state})

    def _plan_read(self, database: Database, table: _Table, earlier_state: SourceState) -> tuple[Any, dict[str, Any]]:
        """Return the watermark to begin at (None: read everything), and the state to store after the read."""
        key = null() if table.key is None else table.key
        samples = table.select(table.watermark, key).where(table.watermark.is_not(None)).limit(100)
        sample_rows = database.query(lambda connection: list(connection.execute(samples)), table.label)
        sample = next((row for row in sample_rows if isinstance(row[0], date | str)), None)
        if sample is None:
            if sample_rows:
                kind = type(sample_rows[0][0]).__name__
                raise database.make_error(
                    f"{table.label}: the watermark '{table.watermark}' holds {kind}: name a column of timestamps",
                    Code.BAD_SETTING,
                )
            return None, {}
        moment = sample[0]
        identity = self._identity(table, moment)
        is_ahead = table.watermark >= _get_now(moment)
        highest = database.fetch_first(table.select(func.max(table.watermark)).where(~is_ahead), table.label)[0]
        start = _subtract_lateness(highest, timedelta(days=self.late_by_days))
        if start is None:
            return None, {}
        is_same_table = earlier_state.get("of") == identity
        since = _parse_watermark(earlier_state["since"], moment) if is_same_table else start
        number_key = table.key if isinstance(sample[1], int) else None
        counts = tuple(database.fetch_first(table.count_before(since, start, key=number_key), table.label))
        state = {"of": identity, "since": _format_watermark(start), "count": counts[2], "highest": counts[3]}
        is_unchanged = is_same_table and counts[:2] == (earlier_state["count"], earlier_state["highest"])
        return since if is_unchanged else None, state

    def _identity(self, table: _Table, moment: Any) -> str:
        """Return a digest of what a stored watermark refers to: this database, table, columns and type of time."""
        address = parse_url(self.url, self.name).set(username=None, password=None).render_as_string()
        kind = f"{type(moment).__name__} {getattr(moment, 'tzinfo', None) is None}"
        parts = [address, str(table.origin), list(table.fields.items()), str(table.watermark), str(table.key), kind]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _find_tables(database: Database) -> dict[str, TableConfig]:
    existing = database.query(lambda connection: _get_table_names(inspect(connection)))
    configs = {name: TableConfig(table=name) for name in CONTRACTS if name in existing}
    if not configs:
        problem = f"it has none of the tables {', '.join(CONTRACTS)}: name yours under `tables`"
        raise database.make_error(problem, Code.BAD_SETTING)
    return configs


def _get_table_names(inspector: Any) -> set[str]:
    return {*inspector.get_table_names(), *inspector.get_view_names()}


def _resolve_table(database: Database, name: str, config: TableConfig) -> _Table:
    """Look up the columns of one table. Raises `AbstainError` if a required one is missing."""
    label = f"{name}: " + ("the query" if config.table is None else f"the table '{config.table}'")
    schema, _, table = (config.table or "").rpartition(".")
    origin: Any = named_table(table, schema=schema or None)
    if config.query is not None:
        query = config.query.rstrip().rstrip(";").replace(":", r"\:")  # a colon is no parameter of ours
        origin = text(f"({query}\n) AS source_rows")  # on a line of its own: the query may end with a comment
    statement: Select[Any] = select(literal_column("*")).select_from(origin).limit(0)
    columns = database.query(lambda connection: list(connection.execute(statement).keys()), label)
    contract = CONTRACTS[name].model_fields
    fields = {field: config.columns.get(field, field) for field in contract}
    for field, column_name in fields.items():
        if column_name not in columns and (field in config.columns or contract[field].is_required()):
            raise database.make_error(
                f"{label} has no column '{column_name}' (it has {', '.join(columns)}): "
                "under `columns`, name the one that "
                f"holds the field {field}",
                Code.BAD_SETTING,
            )
    watermark, key = config.watermark or fields[_TIME_FIELDS[name]], config.key
    for required_column in (watermark, key or watermark):
        if required_column not in columns:
            raise database.make_error(
                f"{label} has no column '{required_column}': it has {', '.join(columns)}", Code.BAD_SETTING
            )
    if key is None and config.table is not None:
        primary = database.query(
            lambda connection: inspect(connection).get_pk_constraint(table, schema=schema or None), label
        )
        key = primary["constrained_columns"][0] if len(primary["constrained_columns"]) == 1 else None
    present = {field: column_name for field, column_name in fields.items() if column_name in columns}
    return _Table(label, origin, present, column(watermark), None if key is None else column(key))


def _get_now(sample: Any) -> Any:
    """Return now as a time of the type of `sample`; rows at or after it were written by a wrong clock.

    A text or a date is compared by its day, so for these it is tomorrow.
    """
    now = datetime.now(UTC)
    if isinstance(sample, datetime):
        return now if sample.tzinfo else now.replace(tzinfo=None)
    tomorrow = (now + timedelta(days=1)).date()
    return tomorrow if isinstance(sample, date) else tomorrow.isoformat()


def _subtract_lateness(highest: Any, late_by: timedelta) -> Any:
    """Return the time `late_by` before the watermark `highest`; None if that is no time."""
    try:
        if isinstance(highest, datetime):
            return highest - late_by
        if isinstance(highest, date):
            return highest - timedelta(days=math.ceil(late_by / timedelta(days=1)))
        # "2026-01-31" sorts before every time of that day, however it is written.
        return (datetime.fromisoformat(highest[:10]) - late_by).date().isoformat()
    except (TypeError, ValueError, OverflowError):
        return None


def _format_watermark(moment: Any) -> str:
    return moment if isinstance(moment, str) else str(moment.isoformat())


def _parse_watermark(value: str, sample: Any) -> Any:
    """Parse a watermark that `_format_watermark` wrote, as the type of `sample`."""
    return type(sample).fromisoformat(value) if isinstance(sample, date) else value
