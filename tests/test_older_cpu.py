from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import older_cpu

PLAIN = {"torch": "AVX2", "oneDNN": "Intel AVX2", older_cpu.DTYPE: "bfloat16", older_cpu.TO_DISABLE: "X86_V3"}
TELL = """
import os, pathlib, sys
names = ("OMP_NUM_THREADS", "OPENBLAS_CORETYPE", "ABSTAIN_DTYPE", "NPY_DISABLE_CPU_FEATURES")
told = [os.environ[name] for name in names]
pathlib.Path(sys.argv[1], told[0]).write_text(" ".join(told))
sys.exit(3 if told[0] == sys.argv[2] else 0)
"""


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, older: dict[str, str], failing: str = "") -> int:
    """Of a machine that reports `PLAIN`, and `older` where it is told to be one; the run with `failing` threads fails."""
    monkeypatch.setattr(older_cpu, "reported", lambda given: dict(older if "ATEN_CPU_CAPABILITY" in given else PLAIN))
    return older_cpu.main([sys.executable, "-c", TELL, str(folder), failing])


def test_older_cpu_runs_with_one_thread_and_with_two(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older = PLAIN | {"torch": "DEFAULT", older_cpu.DTYPE: "float32"}
    assert run(monkeypatch, tmp_path, older) == 0
    told = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert told == {threads: f"{threads} Nehalem float32 X86_V3" for threads in ("1", "2")}
    printed = capsys.readouterr().out
    assert "AVX2 -> DEFAULT" in printed and "Intel AVX2 -> Intel AVX2" in printed


@pytest.mark.parametrize("threads", ["1", "2"])
def test_older_cpu_either_run_failing_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, threads: str) -> None:
    assert run(monkeypatch, tmp_path, PLAIN | {"oneDNN": "Intel SSE4.1"}, failing=threads) == 3


def test_older_cpu_that_no_library_reports_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(monkeypatch, tmp_path, PLAIN | {older_cpu.DTYPE: "float32"}) == 1
    assert not list(tmp_path.iterdir()), "the tests were run all the same"
