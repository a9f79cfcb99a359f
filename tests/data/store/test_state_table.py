import errno
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.data.store.state_table import StateTable, write_table

D = 5
LENGTHS = [4, 0, 1, 7, 0, 2]


def make_rows(lengths: list[int], dtype: torch.dtype = torch.float32, width: int = D) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [(10 * torch.randn(length, width, generator=generator)).to(dtype) for length in lengths]


ROWS = make_rows(LENGTHS)


def write(file: Path, rows: list[Tensor] = ROWS, order: list[int] | None = None, model: str = "bank@1") -> Path:
    arriving = ((i, rows[i]) for i in (range(len(rows)) if order is None else order))
    write_table(file, [len(row) for row in rows], rows[0].shape[1], rows[0].dtype, arriving, model)
    return file


def are_equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "artifacts" / "features.npy"


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=8),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.sampled_from(["bank@1", "größe/m@é", ""]),
    st.integers(1, 9),
    st.randoms(use_true_random=False),
)
def test_write_table_round_trip_as_numpy_arrays(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], dtype: torch.dtype, model: str, width: int, random
) -> None:
    file = tmp_path_factory.mktemp("table") / "features.npy"
    rows = make_rows(lengths, dtype, width)
    order = list(range(len(rows)))
    random.shuffle(order)
    table = StateTable(write(file, [row.T.contiguous().T for row in rows], order, model))
    assert are_equal(list(table), [row.float() for row in rows])
    assert all(row.dtype == torch.float32 for row in table)
    assert (table.lengths.tolist(), table.width, table.model) == (lengths, width, model)
    assert table.lengths.dtype == np.int64
    bits = np.uint16 if dtype == torch.bfloat16 else np.float32
    with file.open("rb") as opened:
        described, offsets, states = (np.load(opened) for _ in range(3))
    assert described.tolist() == [model, str(dtype)]
    assert offsets.tolist() == [0, *np.cumsum(lengths)]
    assert states.dtype == bits and torch.equal(torch.from_numpy(states).view(dtype), torch.cat(rows))


def test_state_table_index_slice_list_or_subset(file: Path) -> None:
    table = StateTable(write(file))
    assert len(table) == 6
    table[0].zero_()  # a copy
    assert torch.equal(table[-1], ROWS[5]) and torch.equal(table[np.int64(3)], ROWS[3])
    assert are_equal(table[1:4], ROWS[1:4]) and are_equal(table[::-2], ROWS[::-2]) and table[6:] == []
    assert are_equal(table.read_rows([5, 0, 5]), [ROWS[5], ROWS[0], ROWS[5]])
    for read in (lambda: table[6], lambda: table[-7], lambda: table.read_rows([6])):
        with pytest.raises(IndexError):
            read()

    chosen = table.subset(np.array([3, 0, 2]))
    assert are_equal(list(chosen), [ROWS[3], ROWS[0], ROWS[2]]) and are_equal(chosen[1:], [ROWS[0], ROWS[2]])
    assert (chosen.lengths.tolist(), chosen.width, chosen.model) == ([7, 4, 1], D, "bank@1")
    assert are_equal(list(chosen.subset([2, 0])), [ROWS[2], ROWS[3]]) and len(chosen.subset([])) == 0


def test_write_table_empty_rows_are_optional(file: Path, tmp_path: Path) -> None:
    assert write(file, order=[5, 3, 0, 2]).read_bytes() == write(tmp_path / "whole").read_bytes()
    nothing = StateTable(write(tmp_path / "nothing", make_rows([0, 0]), []))
    assert [tuple(row.shape) for row in nothing] == [(0, D), (0, D)]


