"""Parquet: typed columns, read by record batches.

A text that many rows share stands in the file once, so a file of some kilobytes may hold gigabytes. Texts are therefore
left in their dictionary until the size of each row is known, and what the file says of itself is checked before.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.filesystem import translate_errors
from abstain.ingest.parsing import ROW_BYTES, ParsedRow, parse_object, too_large_reason
from abstain.ingest.sources.cells import TableRecord, column_problem, make_object
from abstain.ingest.sources.lines import MAX_LINE_BYTES
from abstain.ingest.sources.storage import MAX_COMPRESSION_RATIO, MAX_UNPACKED_BYTES

BATCH_ROWS = 1000
"""Rows held in memory at once."""

MAX_LIST_VALUES = 16_000_000
"""The most values of lists in one row group: of a list's items, equal ones cost no space in the file."""

MAX_SMALL_FILE_ROWS = 100_000
"""The most rows of a file that is smaller than a tenth of a byte a row: equal rows cost no space, either."""

MAX_SMALL_FILE_BYTES = 64 * 1024 * 1024
"""The most bytes of all rows of a small file; of a larger one, 10 * `MAX_COMPRESSION_RATIO` for each of its own: rows share texts."""

MAX_FIXED_BYTES = 1024
"""The longest value of fixed length, in bytes: these have a dictionary that cannot be left packed."""

_METADATA_SCRIPT = """
import io, sys
from pyarrow.parquet import read_metadata
found = read_metadata(io.BytesIO(sys.stdin.buffer.read()))
for column in range(found.num_columns):
    found.schema.column(column).logical_type
    for group in range(found.num_row_groups):
        found.row_group(group).column(column)
"""
"""Looks at all that a file says of its columns, given its first four bytes and its end."""

_VALUE = 8  # bytes of a number, a moment, or an item of a list beside its text


def read_parquet(file: IO[bytes], source: str, shown: str) -> Iterator[ParsedRow]:
    """Yield one row a record of columns that are named like the fields of the contracts; see `parquet_records`."""
    for record in parquet_records(file, source, shown, ROW_BYTES):
        if isinstance(record, TableRecord):
            yield parse_object(make_object(record.cells), source, record.number)
        else:
            yield record


def parquet_records(
    file: IO[bytes], source: str, shown: str, limit: int = MAX_LINE_BYTES
) -> Iterator[TableRecord | ParsedRow]:
    """Yield every record, numbered from 1; a refused row for one of more than `limit` bytes.

    Args:
        file: the open Parquet file, which must be seekable.
        source: the source of the refused rows.
        shown: the file's name in error messages.
        limit: at most `MAX_LINE_BYTES`.

    Raises:
        AbstainError: the file cannot be read to its end, its columns contradict each other, or it holds far more than
            its size.
    """
    import pyarrow.parquet as pq

    number = taken = 0
    with _translate_errors(shown):
        file.seek(0, os.SEEK_END)
        size = file.tell()
        if _crashes_arrow(file, size):
            raise AbstainError(
                Code.WRONG_FORMAT, f"{shown}: what it says of its columns is damaged: write it again, or leave it out"
            )
        parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20)
        if problem := _problem(parquet, size):
            raise AbstainError(Code.TOO_LARGE, f"{shown}: {problem}")
        schema, (texts, chained) = parquet.schema_arrow, _texts(parquet)
        parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20, read_dictionary=texts)
        batches = parquet.iter_batches(batch_size=1 if chained else BATCH_ROWS, use_threads=False)
    if problem := column_problem(schema.names):
        raise AbstainError(Code.WRONG_FORMAT, f"{shown}: {problem}")
    while True:
        with _translate_errors(shown):
            batch = next(batches, None)
        if batch is None:
            return
        for cells, bytes_of_it in _records(batch, schema, shown, limit):
            number += 1
            taken += bytes_of_it if cells is not None else 0
            if taken > max(MAX_SMALL_FILE_BYTES, 10 * MAX_COMPRESSION_RATIO * size):
                problem = f"its first {number:,} rows unpack to {taken:,} bytes, {10 * MAX_COMPRESSION_RATIO:,} times the file allowed"
                raise AbstainError(Code.TOO_LARGE, f"{shown}: {problem}: write less into one file")
            if cells is None:
                problem = f"about {bytes_of_it:,} bytes, {limit:,} allowed: divide it, or leave out what is not needed"
                raw = f"{source} row {number}".encode()
                yield ParsedRow(source, number, raw, (too_large_reason("row", problem),), size=bytes_of_it)
            else:
                yield TableRecord(number, cells)


def _crashes_arrow(file: IO[bytes], size: int) -> bool:
    """Whether a process ends that looks at the columns' descriptions: where they are damaged, Arrow raises no error for
    some of them, but aborts. So another process looks first."""
    file.seek(max(size - 8, 0))
    end = file.read()
    length = int.from_bytes(end[:4], "little")
    if end[4:] != b"PAR1" or length > size - 8:
        return False  # of which Arrow says more
    file.seek(size - 8 - length)
    command = [sys.executable, "-I", "-c", _METADATA_SCRIPT]
    looked = subprocess.run(command, input=b"PAR1" + file.read(), capture_output=True, check=False)  # noqa: S603 (ours)
    return looked.returncode < 0


