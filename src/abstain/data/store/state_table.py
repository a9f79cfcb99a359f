"""The features as a table of ragged rows: one file that is written and read a row at a time.

Notes:

* The file consists of three numpy arrays, one after the other, as `numpy.save` writes them to an open file: the base
  model and the dtype, the offsets (rows + 1), and the states (tokens of all rows, d). numpy has no bfloat16, so its
  bits are stored as integers.
* Rows arrive in any order, and only one is in memory. The file is not mapped: its pages would accumulate in the process
  until all of the file is resident. A process holds, and reads from disk, only the requested rows.
* A row may be empty: an answer whose prompt the base model could not read. It keeps its place, so that rows of the
  table are rows of the data set.
"""

from __future__ import annotations

import copy
import errno
import io
import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, overload

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from abstain.core.codes import Code
from abstain.core.errors import AbstainError

STORED_DTYPES = {torch.bfloat16: "<u2", torch.float32: "<f4"}
RETRAIN_HINT = "run `abstain retrain` again"


def write_table(
    file: Path,
    lengths: Sequence[int],
    width: int,
    dtype: torch.dtype,
    rows: Iterable[tuple[int, Tensor]],
    model: str,
) -> None:
    """Write a file completely or not at all. Equal rows are equal bytes, in any order of arrival.

    Only one process may write a file at a time; the next one overwrites what a killed one left.

    Args:
        file: The file.
        lengths: (rows,) tokens of every row; 0 for one that could not be read.
        width: d, the size of a state.
        dtype: bfloat16 or float32, as the states were computed.
        rows: (i, tensor of (lengths[i], width) and `dtype`) for every row i, in any order; empty rows may be omitted.
        model: `name@revision` of the base model.

    Raises:
        AbstainError: The disk is full; if the file system can reserve space, before the first row is computed.
        ValueError: A row is missing, repeated, unknown, or has another shape or dtype.
    """
    if dtype not in STORED_DTYPES:
        raise ValueError(f"states of {dtype} have no place in the table: {' or '.join(map(str, STORED_DTYPES))}")
    offsets = np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64))]).astype("<i8")
    shape = (int(offsets[-1]), width)
    head = io.BytesIO()
    npy.write_array(head, np.array([model, str(dtype)]))
    npy.write_array(head, offsets)
    npy.write_array_header_1_0(head, {"descr": STORED_DTYPES[dtype], "fortran_order": False, "shape": shape})
    token_bytes = width * dtype.itemsize
    size = head.tell() + shape[0] * token_bytes
    missing = np.diff(offsets) > 0
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(f".{file.name}.part")
    try:
        with scratch.open("wb") as out:
            descriptor = out.fileno()
            with _translate_full_disk(file, size):
                _reserve_space(descriptor, size)
                _write_at(descriptor, memoryview(head.getvalue()), 0)
            is_written = np.zeros(len(missing), bool)
            for index, row in rows:
                if not 0 <= index < len(is_written):
                    raise ValueError(f"row {index} of {len(is_written)} came")
                if is_written[index]:
                    raise ValueError(f"row {index} came twice")
                if row.shape != (lengths[index], width) or row.dtype != dtype:
                    expected = f"{(int(lengths[index]), width)} of {dtype}"
                    raise ValueError(f"row {index} is {tuple(row.shape)} of {row.dtype}, not {expected}")
                is_written[index] = True
                bits = row.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
                with _translate_full_disk(file, size):
                    _write_at(descriptor, bits, head.tell() + int(offsets[index]) * token_bytes)
            missing &= ~is_written
            if missing.any():
                raise ValueError(f"{missing.sum()} of {len(is_written)} rows never came, row {missing.argmax()} first")
            with _translate_full_disk(file, size):
                os.fsync(descriptor)
        scratch.replace(file)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def _reserve_space(descriptor: int, size: int) -> None:
    """Reserve the size of a file, so that a disk that is too small fails before the first row is computed."""
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # file systems that reserve nothing
            raise


def _write_at(descriptor: int, content: memoryview, offset: int) -> None:
    while content:  # a write may be short
        written = os.pwrite(descriptor, content, offset)
        content, offset = content[written:], offset + written


