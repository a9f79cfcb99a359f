"""Parquet: typed columns, read by record batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import IO, Any

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.filesystem import translate_errors
from abstain.ingest.pipeline.parsing import ParsedRow, parse_object
from abstain.ingest.sources.cells import TableRecord, column_problem, object_of

BATCH = 1000
"""Rows held in memory at once."""


def read_parquet(file: IO[bytes], source: str, shown: str) -> Iterator[ParsedRow]:
    """Yield one row a record of columns that are named like the fields of the contracts; see `parquet_records`."""
    for record in parquet_records(file, shown):
        yield parse_object(object_of(record.cells), source, record.number)


def parquet_records(file: IO[bytes], shown: str) -> Iterator[TableRecord]:
    """Yield every record, numbered from 1.

    Args:
        file: the open Parquet file, which must be seekable.
        shown: the file's name in error messages.

    Raises:
        AbstainError: the file cannot be read to its end, or its columns contradict each other.
    """
    import pyarrow.parquet as pq

    number = 0
    with _translate_errors(shown):
        parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20)
        batches = parquet.iter_batches(batch_size=BATCH, use_threads=False)
    if problem := column_problem(parquet.schema_arrow.names):
        raise AbstainError(Code.WRONG_FORMAT, f"{shown}: {problem}")
    while True:
        with _translate_errors(shown):
            batch = next(batches, None)
        if batch is None:
            return
        for cells in _records(batch):
            number += 1
            yield TableRecord(number, cells)


def _records(batch: Any) -> list[dict[str, Any]]:
    """Return the rows of a batch; if one value has no equivalent in Python, each value is converted by itself."""
    try:
        records: list[dict[str, Any]] = batch.to_pylist()
    except Exception:  # of Python's types, or of the time-zone package
        names = batch.schema.names
        records = [
            {name: _value(column[row]) for name, column in zip(names, batch.columns, strict=True)}
            for row in range(batch.num_rows)
        ]
    return records


def _value(scalar: Any) -> Any:
    """Convert one value; one that cannot be converted becomes an object that every contract refuses."""
    try:
        return scalar.as_py()
    except Exception as error:
        return {"unreadable": str(error)}


def _translate_errors(shown: str) -> AbstractContextManager[None]:
    return translate_errors(Code.WRONG_FORMAT, lambda cause: f"{shown}: cannot be read: {cause}: write it again")
