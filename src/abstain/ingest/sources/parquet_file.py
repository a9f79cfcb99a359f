"""Parquet: typed columns, read by record batches.

A text that many rows share is in the file once, so a file of some kilobytes may hold gigabytes. Texts are therefore
left in their dictionary until the size of each row is known, and the file's metadata is checked before.
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
from abstain.ingest.parsing import MAX_ROW_BYTES, ParsedRow, make_too_large_reason, parse_object
from abstain.ingest.sources.cells import TableRecord, find_column_problem, make_object
from abstain.ingest.sources.lines import MAX_LINE_BYTES
from abstain.ingest.sources.storage import MAX_COMPRESSION_RATIO, MAX_UNPACKED_BYTES

BATCH_ROWS = 1000
"""Rows held in memory at once."""

MAX_LIST_VALUES = 16_000_000
"""The maximum number of list values in one row group: equal items of a list take no space in the file."""

MAX_SMALL_FILE_ROWS = 100_000
"""The maximum number of rows of a file smaller than a tenth of a byte per row: equal rows take no space, either."""

MAX_SMALL_FILE_BYTES = 64 * 1024 * 1024
"""The maximum size of all rows of a small file, in bytes.

A larger file may hold 10 * `MAX_COMPRESSION_RATIO` times its own size, because rows share texts.
"""

MAX_FIXED_BYTES = 1024
"""The longest value of fixed length, in bytes: these have a dictionary that cannot be left packed."""

_METADATA_SCRIPT = """
import io, sys
from pyarrow.parquet import read_metadata
metadata = read_metadata(io.BytesIO(sys.stdin.buffer.read()))
for column in range(metadata.num_columns):
    metadata.schema.column(column).logical_type
    for group in range(metadata.num_row_groups):
        metadata.row_group(group).column(column)