@pytest.mark.parametrize(
    ("arriving", "problem"),
    [
        ([(0, torch.zeros(2, D))], "1 of 2 rows never came, row 1 first"),
        ([(0, torch.zeros(2, D)), (0, torch.zeros(2, D))], "row 0 came twice"),
        ([(2, torch.zeros(2, D))], "row 2 of 2 came"),
        ([(-1, torch.zeros(2, D))], "row -1 of 2 came"),
        ([(0, torch.zeros(1, D))], r"row 0 is \(1, 5\) of torch.float32, not \(2, 5\)"),
        ([(1, torch.zeros(2, D + 1))], r"row 1 is \(2, 6\)"),
        ([(1, torch.zeros(2, D, dtype=torch.bfloat16))], "of torch.bfloat16, not .* of torch.float32"),
    ],
)
def test_write_table_misfit_row_keeps_old_file(file: Path, arriving: list[tuple[int, Tensor]], problem: str) -> None:
    before = write(file).read_bytes()
    with pytest.raises(ValueError, match=problem):
        write_table(file, [2, 2], D, torch.float32, arriving, "m")
    with pytest.raises(ValueError, match="torch.float64"):
        write_table(file, [2, 2], D, torch.float64, arriving, "m")
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), AbstainError(Code.NO_MODEL, "no model"), OSError(errno.ENOSPC, "the cache's disk")]
)
def test_write_table_failing_rows_leave_nothing(file: Path, error: BaseException) -> None:
    def fail() -> Iterator[tuple[int, Tensor]]:
        yield 0, torch.zeros(2, D)
        raise error

    with pytest.raises(type(error)) as caught:
        write_table(file, [2, 2], D, torch.float32, fail(), "m")
    assert caught.value is error, "a full disk elsewhere is not this one"
    assert list(file.parent.iterdir()) == []