def _problem(parquet: Any, size: int) -> str | None:
    """Why a file of `size` bytes is refused by what it says of itself; None if it is read."""
    found, remedy = parquet.metadata, "write it in row groups of at most 10,000 rows"
    if found.num_rows > max(MAX_SMALL_FILE_ROWS, 10 * size):
        return f"{found.num_rows:,} rows in {size:,} bytes, {max(MAX_SMALL_FILE_ROWS, 10 * size):,} allowed: leave out equal rows"
    columns = [parquet.schema.column(at) for at in range(len(parquet.schema))]
    if wide := next((one for one in columns if one.length is not None and one.length > MAX_FIXED_BYTES), None):
        return f"the column '{wide.path}' has values of {wide.length:,} bytes, {MAX_FIXED_BYTES:,} allowed: write it as text"
    for at in range(found.num_row_groups):
        group = found.row_group(at)
        chunks = [group.column(number) for number in range(group.num_columns)]
        unpacked = sum(chunk.total_uncompressed_size for chunk in chunks)
        if unpacked > max(MAX_UNPACKED_BYTES, MAX_COMPRESSION_RATIO * size):
            return f"row group {at + 1} unpacks to {unpacked:,} bytes, {MAX_COMPRESSION_RATIO} times the file allowed: {remedy}"
        listed = sum(one.num_values for one, column in zip(chunks, columns, strict=True) if column.max_repetition_level)
        if listed > MAX_LIST_VALUES:
            return f"row group {at + 1} has {listed:,} values in lists, {MAX_LIST_VALUES:,} allowed: {remedy}"
    return None


def _texts(parquet: Any) -> tuple[list[str], list[str]]:
    """The columns of text, by path: those that can be left packed, and those written as differences from the text
    before, which cannot, so that of a file with one of these one row is read at once."""
    groups = [parquet.metadata.row_group(at) for at in range(parquet.metadata.num_row_groups)]
    packed: list[str] = []
    chained: list[str] = []
    for number in range(len(parquet.schema)):
        column = parquet.schema.column(number)
        if column.physical_type == "BYTE_ARRAY" and column.logical_type.type != "DECIMAL":
            is_chained = any("DELTA_BYTE_ARRAY" in group.column(number).encodings for group in groups)
            (chained if is_chained else packed).append(column.path)
    return packed, chained


def _records(batch: Any, schema: Any, shown: str, limit: int) -> Iterator[tuple[dict[str, Any] | None, int]]:
    """Yield the cells of each row of a batch, by `schema`, and its bytes; of a row beyond `limit` the bytes alone."""
    with _translate_errors(shown):
        sizes = sum((_sizes(column) for column in batch.columns), np.zeros(batch.num_rows, dtype=np.int64))
    if sizes.sum() <= MAX_LINE_BYTES and sizes.max(initial=0) <= limit:
        with _translate_errors(shown):
            dense = batch.cast(schema)  # which is faster to convert
        yield from zip(_converted(dense), sizes.tolist(), strict=True)
        return
    for at, size in enumerate(sizes.tolist()):
        if size > limit:
            yield None, size
        else:
            yield _converted(batch.slice(at, 1))[0], size


def _sizes(array: Any) -> NDArray[np.int64]:
    """The bytes of each value of an Arrow array (n,): of its texts, and `_VALUE` for any other value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    own: NDArray[np.int64] = np.full(len(array), _VALUE, dtype=np.int64)
    if pa.types.is_dictionary(kind):
        lengths = np.append(_sizes(array.dictionary), 0)
        own += lengths[array.indices.fill_null(len(lengths) - 1).to_numpy(zero_copy_only=False)]
    elif pa.types.is_struct(kind):
        for at in range(kind.num_fields):
            own += _sizes(array.field(at))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        ends = np.concatenate([[0], np.cumsum(_sizes(array.values))])
        offsets = array.offsets.to_numpy(zero_copy_only=False)
        own += ends[offsets[1:]] - ends[offsets[:-1]]
    elif pa.types.is_fixed_size_list(kind):
        inner = _sizes(array.flatten()).reshape(-1, kind.list_size)
        own[array.is_valid().to_numpy(zero_copy_only=False)] += inner.sum(axis=1)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind):
        own += pc.binary_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    return own


def _converted(batch: Any) -> list[dict[str, Any]]:
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


@contextmanager
def _translate_errors(shown: str) -> Iterator[None]:
    """Arrow's own errors are of the file's format; all others, which have their number or come from a server, of its
    place."""
    import pyarrow as pa

    told = f"{shown}: cannot be read", "write it again"
    with translate_errors(Code.NOT_READABLE, *told):
        try:
            yield
        except (pa.ArrowException, OSError, IndexError) as error:  # an IndexError of a place that a page makes up
            is_of_place = isinstance(error, ConnectionError | TimeoutError) or getattr(error, "errno", None) is not None
            with translate_errors(Code.NOT_READABLE if is_of_place else Code.WRONG_FORMAT, *told):
                raise
