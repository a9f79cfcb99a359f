"""The server as a process: ended under load, and its memory over half an hour."""

import itertools
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from abstain.config.settings import Settings
from abstain.data.decision_log import queries
from tests.checkout import ROOT
from tests.data.decision_log.builders import open_log
from tests.data.decision_log.test_log import wait_until
from tests.serving.clients import ASKED
from tests.serving.conftest import MakeRelease

HALF_AN_HOUR = 30 * 60


class Load:
    """Requests of four threads: the ids of those that were acknowledged, and what went wrong."""

    def __init__(self, address: str, per_second: float = math.inf) -> None:
        self.address, self.pause_s, self.stop = address, 4 / per_second, threading.Event()
        self.acknowledged, self.failed = list[str](), list[str]()

    @contextmanager
    def running(self) -> Iterator[None]:
        with ThreadPoolExecutor(4) as pool:
            for thread in range(4):
                pool.submit(self._ask, thread)
            try:
                yield
            finally:
                self.stop.set()

    def _ask(self, thread: int) -> None:
        with httpx.Client(base_url=self.address, timeout=30) as client:
            for key in (f"i-{thread}-{number}" for number in itertools.count()):
                if self.stop.wait(self.pause_s):
                    return
                try:
                    client.post("/v1/gate", json={**ASKED, "interaction_id": key}).raise_for_status()
                    self.acknowledged.append(key)
                except httpx.HTTPError as error:
                    self.failed.append(f"{key}: {error!r}")
                    self.stop.wait(0.05)


@pytest.fixture
def folder(make_release: MakeRelease) -> Path:
    return make_release().parent.parent


@contextmanager
def serving(folder: Path, settings: Settings) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    own = {"ABSTAIN_HOME": str(settings.home), "ABSTAIN_DEVICE": "cpu", "ABSTAIN_DTYPE": "float32"}
    own["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    command = [sys.executable, "-m", "tests.serving.api.process", str(folder)]
    process = subprocess.Popen(command, env={**os.environ, **own}, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process
    finally:
        process.kill()
        process.wait()


def read_memory(process: psutil.Process) -> int:
    """Bytes that the process has in memory, without pages of files, which the kernel drops and reads as others need."""
    memory = process.memory_info()
    return memory.rss - memory.shared


@pytest.mark.soak(twin="test_acknowledged_rows_survive_a_kill_of_two_processes")
def test_terminate_answers_begun_requests(folder: Path, settings: Settings) -> None:
    """Every decision that the server has acknowledged is in the log."""
    with serving(folder, settings) as (address, process):
        load = Load(address)
        with load.running():
            wait_until(lambda: len(load.acknowledged) >= 20)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) in (0, -signal.SIGTERM)
    assert all("Connect" in error or "disconnected" in error for error in load.failed), load.failed[:3]
    with closing(open_log(f"sqlite:///{folder / 'log.sqlite'}")) as log:
        assert [key for key in load.acknowledged if queries.get_decision(log.database, key) is None] == []


@pytest.mark.soak(twin="test_gate_decides_and_logs")
def test_memory_is_flat_under_half_an_hour_of_load(folder: Path, settings: Settings) -> None:
    with serving(folder, settings) as (address, started):
        load, process = Load(address, per_second=50), psutil.Process(started.pid)
        with load.running():
            time.sleep(120)  # pools, caches and the allocator have what they need
            before = read_memory(process)
            time.sleep(HALF_AN_HOUR - 120)
            after = read_memory(process)
        assert not load.failed and len(load.acknowledged) > 20 * HALF_AN_HOUR
        assert after < 1.05 * before, f"{before / 1e6:.1f} MB after two minutes, {after / 1e6:.1f} MB after thirty"