@pytest.mark.parametrize("call", ["posix_fallocate", "pwrite", "fsync"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_write_table_full_disk_raises(file: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int) -> None:
    def compute_rows() -> Iterator[tuple[int, Tensor]]:
        assert call != "posix_fallocate", "a row was computed"
        yield 0, torch.zeros(2, D)

    monkeypatch.setattr(os, call, Mock(side_effect=OSError(number, os.strerror(number))))
    full = f"{file.parent} has no room for {file.name}"
    with pytest.raises(AbstainError, match=full, check=lambda error: error.code is Code.NOT_WRITABLE):
        write_table(file, [2], D, torch.float32, compute_rows(), "m")
    assert list(file.parent.iterdir()) == []


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL])
def test_write_table_short_writes_give_same_file(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    expected, whole = write(tmp_path / "plain").read_bytes(), os.pwrite
    reserve = Mock(side_effect=OSError(number, os.strerror(number)))
    monkeypatch.setattr(os, "pwrite", lambda descriptor, content, at: whole(descriptor, content[:3], at))
    monkeypatch.setattr(os, "posix_fallocate", reserve)
    assert write(file).read_bytes() == expected
    assert reserve.call_args.args[1:] == (0, len(expected)), "a file system that reserves nothing was asked for it"


def test_state_table_reads_opened_file(file: Path) -> None:
    table, changed = StateTable(write(file)), [-row for row in ROWS]
    file.with_name(f".{file.name}.part").write_bytes(bytes(10_000))  # what a killed process has left
    write(file, changed)
    assert list(file.parent.iterdir()) == [file]
    newer = StateTable(file)
    assert are_equal(list(table), ROWS) and are_equal(list(newer), changed)
    os.truncate(file, file.stat().st_size - 8)
    assert torch.equal(newer[0], changed[0])
    with pytest.raises(AbstainError, match="no readable table"):
        newer[5]


def change_array(number: int, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[bytes], bytes]:
    """Replace one of a file's three arrays."""

    def damage(whole: bytes) -> bytes:
        content, out = io.BytesIO(whole), io.BytesIO()
        for at in range(3):
            array = np.load(content)
            np.save(out, change(array) if at == number else array)
        return out.getvalue()

    return damage


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "huge header": lambda whole: whole[:8] + b"\xff\xff" + whole[10:],
    "unfinished header": lambda whole: whole.replace(b"}", b"(", 1),
    "cut short": lambda whole: whole[:-1],
    "too long": lambda whole: whole + b"\0",
    "no model": change_array(0, lambda described: described[1:]),
    "an unknown dtype": change_array(0, lambda described: np.array([described[0], "torch.float64"])),
    "another dtype": change_array(0, lambda described: np.array([described[0], "torch.bfloat16"])),
    "a flat shape": change_array(2, np.ravel),
    "states by columns": change_array(2, np.asfortranarray),
    "too many rows": lambda whole: whole.replace(b"(7,)", b"(9" + b"9" * 18 + b",)", 1),
    "no offsets": change_array(1, lambda offsets: offsets[:0]),
    "offsets of another type": change_array(1, lambda offsets: offsets.astype(float)),
    "offsets that end elsewhere": change_array(1, lambda offsets: np.array([*offsets[:-1], 13])),
    "offsets that begin elsewhere": change_array(1, lambda offsets: np.array([1, *offsets[1:]])),
    "offsets that fall": change_array(1, lambda offsets: np.array([0, 4, 13, *offsets[3:]])),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_state_table_damaged_file_raises(file: Path, damage: str) -> None:
    with pytest.raises(AbstainError, match="features.npy is missing"):
        StateTable(file)
    whole = write(file).read_bytes()
    file.write_bytes(DAMAGE[damage](whole))
    assert file.read_bytes() != whole
    with pytest.raises(AbstainError, match="features.npy is no readable table of states"):
        StateTable(file)


WALK = """
import json, re, sys
from pathlib import Path
import torch
from abstain.data.store.state_table import StateTable, write_table
from abstain.learning.estimators.probes.base import predict_logits
from abstain.learning.estimators.probes.lstm import LSTMProbe

def measure(work):
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    work()
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

def walk():
    for at in range(0, rows, 32):
        batch = table[at : at + 32]

rows, length, width = 2000, 13, 4096  # 203 MiB
file = Path(sys.argv[1])
torch.set_num_threads(1)
row = torch.ones(length, width).bfloat16()
arriving = ((index, row) for index in reversed(range(rows)))
probe = LSTMProbe(width, 8, 0.0)
predict_logits(probe, [row.float()] * 300)
peaks = [measure(int), measure(lambda: write_table(file, [length] * rows, width, torch.bfloat16, arriving, "m"))]
table = StateTable(file)
part = table.subset(range(0, rows, 4))
peaks += [measure(walk), measure(lambda: probe.fit_standardization(part)), measure(lambda: predict_logits(probe, part))]
print(json.dumps([file.stat().st_size, *(peak - peaks[0] for peak in peaks[1:])]))
"""


@pytest.mark.heavy
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the system does not say what was resident")
def test_state_table_memory_is_bounded_by_batch(tmp_path: Path) -> None:
    """Measured in a process of its own, including mapped pages."""
    done = subprocess.run(
        [sys.executable, "-c", WALK, str(tmp_path / "big")], capture_output=True, text=True, timeout=300, check=False
    )
    (tmp_path / "big").unlink(missing_ok=True)
    assert done.returncode == 0, done.stderr
    size, wrote, walked, standardized, predicted = json.loads(done.stdout)
    assert size > 200 * 2**20
    assert max(wrote, walked, standardized) < 32 * 2**20, done.stdout
    assert predicted < 128 * 2**20, "a batch of 256 rows in float32 is 54 MB"


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system does not say what is read")
def test_state_table_reads_only_requested_rows(tmp_path: Path) -> None:
    """Training reads rows in random order; read-ahead around each would be most of the file."""

    def read() -> int:
        return int(Path("/proc/self/io").read_text().split("\nread_bytes: ")[1].split()[0])

    rows, length, width = 1000, 4, 4096
    row = torch.ones(length, width).bfloat16()
    write_table(tmp_path / "big", [length] * rows, width, torch.bfloat16, ((i, row) for i in range(rows)), "m")
    table = StateTable(tmp_path / "big")
    with (tmp_path / "big").open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before = read()
    for index in range(0, rows, 20):
        assert table[rows - 1 - index].sum() == length * width
    table.read_rows(range(5, rows, 20))
    assert read() - before < 2 * 2 * (rows // 20) * row.nbytes
