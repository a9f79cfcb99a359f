"""Parquet: typed columns that are named like fields of the contracts, read by record batches.

Parquet can hold what Python cannot: years beyond 9999, a zone that nobody knows, a text that is none. Such a value
becomes the text (or the bytes) that Arrow has for it, for the contracts to refuse: it costs its row, not the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from abstain.core.errors import AbstainError
from abstain.ingest.pipeline.parsing import InputRow, parse_object
from abstain.ingest.sources.cells import column_problem, object_of

_AT_ONCE = 1000


def read_parquet(file: IO[bytes], source: str, shown: str) -> Iterator[InputRow]:
    """One row a record, numbered from 1. Raises `AbstainError` for a file that cannot be read to its end."""
    import pyarrow.parquet as pq

    number = 0
    with _speaking(shown):
        parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20)
        columns = list(parquet.schema_arrow.names)
        batches = parquet.iter_batches(batch_size=_AT_ONCE, use_threads=False)
    if problem := column_problem(columns):
        raise AbstainError(f"{shown}: {problem}")
    while True:
        with _speaking(shown):
            batch = next(batches, None)
        if batch is None:
            return
        values = [_values(_in_microseconds(column)) for column in batch.columns]
        for cells in zip(*values, strict=True):
            number += 1
            yield parse_object(object_of(dict(zip(columns, cells, strict=True))), source, number)


@contextmanager
def _speaking(shown: str) -> Iterator[None]:
    """Only around what reads the file, and then for every error: Arrow has its own, Python's and the backend's."""
    try:
        yield
    except Exception as error:
        said = " ".join(str(error).split())[:200] or type(error).__name__
        raise AbstainError(f"{shown}: cannot be read: {said}: write it again") from error


def _in_microseconds(column: Any) -> Any:
    """Nanoseconds are more than a Python timestamp, or a contract, can hold."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        return column.cast(pa.timestamp("us", column.type.tz), safe=False)
    return column


def _values(column: Any) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except Exception:  # whatever Python's types and the package of time zones raise
        values = [_value(column, position) for position in range(len(column))]
    return values


def _value(column: Any, position: int) -> Any:
    """One value, with what Python cannot hold as text or bytes, and the rest of a struct or list as it is."""
    import pyarrow as pa

    scalar, kind = column[position], column.type
    try:
        return scalar.as_py()
    except Exception:
        names = [field.name for field in kind] if pa.types.is_struct(kind) else []
        if names and len(set(names)) == len(names):
            return {name: _value(column.field(number), position) for number, name in enumerate(names)}
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return [_value(scalar.values, inside) for inside in range(len(scalar.values))]
        if hasattr(scalar, "as_buffer"):
            return scalar.as_buffer().to_pybytes()
        return " ".join(column.slice(position, 1).to_string().split()).strip("[] ")