@contextmanager
def _translate_full_disk(file: Path, size: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise AbstainError(
            Code.NOT_WRITABLE,
            f"{file.parent.absolute()} has no room for {file.name} ({size / 2**30:.2f} GiB): "
            f"free some, and {RETRAIN_HINT}",
        ) from None


class StateTable(Sequence[Tensor]):
    """The rows of a file that `write_table` wrote, or some of them: each float32 (length, d), read on access.

    The file is read as it was when opened, even if a newer one has replaced it since.

    Args:
        file: The file.

    Attributes:
        lengths: (rows,) int64 tokens of every row; known without reading one.
        width: d, the size of a state.
        model: `name@revision` of the base model that computed the states.

    Raises:
        AbstainError: The file is missing or damaged.
    """

    lengths: np.ndarray
    width: int
    model: str
    _parent: StateTable

    def __init__(self, file: Path) -> None:
        self._path = file
        try:
            self._file = file.open("rb")
        except FileNotFoundError:
            raise AbstainError(Code.BAD_ARTIFACT, f"{file} is missing: run `abstain retrain`") from None
        weakref.finalize(self, self._file.close)
        try:
            self._parse(self._file)
        except Exception:  # numpy has no common base class for what can be wrong in a header
            raise self._make_damage_error() from None

    def _parse(self, file: BinaryIO) -> None:
        self.model, dtype = npy.read_array(file).tolist()
        offsets = npy.read_array(file)
        npy.read_magic(file)
        (tokens, self.width), is_by_columns, stored = npy.read_array_header_1_0(file)
        self._dtype = {str(dtype): dtype for dtype in STORED_DTYPES}[dtype]
        self._start, self._starts, self.lengths = file.tell(), offsets[:-1], np.diff(offsets)
        if stored != np.dtype(STORED_DTYPES[self._dtype]) or is_by_columns:
            raise ValueError("states")
        if os.fstat(file.fileno()).st_size != self._start + tokens * self.width * stored.itemsize:
            raise ValueError("the file was cut short, or is too long")
        if offsets.dtype != "<i8" or offsets[0] != 0 or offsets[-1] != tokens or (self.lengths < 0).any():
            raise ValueError("offsets")

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> list[Tensor]: ...
    def __getitem__(self, index: int | slice) -> Tensor | list[Tensor]:
        """Return one row, or the list of a slice's rows: a slice is a batch, and is read."""
        if isinstance(index, slice):
            return self.read_rows(range(len(self))[index])
        return self.read_rows([range(len(self))[index]])[0]

    def read_rows(self, indices: Iterable[int]) -> list[Tensor]:
        """Read rows.

        Args:
            indices: Numbers of the rows.

        Returns:
            float32 (length, d) tensors, in the order of `indices`.

        Raises:
            AbstainError: The file was cut since it was opened.
        """
        selected = np.fromiter(indices, np.int64)
        token_bytes, descriptor = self.width * self._dtype.itemsize, self._file.fileno()
        offsets = (self._start + self._starts[selected] * token_bytes).tolist()
        buffers = [bytearray(length * token_bytes) for length in self.lengths[selected].tolist()]
        if hasattr(os, "posix_fadvise"):
            # Exactly the rows: rows in training are far apart, and what a system reads ahead is many times a row.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            for offset, bits in zip(offsets, buffers, strict=True):
                os.posix_fadvise(descriptor, offset, len(bits) or 1, os.POSIX_FADV_WILLNEED)
        rows = []
        for offset, bits in zip(offsets, buffers, strict=True):
            if os.preadv(descriptor, [bits], offset) != len(bits):
                raise self._make_damage_error()  # the file was cut since it was opened
            states = torch.frombuffer(bits, dtype=self._dtype) if bits else torch.empty(0)
            rows.append(states.reshape(-1, self.width).float())
        return rows

    def subset(self, indices: Iterable[int]) -> StateTable:
        """Return a table of some rows; nothing is read.

        Args:
            indices: Numbers of the rows.

        Returns:
            The rows of `indices`, in their order.
        """
        selected = np.fromiter(indices, np.int64)
        view = copy.copy(self)
        view._parent = self  # whose end closes the file
        view._starts, view.lengths = self._starts[selected], self.lengths[selected]
        return view

    def _make_damage_error(self) -> AbstainError:
        return AbstainError(Code.BAD_ARTIFACT, f"{self._path} is no readable table of states: {RETRAIN_HINT}")
