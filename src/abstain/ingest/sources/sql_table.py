"""The statements that read one table, and the arithmetic of its watermark.

Rows are ordered by (watermark, key) and read in pages, each beginning after the last row of the one before. A row
without watermark or key has no place in that order: an *orphan*, read apart.

Values are taken as the driver gives them, without SQLAlchemy's types: one timestamp that cannot be parsed must cost
a row, not the reading. SQLite's are texts, so a watermark may be one; it is then compared by its date.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from sqlalchemy import Select, and_, case, column, func, literal, literal_column, not_, null, or_, select, text
from sqlalchemy import table as table_named
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.types import NullType

_BIND = re.compile(r"(?<![:\w\\]):(\w+)(?!:)")


@dataclass(frozen=True)
class Below:
    """What lies below a watermark, orphans included: how many rows, and the highest key where keys are numbers."""

    count: int
    highest: int | None


@dataclass(frozen=True)
class Table:
    """One table or query as it is read: `fields` pairs each contract field with its column."""

    origin: str
    is_query: bool
    fields: tuple[tuple[str, str], ...]
    watermark: str
    key: tuple[str, ...]

    def probe(self) -> Select[Any]:
        """Watermark and key of some rows that have them: their types."""
        return self._from(*self._order).where(not_(self._orphan)).limit(100)

    def highest_before(self, bound: Any) -> Select[Any]:
        """The highest watermark below `bound`."""
        return self._from(func.max(column(self.watermark))).where(column(self.watermark) < _bound(bound))

    def below(self, *watermarks: Any, numbers: bool) -> Select[Any]:
        """`Below` of each of `watermarks`, all in one statement, so that all see the same rows."""
        columns: list[Any] = []
        for watermark in watermarks:
            inside = or_(self._orphan, column(self.watermark) < _bound(watermark))
            columns.append(func.count(case((inside, literal_column("1")))))
            columns.append(func.max(case((inside, self._keys[0]))) if numbers else null())
        return self._from(*columns)

    def page(self, since: Any, after: Sequence[Any] | None, size: int) -> Select[Any]:
        """The next `size` rows after watermark and key `after`: contract fields, then watermark and key."""
        statement = self._rows().where(not_(self._orphan)).order_by(*self._order).limit(size)
        if since is not None:
            statement = statement.where(column(self.watermark) >= _bound(since))
        if after is not None:
            # The first condition says nothing new, and lets an index be used.
            statement = statement.where(self._order[0] >= _bound(after[0]), _greater(self._order, after))
        return statement

    def orphans(self) -> Select[Any]:
        return self._rows().where(self._orphan)

    def twins(self, row: Sequence[Any]) -> Select[Any]:
        """How many rows have this watermark and key."""
        equal = (one == _bound(value) for one, value in zip(self._order, row, strict=True))
        return self._from(func.count()).where(and_(*equal))

    @property
    def _keys(self) -> list[ColumnElement[Any]]:
        return [column(name) for name in self.key]

    @property
    def _order(self) -> list[ColumnElement[Any]]:
        return [column(self.watermark), *self._keys]

    @property
    def _orphan(self) -> ColumnElement[bool]:
        return or_(*(one.is_(None) for one in self._order))

    def _rows(self) -> Select[Any]:
        return self._from(*(column(name).label(f"f{n}") for n, (_, name) in enumerate(self.fields)), *self._order)

    def _from(self, *columns: Any) -> Select[Any]:
        return select(*columns).select_from(origin_of(self.origin, self.is_query))


def origin_of(origin: str, is_query: bool) -> Any:
    """What follows FROM."""
    if is_query:
        # A colon in somebody's query is no parameter of ours.
        escaped = _BIND.sub(r"\\:\1", origin.strip().rstrip(";"))
        return text(f"({escaped}\n) AS source_rows")  # it may end with a comment
    schema, _, name = origin.rpartition(".")
    return table_named(name, schema=schema or None)


def _bound(value: Any) -> Any:
    """`value` to be compared with a column. A text is not declared to be one: it may stand for a time (`infinity`)."""
    return literal(value, NullType()) if isinstance(value, str) else value


def _greater(columns: Sequence[ColumnElement[Any]], values: Sequence[Any]) -> ColumnElement[bool]:
    """(a, b) > (x, y), spelt out: not every database compares tuples."""
    first, *others = columns
    beyond: ColumnElement[bool] = first > _bound(values[0])
    if not others:
        return beyond
    return or_(beyond, and_(first == _bound(values[0]), _greater(others, values[1:])))


def bound_of(sample: Any) -> Any:
    """What no watermark of today is at or above, of the type of `sample`: later ones come from a wrong clock."""
    now = datetime.now(UTC)
    if isinstance(sample, datetime):
        return now if sample.tzinfo else now.replace(tzinfo=None)
    tomorrow = (now + timedelta(days=1)).date()
    return tomorrow if isinstance(sample, date) else tomorrow.isoformat()


def start_of(highest: Any, late_by: timedelta) -> Any:
    """`late_by` before the watermark `highest`; None where that is no time."""
    try:
        if isinstance(highest, datetime):
            return highest - late_by
        if isinstance(highest, date):
            return highest - timedelta(days=math.ceil(late_by / timedelta(days=1)))
        if isinstance(highest, str):
            # "2026-01-31" sorts before every time of that day, however it is written.
            return (datetime.fromisoformat(highest[:10]) - late_by).date().isoformat()
    except (ValueError, OverflowError):
        pass
    return None


def same_type(written: str, sample: Any) -> Any:
    """A start as it was stored, in the type of `sample`; None where it is none."""
    try:
        if isinstance(sample, datetime):
            moment = datetime.fromisoformat(written)
            return moment if (moment.tzinfo is None) == (sample.tzinfo is None) else None
        return date.fromisoformat(written) if isinstance(sample, date) else written
    except ValueError:
        return None
