"""The features as a table of ragged rows: one safetensors file that is written and read a row at a time.

Notes:

* The file equals the output of `safetensors.torch.save` for `states` (tokens of all rows, d) and `offsets` (rows + 1),
  byte for byte, but each row is written straight to its place: rows come in any order and only one is in memory.
* A read maps the file, copies its rows and unmaps: pages of a permanent map would accumulate in the process until all
  of the file is resident. A process holds, and reads from disk, only the requested rows.
* A row may be empty: an answer whose prompt the base model could not read. It keeps its place, so that rows of the
  table are rows of the data set.
"""

from __future__ import annotations

import errno
import fcntl
import json
import mmap
import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import open_temporary

DTYPES = {torch.bfloat16: "BF16", torch.float32: "F32"}
STORED: dict[str, tuple[type[np.generic], torch.dtype]] = {
    "BF16": (np.int16, torch.bfloat16),  # numpy has no bfloat16: its bits travel as integers
    "F32": (np.float32, torch.float32),
}
SIZE = 8  # bytes of the header's length, of an offset, and what safetensors aligns to
AGAIN = "run `abstain retrain` again"


def write_table(
    file: Path,
    lengths: Sequence[int],
    width: int,
    dtype: torch.dtype,
    rows: Iterable[tuple[int, Tensor]],
    model: str,
) -> None:
    """Write `file` whole or not at all: row i of `rows`, (i, (lengths[i], width) tensor of `dtype`), in any order.

    Equal rows are equal bytes, in any order of arrival. Host memory: one row. Empty rows need not come.

    Args:
        lengths: tokens of every row; 0 for one that could not be read.
        dtype: bfloat16 or float32, as the states were computed.
        model: `name@revision` of the base model. It is the only metadata entry: safetensors writes several in no
            fixed order.

    Raises `AbstainError` when the disk is full, `ValueError` for a row that is missing, doubled, unknown or not of
    its shape or dtype; what `rows` raises passes through. Nothing is left behind in any of these cases.
    """
    if dtype not in DTYPES:
        raise ValueError(f"states of {dtype} have no place in the table: {' or '.join(map(str, DTYPES))}")
    offsets = np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64))]).astype("<i8")
    head = _header(offsets, width, dtype, model) + offsets.tobytes()
    token = width * dtype.itemsize
    size = len(head) + int(offsets[-1]) * token
    file.parent.mkdir(parents=True, exist_ok=True)
    _sweep(file)
    with _room(file, size):
        descriptor, temporary = open_temporary(file.parent, _scratch(file))
    try:
        with suppress(OSError):  # a file system without locks: then no process sweeps, either
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with _room(file, size):
            _reserve(descriptor, size)
            _write(descriptor, memoryview(head), 0)
        todo = np.diff(offsets) > 0
        seen = np.zeros(len(todo), bool)
        for index, row in rows:
            if not 0 <= index < len(seen):
                raise ValueError(f"row {index} of {len(seen)} came")
            if seen[index]:
                raise ValueError(f"row {index} came twice")
            if row.shape != (lengths[index], width) or row.dtype != dtype:
                raise ValueError(
                    f"row {index} is {tuple(row.shape)} of {row.dtype}, not {(int(lengths[index]), width)} of {dtype}"
                )
            seen[index] = True
            if todo[index]:
                bits = row.detach().cpu().contiguous().view(torch.uint8).numpy()
                with _room(file, size):
                    _write(descriptor, bits.reshape(-1).data, len(head) + int(offsets[index]) * token)
        if (todo & ~seen).any():
            missing = np.flatnonzero(todo & ~seen)
            raise ValueError(f"{len(missing)} of {len(seen)} rows never came, row {missing[0]} first")
        with _room(file, size):
            os.fsync(descriptor)
        temporary.replace(file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself must survive a power cut, too
    finally:
        os.close(folder)


class StateTable(Sequence[Tensor]):
    """The rows of a file that `write_table` wrote, or some of them: each float32 (length, d), read on access.

    The file as it was when opened is read, even if a newer one has taken its name since.

    Attributes:
        lengths: int64 (rows,), tokens of every row; known without reading one.
        width: d.
        model: `name@revision` of the base model that the states are of.

    Raises `AbstainError` for a file that is missing or damaged.
    """

    lengths: np.ndarray
    width: int
    model: str

    def __init__(self, file: Path) -> None:
        self._source = _Source(file)
        self.model, self.width = self._source.model, self._source.width
        self._starts, self.lengths = self._source.offsets[:-1], np.diff(self._source.offsets)

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> list[Tensor]: ...
    def __getitem__(self, index: int | slice) -> Tensor | list[Tensor]:
        """One row, or the list of a slice's rows: a slice is a batch, and is read."""
        if isinstance(index, slice):
            return self.take(range(len(self))[index])
        return self.take([range(len(self))[index]])[0]

    def take(self, indices: Iterable[int]) -> list[Tensor]:
        """The rows of `indices`, in their order, by one map."""
        chosen = np.fromiter(indices, np.int64)
        return self._source.read(self._starts[chosen], self.lengths[chosen])

    def subset(self, indices: Iterable[int]) -> StateTable:
        """The rows of `indices`, in their order, as a table of their own. Nothing is read."""
        chosen = np.fromiter(indices, np.int64)
        view = object.__new__(StateTable)
        view._source, view.model, view.width = self._source, self.model, self.width
        view._starts, view.lengths = self._starts[chosen], self.lengths[chosen]
        return view


class _Source:
    """An open file of the table: where its rows lie, and how they are read."""

    def __init__(self, file: Path) -> None:
        self._file = file
        try:
            self._descriptor = os.open(file, os.O_RDONLY)
        except FileNotFoundError:
            raise AbstainError(Code.BAD_ARTIFACT, f"{file} is missing: run `abstain retrain`") from None
        weakref.finalize(self, os.close, self._descriptor)
        try:
            self._parse()
        except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError):
            raise self._damaged() from None

    def _parse(self) -> None:
        total = os.fstat(self._descriptor).st_size
        size = int.from_bytes(os.pread(self._descriptor, SIZE, 0), "little")
        if not 0 < size <= total - SIZE:
            raise ValueError("header")
        header = json.loads(os.pread(self._descriptor, size, SIZE))
        states, offsets = header["states"], header["offsets"]
        tokens, self.width = (_count(n) for n in states["shape"])
        (rows_and_one,) = (_count(n) for n in offsets["shape"])
        self._bits, self._dtype = STORED[states["dtype"]]
        self.model = str(header["__metadata__"]["model"])
        self._payload, end = (SIZE + size + _count(n) for n in states["data_offsets"])
        first, last = (SIZE + size + _count(n) for n in offsets["data_offsets"])
        if offsets["dtype"] != "I64" or last - first != rows_and_one * SIZE or last > total:
            raise ValueError("offsets")
        if end - self._payload != tokens * self.width * self._dtype.itemsize or max(end, last) != total:
            raise ValueError("states")  # a file that was cut short, too
        self.offsets = np.frombuffer(os.pread(self._descriptor, last - first, first), "<i8").astype(np.int64)
        if self.offsets[0] != 0 or self.offsets[-1] != tokens or (np.diff(self.offsets) < 0).any():
            raise ValueError("offsets")

    def read(self, starts: np.ndarray, lengths: np.ndarray) -> list[Tensor]:
        """Rows of `lengths` tokens from the tokens `starts` on, each float32 (length, d) and a copy."""
        rows = []
        # Read-only: a private writable map would be counted as allocated memory, and refused by size.
        with mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ) as mapped:
            token = self.width * self._dtype.itemsize
            places = [(self._payload + a * token, n) for a, n in zip(starts.tolist(), lengths.tolist(), strict=True)]
            # Exactly the rows: what a system reads around every page that it misses is many times a row, and rows
            # in training are far apart.
            mapped.madvise(mmap.MADV_RANDOM)
            for at, length in places:
                first = at - at % mmap.PAGESIZE
                if length and at < len(mapped):
                    mapped.madvise(mmap.MADV_WILLNEED, first, at + length * token - first)
            for at, length in places:
                try:
                    bits = np.frombuffer(mapped, self._bits, length * self.width, at).copy()
                except ValueError:  # shorter than when it was opened
                    raise self._damaged() from None
                rows.append(torch.from_numpy(bits).view(self._dtype).reshape(length, self.width).float())
        return rows

    def _damaged(self) -> AbstainError:
        return AbstainError(Code.BAD_ARTIFACT, f"{self._file} is no readable table of states: {AGAIN}")


