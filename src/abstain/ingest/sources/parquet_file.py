"""Read Parquet, typed columns, as JSON Lines: one object per record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Any

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.ingest.sources.cells import find_column_problem, to_json_value

BATCH_ROWS = 1000
"""Rows held in memory at once."""


def write_json_lines(source: IO[bytes], output: IO[bytes]) -> None:
    """Write every record as a line.

    Args:
        source: The Parquet file.
        output: The file to write.

    Raises:
        AbstainError: The file cannot be read to its end, or its columns contradict each other.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(source, pre_buffer=False, buffer_size=1 << 20)
        if problem := find_column_problem(file.schema_arrow.names):
            raise AbstainError(Code.WRONG_FORMAT, problem)
        for batch in file.iter_batches(batch_size=BATCH_ROWS, use_threads=False):
            for cells in _convert_batch(batch):
                record = {name: to_json_value(cell) for name, cell in cells.items()}
                output.write(json.dumps(record).encode() + b"\n")
    except (pa.ArrowException, OSError, IndexError) as error:  # an IndexError of a place that a page makes up
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno):
            raise
        message = " ".join(str(error).split())
        raise AbstainError(Code.WRONG_FORMAT, f"cannot be read: {message}: write it again") from None


def _convert_batch(batch: Any) -> Iterator[dict[str, Any]]:
    """Yield the records of a batch; if one value has no equivalent in Python, each value is converted by itself."""
    try:
        yield from batch.to_pylist()
    except Exception:  # raised by Python's types or by the time-zone package
        names = batch.schema.names
        for row in range(batch.num_rows):
            yield {name: _convert_value(column[row]) for name, column in zip(names, batch.columns, strict=True)}


def _convert_value(scalar: Any) -> Any:
    """Convert one value; one that cannot be converted becomes an object that every contract rejects."""
    try:
        return scalar.as_py()
    except Exception as error:
        return {"unreadable": str(error)}