"""
"""Reads all metadata of a file's columns, given the file's first four bytes and its end."""

_VALUE_BYTES = 8  # bytes of a number, a moment, or an item of a list beside its text


def read_parquet(file: IO[bytes], source: str, display_name: str) -> Iterator[ParsedRow]:
    """Read rows from columns that are named like the fields of the contracts.

    Args:
        file: The open Parquet file, which must be seekable.
        source: Source of the rows.
        display_name: The file's name in error messages.

    Yields:
        One row per record.

    Raises:
        AbstainError: See `iter_parquet_records`.
    """
    for record in iter_parquet_records(file, source, display_name, MAX_ROW_BYTES):
        if isinstance(record, TableRecord):
            yield parse_object(make_object(record.cells), source, record.number)
        else:
            yield record


def iter_parquet_records(
    file: IO[bytes], source: str, display_name: str, limit: int = MAX_LINE_BYTES
) -> Iterator[TableRecord | ParsedRow]:
    """Read every record, numbered from 1.

    Args:
        file: The open Parquet file, which must be seekable.
        source: Source of the rejected rows.
        display_name: The file's name in error messages.
        limit: The maximum size of a record in bytes, at most `MAX_LINE_BYTES`.

    Yields:
        A record, or a rejected row for a record of more than `limit` bytes.

    Raises:
        AbstainError: The file cannot be read to its end, its columns contradict each other, or it holds far more than
            its size.
    """
    import pyarrow.parquet as pq

    number = n_bytes = 0
    with _translate_errors(display_name):
        file.seek(0, os.SEEK_END)
        size = file.tell()
        if _crashes_arrow(file, size):
            raise AbstainError(
                Code.WRONG_FORMAT,
                f"{display_name}: what it says of its columns is damaged: write it again, or leave it out",
            )
        parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20)
        if problem := _find_problem(parquet, size):
            raise AbstainError(Code.TOO_LARGE, f"{display_name}: {problem}")
        schema, (packed_columns, chained_columns) = parquet.schema_arrow, _find_text_columns(parquet)
        parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20, read_dictionary=packed_columns)
        batches = parquet.iter_batches(batch_size=1 if chained_columns else BATCH_ROWS, use_threads=False)
    if problem := find_column_problem(schema.names):
        raise AbstainError(Code.WRONG_FORMAT, f"{display_name}: {problem}")
    while True:
        with _translate_errors(display_name):
            batch = next(batches, None)
        if batch is None:
            return
        for cells, row_bytes in _iter_records(batch, schema, display_name, limit):
            number += 1
            n_bytes += row_bytes if cells is not None else 0
            if n_bytes > max(MAX_SMALL_FILE_BYTES, 10 * MAX_COMPRESSION_RATIO * size):
                problem = (
                    f"its first {number:,} rows unpack to {n_bytes:,} bytes, "
                    f"{10 * MAX_COMPRESSION_RATIO:,} times the file allowed"
                )
                raise AbstainError(Code.TOO_LARGE, f"{display_name}: {problem}: write less into one file")
            if cells is None:
                problem = f"about {row_bytes:,} bytes, {limit:,} allowed: divide it, or leave out what is not needed"
                raw = f"{source} row {number}".encode()
                yield ParsedRow(source, number, raw, (make_too_large_reason("row", problem),), size=row_bytes)
            else:
                yield TableRecord(number, cells)


def _crashes_arrow(file: IO[bytes], size: int) -> bool:
    """Whether a process that reads the columns' metadata is killed.

    For some kinds of damage Arrow raises no error but aborts. So another process reads the metadata first.
    """
    file.seek(max(size - 8, 0))
    end = file.read()
    length = int.from_bytes(end[:4], "little")
    if end[4:] != b"PAR1" or length > size - 8:
        return False  # of which Arrow says more
    file.seek(size - 8 - length)
    command = [sys.executable, "-I", "-c", _METADATA_SCRIPT]
    process = subprocess.run(command, input=b"PAR1" + file.read(), capture_output=True, check=False)  # noqa: S603 (ours)
    return process.returncode < 0


def _find_problem(parquet: Any, size: int) -> str | None:
    """Return why the metadata of a file of `size` bytes forbids to read it; None if it can be read."""
    metadata, remedy = parquet.metadata, "write it in row groups of at most 10,000 rows"
    if metadata.num_rows > max(MAX_SMALL_FILE_ROWS, 10 * size):
        return (
            f"{metadata.num_rows:,} rows in {size:,} bytes, "
            f"{max(MAX_SMALL_FILE_ROWS, 10 * size):,} allowed: leave out equal rows"
        )
    columns = [parquet.schema.column(index) for index in range(len(parquet.schema))]
    if wide_column := next(
        (column for column in columns if column.length is not None and column.length > MAX_FIXED_BYTES), None
    ):
        return (
            f"the column '{wide_column.path}' has values of {wide_column.length:,} bytes, "
            f"{MAX_FIXED_BYTES:,} allowed: write it as text"
        )
    for group_index in range(metadata.num_row_groups):
        group = metadata.row_group(group_index)
        chunks = [group.column(number) for number in range(group.num_columns)]
        unpacked = sum(chunk.total_uncompressed_size for chunk in chunks)
        if unpacked > max(MAX_UNPACKED_BYTES, MAX_COMPRESSION_RATIO * size):
            return (
                f"row group {group_index + 1} unpacks to {unpacked:,} bytes, "
                f"{MAX_COMPRESSION_RATIO} times the file allowed: {remedy}"
            )
        n_list_values = sum(
            chunk.num_values for chunk, column in zip(chunks, columns, strict=True) if column.max_repetition_level
        )
        if n_list_values > MAX_LIST_VALUES:
            return (
                f"row group {group_index + 1} has {n_list_values:,} values in lists, "
                f"{MAX_LIST_VALUES:,} allowed: {remedy}"
            )
    return None


def _find_text_columns(parquet: Any) -> tuple[list[str], list[str]]:
    """Return the text columns, by path: those that can be left packed, and those that cannot.

    The latter are written as differences from the text before. Of a file with such a column one row is read at once.
    """
    groups = [parquet.metadata.row_group(index) for index in range(parquet.metadata.num_row_groups)]
    packed: list[str] = []
    chained: list[str] = []
    for number in range(len(parquet.schema)):
        column = parquet.schema.column(number)
        if column.physical_type == "BYTE_ARRAY" and column.logical_type.type != "DECIMAL":
            is_chained = any("DELTA_BYTE_ARRAY" in group.column(number).encodings for group in groups)
            (chained if is_chained else packed).append(column.path)
    return packed, chained


def _iter_records(
    batch: Any, schema: Any, display_name: str, limit: int
) -> Iterator[tuple[dict[str, Any] | None, int]]:
    """Yield the cells of each row of a batch, by `schema`, and its bytes; for a row beyond `limit` only the bytes."""
    with _translate_errors(display_name):
        sizes = sum((_measure_values(column) for column in batch.columns), np.zeros(batch.num_rows, dtype=np.int64))
    if sizes.sum() <= MAX_LINE_BYTES and sizes.max(initial=0) <= limit:
        with _translate_errors(display_name):
            dense = batch.cast(schema)  # which is faster to convert
        yield from zip(_convert_batch(dense), sizes.tolist(), strict=True)
        return
    for index, size in enumerate(sizes.tolist()):
        if size > limit:
            yield None, size
        else:
            yield _convert_batch(batch.slice(index, 1))[0], size


def _measure_values(array: Any) -> NDArray[np.int64]:
    """Return the size of each value of an Arrow array, (rows,): bytes of its texts, else `_VALUE_BYTES`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    sizes: NDArray[np.int64] = np.full(len(array), _VALUE_BYTES, dtype=np.int64)
    if pa.types.is_dictionary(kind):
        lengths = np.append(_measure_values(array.dictionary), 0)
        sizes += lengths[array.indices.fill_null(len(lengths) - 1).to_numpy(zero_copy_only=False)]
    elif pa.types.is_struct(kind):
        for index in range(kind.num_fields):
            sizes += _measure_values(array.field(index))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        ends = np.concatenate([[0], np.cumsum(_measure_values(array.values))])
        offsets = array.offsets.to_numpy(zero_copy_only=False)
        sizes += ends[offsets[1:]] - ends[offsets[:-1]]
    elif pa.types.is_fixed_size_list(kind):
        inner = _measure_values(array.flatten()).reshape(-1, kind.list_size)
        sizes[array.is_valid().to_numpy(zero_copy_only=False)] += inner.sum(axis=1)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind):
        sizes += pc.binary_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    return sizes


