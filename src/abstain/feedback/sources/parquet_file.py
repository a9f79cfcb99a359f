"""Parquet: typed columns that are named like fields of the contracts, read by record batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

from abstain.errors import AbstainError
from abstain.feedback.rows import InputRow, parse_object
from abstain.feedback.sources.cells import column_problem, object_of

_AT_ONCE = 1000


def read_parquet(file: IO[bytes], source: str, shown: str) -> Iterator[InputRow]:
    """One row a record, numbered from 1. Raises `AbstainError` for a file that cannot be read to its end."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20)
        columns = list(parquet.schema_arrow.names)
        if problem := column_problem(columns):
            raise AbstainError(f"{shown}: {problem}")
        batches = parquet.iter_batches(batch_size=_AT_ONCE, use_threads=False)
        while (batch := next(batches, None)) is not None:
            values = [_values(_in_microseconds(column)) for column in batch.columns]
            for cells in zip(*values, strict=True):
                number += 1
                yield parse_object(object_of(dict(zip(columns, cells, strict=True))), source, number)
    except (pa.ArrowException, OSError) as error:
        raise AbstainError(f"{shown}: cannot be read: {' '.join(str(error).split())[:200]}") from error


def _in_microseconds(column: Any) -> Any:
    """Nanoseconds are more than a Python timestamp, or a contract, can hold."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        return column.cast(pa.timestamp("us", column.type.tz), safe=False)
    return column


def _values(column: Any) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:  # one text of them is none
        values = [_value(column, position) for position in range(len(column))]
    return values


def _value(column: Any, position: int) -> Any:
    scalar = column[position]
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        buffer = getattr(scalar, "as_buffer", None)  # only a text has one; what is nested is shown as Arrow shows it
        return buffer().to_pybytes() if buffer else str(scalar)
