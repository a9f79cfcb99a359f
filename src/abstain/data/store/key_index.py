"""Index of stored rows by identity: small enough for millions of rows, exact enough to report why two differ.

A row takes about 230 bytes, independent of its content: its digests, its time, and the position of its line, which is
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
from abstain.data.store.record_keys import (
    Record,
    RecordKey,
    StoredRow,
    from_microseconds,
    make_interaction_identity,
    parse_key,
)

CONTRACTS: dict[str, type[StoredRow]] = {"interactions": Interaction, "feedback": Thumb, "reviews": Review}

T = TypeVar("T")

BLOCK_ROWS = 20_000
"""Maximum number of rows in memory at a time."""

_PACKED = struct.Struct("<16sqIQI")


class IndexedRow(NamedTuple):
    """The index entry of a row.

    Attributes:
        content: Digest of its content.
        timestamp_us: Its time in microseconds since 1970.
        file: Number of its file.
        offset: Offset of its line in bytes.
        length: Length of its line in bytes.
    """

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
        self._stored_files: set[int] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def add_file(self, table: str, path: Path) -> None:
        """Add every line of the file `path` of `table`.

        Raises:
            AbstainError: A line is invalid; the message names file and line.
        """
        file_number = self.open_file(table, path)
        self._stored_files.add(file_number)
        for line_number, (offset, text) in enumerate(read_lines(path), start=1):
            try:
                key = parse_key(table, text)
            except (ValueError, KeyError, TypeError, AttributeError):
                raise AbstainError(
                    Code.DAMAGED_DATA,
                    f"{path} line {line_number}: no row of {table}: restore data/ with `dvc checkout`",
                ) from None
            self.add(key, file_number, offset, len(text))

    def open_file(self, table: str, path: Path) -> int:
        """Register the file `path` of `table`, and return the number under which its rows are added."""
        self._files.append((table, path))
        return len(self._files) - 1

    def add(self, row: RecordKey | Record, file: int, offset: int, length: int) -> None:
        """Add a row, unless its identity is in the index already.

        Args:
            row: Its digests and its time.
            file: Number of its file.
            offset: Offset of its line in bytes.
            length: Length of its line in bytes.
        """
        self._entries.setdefault(row.identity, _PACKED.pack(row.content, row.timestamp_us, file, offset, length))

    def revise(self, row: Record, file: int, offset: int, length: int) -> Path:
        """Let a row take the place of the one with its identity.

        Args:
            row: The row.
            file: Number of its file.
            offset: Offset of its line in bytes.
            length: Length of its line in bytes.

        Returns:
            The file that holds the former row.
        """
        former = IndexedRow(*_PACKED.unpack(self._entries.pop(row.identity)))
        self.add(row, file, offset, length)
        return self._files[former.file][1]

    def is_stored(self, entry: IndexedRow) -> bool:
        """Return whether the row of an entry was there before the writers of this index."""
        return entry.file in self._stored_files

    def find(self, identity: bytes) -> IndexedRow | None:
        """Return the entry of an identity; None if there is none."""
        packed = self._entries.get(identity)
        return None if packed is None else IndexedRow(*_PACKED.unpack(packed))

    def get_asked_at(self, interaction_id: str) -> datetime | None:
        """Return the time at which an interaction was asked; None if it is not in the index."""
        entry = self.find(make_interaction_identity(interaction_id))
        return None if entry is None else from_microseconds(entry.timestamp_us)

    def read_row(self, entry: IndexedRow) -> StoredRow:
        """Read the row of an entry from its file."""
        return CONTRACTS[self._files[entry.file][0]].model_validate_json(self.read_line(entry))

    def read_line(self, entry: IndexedRow) -> bytes:
        """Read the line of an entry from its file."""
        with self._files[entry.file][1].open("rb") as file:
            file.seek(entry.offset)
            return file.read(entry.length)


class IndexedWriter:
    """A file of one table that is being written: each row is in the index at once, and readable after `flush`.

    Args:
        path: The new file.
        table: Name of its table.
        index: Index to which its rows are added.

    Attributes:
        path: The file.
        rows: Number of rows written.
    """

    def __init__(self, path: Path, table: str, index: KeyIndex) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._index, self._number, self._file = index, index.open_file(table, path), path.open("wb")
        self.rows = 0

    def append(self, line: Record) -> None:
        """Write a row and add it to the index."""
        self._index.add(line, self._number, self._file.tell(), len(line.line))
        self._file.write(line.line + b"\n")
        self.rows += 1

    def revise(self, line: Record) -> Path:
        """Write a row that takes the place of another one, and return the file that holds that."""
        former = self._index.revise(line, self._number, self._file.tell(), len(line.line))
        self._file.write(line.line + b"\n")
        self._file.flush()
        return former

    def flush(self) -> None:
        """Make the rows readable."""
        self._file.flush()

    def close(self) -> None:
        """Close the file after its bytes are on disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


def iter_batches(rows: Iterable[T], size: int) -> Iterator[list[T]]:
    """Divide rows into lists of at most `size` rows."""
    iterator = iter(rows)
    while block := list(islice(iterator, size)):
        yield block
