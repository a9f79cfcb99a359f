"""Index of known rows by identity: small enough for millions of rows, exact enough to report why two differ.

A row takes about 230 bytes, independent of its content: its digests, its moment, and the position of its line, which is
read again in the rare case that a difference has to be reported.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

from abstain.core.codes import Code
from abstain.core.contracts import Interaction, Review, Thumb
from abstain.core.errors import AbstainError
from abstain.core.json_lines import read_lines
from abstain.data.store.record_keys import Record, RecordKey, Stored, from_microseconds, interaction_identity, parse_key

CONTRACTS: dict[str, type[Stored]] = {"interactions": Interaction, "feedback": Thumb, "reviews": Review}

T = TypeVar("T")

BLOCK_ROWS = 20_000
"""Rows that are in memory together."""

_PACKED = struct.Struct("<16sqIQI")


class IndexedRow(NamedTuple):
    """A known row: digest of its content, moment (microseconds), and where its line lies."""

    content: bytes
    timestamp_us: int
    file: int
    offset: int
    length: int


class KeyIndex:
    """Identity -> `IndexedRow`. Rows are added file by file, in order of arrival; the first of an identity stays."""

    def __init__(self) -> None:
        self._entries: dict[bytes, bytes] = {}
        self._files: list[tuple[str, Path]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add_file(self, table: str, path: Path) -> None:
        """Add every line of `path`. Raises `AbstainError` naming file and line of an invalid one."""
        number = self.open_file(table, path)
        for line_number, (offset, text) in enumerate(read_lines(path), start=1):
            try:
                found = parse_key(table, text)
            except (ValueError, KeyError, TypeError, AttributeError):
                raise AbstainError(
                    Code.DAMAGED_DATA,
                    f"{path} line {line_number}: no row of {table}: restore data/ with `dvc checkout`",
                ) from None
            self.add(found, number, offset, len(text))

    def open_file(self, table: str, path: Path) -> int:
        """The number under which rows of `path` are added."""
        self._files.append((table, path))
        return len(self._files) - 1

    def add(self, row: RecordKey | Record, file: int, offset: int, length: int) -> None:
        self._entries.setdefault(row.identity, _PACKED.pack(row.content, row.timestamp_us, file, offset, length))

    def find(self, identity: bytes) -> IndexedRow | None:
        packed = self._entries.get(identity)
        return None if packed is None else IndexedRow(*_PACKED.unpack(packed))

    def asked_at(self, interaction_id: str) -> datetime | None:
        """When an interaction was asked; None where it is not known."""
        found = self.find(interaction_identity(interaction_id))
        return None if found is None else from_microseconds(found.timestamp_us)

    def read(self, entry: IndexedRow) -> Stored:
        """The row itself, read from its file."""
        table, path = self._files[entry.file]
        with path.open("rb") as file:
            file.seek(entry.offset)
            return CONTRACTS[table].model_validate_json(file.read(entry.length))


class IndexedWriter:
    """A file of one table that is being written: each row is in the index at once, and can be read after `flush`."""

    def __init__(self, path: Path, table: str, index: KeyIndex) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._index, self._number, self._file = index, index.open_file(table, path), path.open("wb")
        self.rows = 0

    def append(self, line: Record) -> None:
        self._index.add(line, self._number, self._file.tell(), len(line.line))
        self._file.write(line.line + b"\n")
        self.rows += 1

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        """Close the file once its bytes are on disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


def iter_batches(rows: Iterable[T], size: int) -> Iterator[list[T]]:
    """`rows` in lists of at most `size`."""
    iterator = iter(rows)
    while block := list(islice(iterator, size)):
        yield block
