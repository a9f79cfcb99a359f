"""Convert the cells of a table (CSV, Parquet, SQL) to the object that a JSON line would hold.

In the fields that the contracts know:

* an empty cell is a missing field;
* `thumb.given_at` is the field `given_at` of the object `thumb`, which is missing if all its cells are empty;
* `contexts`, `thumb`, `review`, `writer_scores` and `token_log_probs` may be JSON;
* any value in `writer_scores` is a number, whatever its name;
* flags are the words true and false in any case, or in a typed table the numbers 1 and 0;
* a whole number of a typed table becomes the text of an id.

All other values are left as they are, for the contracts to reject.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

from pydantic_core import from_json

from abstain.core.contracts import CRITERIA
from abstain.core.json_lines import find_duplicate_keys
from abstain.ingest.parsing import MAX_ROW_BYTES, JsonObject, ParsedRow, parse_object
from abstain.ingest.sources.lines import OversizedLine, split_lines

_BOOLEAN_FIELDS = frozenset(CRITERIA)
_NUMBER_FIELDS = frozenset({"inclusion_probability", "propensity"})
_WRITER_SCORES = "writer_scores"
_OBJECT_FIELDS = frozenset({"contexts", "thumb", "review", _WRITER_SCORES})
_JSON_FIELDS = _OBJECT_FIELDS | {"token_log_probs"}
_ID_FIELDS = frozenset({"interaction_id", "user", "reviewer", "group"})
_TIME_FIELDS = frozenset({"asked_at", "given_at", "reviewed_at"})
MAX_COLUMNS = 1000
"""The maximum number of columns of a table."""
_BOOLEAN_BY_WORD = {"true": True, "false": False}


class TableRecord(NamedTuple):
    """A record of a table.

    Attributes:
        number: Number of the record.
        cells: Column name -> value, as text (CSV) or typed.
    """

    number: int
    cells: Mapping[str, Any]


def iter_converted_records(chunks: Iterable[bytes], source: str) -> Iterator[TableRecord | ParsedRow]:
    """Read every record of a Parquet file that was converted to JSON Lines, numbered from 1.

    Args:
        chunks: The converted file.
        source: Source of the rejected rows.

    Yields:
        A record, or a rejected row for a record that is too long.
    """
    for number, line in enumerate(split_lines(chunks), start=1):
        if isinstance(line, OversizedLine):
            yield line.to_rejected_row(source, number)
        else:
            yield TableRecord(number, json.loads(line))


def parse_records(records: Iterable[TableRecord | ParsedRow], source: str) -> Iterator[ParsedRow]:
    """Parse records whose columns are named like the fields of the contracts.

    Args:
        records: The records, and rejected rows, which stay as they are.
        source: Source of the rows.

    Yields:
        One row per record.
    """
    for record in records:
        if isinstance(record, TableRecord):
            yield parse_object(make_object(record.cells), source, record.number)
        else:
            yield record


def find_column_problem(columns: Sequence[str]) -> str | None:
    """Return why no row can be read from these columns; None if rows can be read."""
    if len(columns) > MAX_COLUMNS:
        return f"{len(columns):,} columns, {MAX_COLUMNS:,} allowed: leave out those that are not needed"
    for number, column in enumerate(columns, start=1):
        part, dot, _ = column.partition(".")
        if not column:
            return f"column {number} has no name: name it, or leave it out"
        if columns.count(column) > 1:
            return f"the column '{column}' is there twice: rename one of them"
        if dot and part in _OBJECT_FIELDS.intersection(columns):
            return f"the columns '{column}' and '{part}' are redundant: keep one of them"
    return None


def make_object(cells: Mapping[str, Any], *, naive_is_utc: bool = False) -> JsonObject:
    """Make the object of one row.

    Args:
        cells: Column name -> value, as text (CSV) or typed.
        naive_is_utc: Read timestamps without a time zone as UTC.

    Returns:
        Field name -> JSON value.
    """
    fields: JsonObject = {}
    for column, cell in cells.items():
        part, dot, name = column.partition(".")
        is_inner = bool(dot) and part in _OBJECT_FIELDS
        field = _WRITER_SCORES if part == _WRITER_SCORES else name if is_inner else column
        value = _convert(field, cell, naive_is_utc)
        if value is not None:
            target = fields.setdefault(part, {}) if is_inner else fields
            target[name if is_inner else column] = value
    return fields


def to_json_value(value: Any) -> Any:
    """Return a cell of any column as a JSON value; None if it is missing."""
    return _convert("", value, naive_is_utc=False)


def _convert(field: str, value: Any, naive_is_utc: bool) -> Any:
    """Return `value` as a JSON value; None if it is missing."""
    if isinstance(value, bytes | bytearray | memoryview):
        value = bytes(value).decode("utf-8", "surrogateescape")
    if isinstance(value, str):
        return _convert_text(field, value, naive_is_utc) if value else None
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if field in _BOOLEAN_FIELDS and value in (0, 1):
            return bool(value)
        return str(value) if field in _ID_FIELDS else value
    if isinstance(value, float | Decimal):
        return None if math.isnan(value) else float(value)
    if isinstance(value, datetime):
        moment = value.replace(tzinfo=UTC) if naive_is_utc and value.tzinfo is None else value
        return datetime.isoformat(moment)  # of a pandas timestamp, without its nanoseconds
    if isinstance(value, Mapping):
        inner = {
            str(key): _convert(_WRITER_SCORES if field == _WRITER_SCORES else str(key), cell, naive_is_utc)
            for key, cell in value.items()
        }
        return {key: cell for key, cell in inner.items() if cell is not None} or None
    if isinstance(value, list | tuple):
        return [_convert("", item, naive_is_utc) for item in value]
    return str(value)


def _convert_text(field: str, value: str, naive_is_utc: bool) -> Any:
    if field in _BOOLEAN_FIELDS:
        return _BOOLEAN_BY_WORD.get(value.strip().lower(), value)
    try:
        if field in _NUMBER_FIELDS or (field == _WRITER_SCORES and not value.lstrip().startswith("{")):
            return _convert(field, float(value), naive_is_utc)
        is_json = field in _JSON_FIELDS and len(value) <= MAX_ROW_BYTES and value.lstrip().startswith(("[", "{"))
        if is_json and not find_duplicate_keys(value):
            return from_json(value)
        if field in _TIME_FIELDS and naive_is_utc:
            moment = datetime.fromisoformat(value)
            return value if moment.tzinfo else moment.replace(tzinfo=UTC).isoformat()
    except (ValueError, TypeError):  # a TypeError of JSON in which a surrogate stands for a byte
        pass
    return value