def _header(offsets: np.ndarray, width: int, dtype: torch.dtype, model: str) -> bytes:
    """Length and JSON of a safetensors header, laid out as safetensors itself does: the wider type first."""
    end = len(offsets) * SIZE
    described: dict[str, Any] = {
        "__metadata__": {"model": model},
        "offsets": {"dtype": "I64", "shape": [len(offsets)], "data_offsets": [0, end]},
        "states": {
            "dtype": DTYPES[dtype],
            "shape": [int(offsets[-1]), width],
            "data_offsets": [end, end + int(offsets[-1]) * width * dtype.itemsize],
        },
    }
    text = json.dumps(described, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % SIZE)
    return len(text).to_bytes(SIZE, "little") + text


def _count(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError("a header's number")
    return value


def _scratch(file: Path) -> str:
    return f".{file.name}."


def _sweep(file: Path) -> None:
    """Remove scratch files of killed runs beside `file`: as large as the table, and not locked by a live process."""
    for left in file.parent.glob(f"{_scratch(file)}*"):
        with suppress(OSError), left.open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()


def _reserve(descriptor: int, size: int) -> None:
    """Reserve the file's size: a disk that is too small fails before the first row is computed, not at the last."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except AttributeError:  # a system without it
        os.truncate(descriptor, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # a file system without it
            raise
        os.truncate(descriptor, size)


def _write(descriptor: int, content: memoryview, at: int) -> None:
    # Not through a map: a full disk is an error here, and a signal that ends the process there.
    done = 0
    while done < len(content):
        done += os.pwrite(descriptor, content[done:], at + done)


@contextmanager
def _room(file: Path, size: int) -> Iterator[None]:
    """A full disk as a one-line error that names the folder."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise AbstainError(
            Code.NOT_WRITABLE,
            f"{file.parent.absolute()} has no room for {file.name} ({size / 2**30:.2f} GiB): free some, and {AGAIN}",
        ) from None