def _convert_batch(batch: Any) -> list[dict[str, Any]]:
    """Return the rows of a batch; if one value has no equivalent in Python, each value is converted by itself."""
    try:
        records: list[dict[str, Any]] = batch.to_pylist()
    except Exception:  # raised by Python's types or by the time-zone package
        names = batch.schema.names
        records = [
            {name: _convert_value(column[row]) for name, column in zip(names, batch.columns, strict=True)}
            for row in range(batch.num_rows)
        ]
    return records


def _convert_value(scalar: Any) -> Any:
    """Convert one value; one that cannot be converted becomes an object that every contract rejects."""
    try:
        return scalar.as_py()
    except Exception as error:
        return {"unreadable": str(error)}


@contextmanager
def _translate_errors(display_name: str) -> Iterator[None]:
    """Translate errors: Arrow's own concern the file's format; others, with a number or from a server, access to it."""
    import pyarrow as pa

    message_and_remedy = f"{display_name}: cannot be read", "write it again"
    with translate_errors(Code.NOT_READABLE, *message_and_remedy):
        try:
            yield
        except (pa.ArrowException, OSError, IndexError) as error:  # an IndexError of a place that a page makes up
            is_access_error = (
                isinstance(error, ConnectionError | TimeoutError) or getattr(error, "errno", None) is not None
            )
            with translate_errors(Code.NOT_READABLE if is_access_error else Code.WRONG_FORMAT, *message_and_remedy):
                raise
