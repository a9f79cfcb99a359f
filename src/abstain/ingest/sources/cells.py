"""From the cells of a table (CSV, Parquet, SQL) to the object that a JSON line would hold.

A table cannot say everything that JSON can, so, of each field that the contracts know:

* an empty cell is a field that is not there;
* `thumb.given_at` is the field `given_at` of the object `thumb`, which is not there where all its cells are empty;
* `contexts`, `thumb` and `review` may be written as JSON, in which no key comes twice;
* true and false are the words, in any case, or in a typed table the numbers 1 and 0; a typed table's whole number
  is an id's text.

Everything else stays as it is, for the contracts to refuse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from pydantic_core import from_json

from abstain.core.json_lines import repeated_keys

_FLAGS = frozenset({"complete", "correct", "truthful"})
_NUMBERS = frozenset({"inclusion_probability"})
_OBJECTS = frozenset({"contexts", "thumb", "review"})
_IDS = frozenset({"interaction_id", "user", "reviewer", "group"})
_MOMENTS = frozenset({"asked_at", "given_at", "reviewed_at"})
_WORDS = {"true": True, "false": False}


def column_problem(columns: Sequence[str]) -> str | None:
    """Why no row can be read from these columns; None where rows can."""
    for number, column in enumerate(columns, start=1):
        if not column:
            return f"column {number} has no name: name it, or leave it out"
        if columns.count(column) > 1:
            return f"the column '{column}' is there twice: rename one of them"
        if column.partition(".")[0] in _OBJECTS.intersection(columns) and "." in column:
            return f"the columns '{column}' and '{column.partition('.')[0]}' say the same: keep one of them"
    return None


def object_of(cells: Mapping[str, Any], *, naive_is_utc: bool = False) -> dict[str, Any]:
    """The object of one row; `naive_is_utc` reads timestamps without a time zone as UTC."""
    made: dict[str, Any] = {}
    for column, value in cells.items():
        part, dot, name = column.partition(".")
        cell = _cell(name if dot else column, value, naive_is_utc)
        if cell is None:
            continue
        inside = made.setdefault(part, {}) if dot and part in _OBJECTS else None
        if isinstance(inside, dict):
            inside[name] = cell
        else:
            made[column] = cell
    return made


def _cell(field: str, value: Any, naive_is_utc: bool) -> Any:
    """`value` as JSON has it; None where there is none."""
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, bytes | bytearray | memoryview):
        value = bytes(value).decode("utf-8", "surrogateescape")
    if isinstance(value, str):
        return _text(field, value, naive_is_utc) if value else None
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if field in _FLAGS and value in (0, 1):
            return bool(value)
        return str(value) if field in _IDS else value
    if isinstance(value, datetime):
        return (value.replace(tzinfo=UTC) if naive_is_utc and value.tzinfo is None else value).isoformat()
    if isinstance(value, Mapping):
        return {str(k): c for k, v in value.items() if (c := _cell(str(k), v, naive_is_utc)) is not None} or None
    if isinstance(value, list | tuple):
        return [_cell("", item, naive_is_utc) for item in value]
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, date | time | UUID):
        return str(value)
    return value if isinstance(value, float) else str(value)


def _text(field: str, value: str, naive_is_utc: bool) -> Any:
    if field in _FLAGS:
        return _WORDS.get(value.strip().lower(), value)
    if field in _NUMBERS:
        try:
            return float(value)
        except ValueError:
            return value
    if field in _OBJECTS and value.lstrip().startswith(("[", "{")):
        try:
            return value if repeated_keys(value) else from_json(value)
        except ValueError:
            return value
    if field in _MOMENTS and naive_is_utc:
        return _in_utc(value)
    return value


def _in_utc(value: str) -> str:
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return value
    return value if moment.tzinfo else moment.replace(tzinfo=UTC).isoformat()
