"""The server as a process: killed and ended under load, and its memory over half an hour."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import pytest

from abstain.config.settings import Settings
from abstain.data.decision_log import queries
from tests.checkout import ROOT
from tests.data.decision_log.builders import open_log
from tests.serving.builders import GUARANTEE, release
from tests.serving.clients import ASKED

HALF_AN_HOUR = 30 * 60


@dataclass
class Load:
    """Requests of several threads: the ids of those that were acknowledged, and what went wrong."""

    address: str
    per_second: float | None = None
    threads: int = 4
    acknowledged: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @contextmanager
    def running(self) -> Iterator[None]:
        stop = threading.Event()
        with ThreadPoolExecutor(self.threads) as pool:
            for thread in range(self.threads):
                pool.submit(self._ask, stop, thread)
            try:
                yield
            finally:
                stop.set()

    def _ask(self, stop: threading.Event, thread: int) -> None:
        with httpx.Client(base_url=self.address, timeout=30) as client:
            for key in (f"i-{thread}-{number}" for number in itertools.count()):
                if stop.wait(self.threads / self.per_second if self.per_second else 0):
                    return
                try:
                    client.post("/v1/gate", json={**ASKED, "interaction_id": key}).raise_for_status()
                    self.acknowledged.append(key)
                except httpx.HTTPError as error:
                    self.failed.append(f"{key}: {error!r}")
                    stop.wait(0.05)

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + 20
        while len(self.acknowledged) < count and time.monotonic() < deadline:
            time.sleep(0.01)


@pytest.fixture
def folder(tmp_path: Path, model: Path, settings: Settings) -> Path:
    release(tmp_path / "server" / "v1.0.0", model, settings, version="v1.0.0", guarantee=GUARANTEE)
    return tmp_path / "server"


@contextmanager
def serving(folder: Path, settings: Settings) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    own = {
        "ABSTAIN_HOME": str(settings.home),
        "ABSTAIN_DEVICE": "cpu",
        "ABSTAIN_DTYPE": "float32",
        "ABSTAIN_SERVE_CALLER__ROWS_PER_MINUTE": "100000",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    }
    command = [sys.executable, "-m", "tests.serving.api.process", str(folder)]
    process = subprocess.Popen(command, env={**os.environ, **own}, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process
    finally:
        process.kill()
        process.wait()


def find_lost(folder: Path, load: Load) -> list[str]:
    """The acknowledged decisions that are not in the log."""
    log = open_log(f"sqlite:///{folder / 'log.sqlite'}")
    lost = [key for key in load.acknowledged if queries.get_decision(log.database, key) is None]
    log.close()
    return lost


def kill_under_load(folder: Path, settings: Settings, seconds: float) -> None:
    """Kill a server that is asked; every decision that it has acknowledged must be in the log."""
    with serving(folder, settings) as (address, process):
        load = Load(address)
        with load.running():
            load.wait_for(20)
            time.sleep(seconds)
            process.kill()
            process.wait()
    assert find_lost(folder, load) == [] and len(load.acknowledged) >= 20


@pytest.mark.slow
def test_kill_loses_no_acknowledged_decision(folder: Path, settings: Settings) -> None:
    kill_under_load(folder, settings, 0.5)


@pytest.mark.soak(twin="test_kill_loses_no_acknowledged_decision")
def test_many_kills_lose_no_acknowledged_decision(folder: Path, settings: Settings) -> None:
    for number in range(15):
        kill_under_load(folder, settings, 0.1 * number)
        for file in folder.glob("log.sqlite*"):
            file.unlink()


@pytest.mark.slow
def test_terminate_answers_begun_requests(folder: Path, settings: Settings) -> None:
    with serving(folder, settings) as (address, process):
        load = Load(address)
        with load.running():
            load.wait_for(20)
            process.terminate()
            assert process.wait(30) in (0, -signal.SIGTERM)
        assert all("Connect" in error or "disconnected" in error for error in load.failed), load.failed[:3]
    assert find_lost(folder, load) == [] and load.acknowledged


@pytest.mark.soak(twin="test_gate_decides_and_logs")
def test_memory_is_flat_under_half_an_hour_of_load(folder: Path, settings: Settings) -> None:
    with serving(folder, settings) as (address, started):
        load, process = Load(address, per_second=50), psutil.Process(started.pid)
        with load.running():
            time.sleep(120)  # pools, caches and the allocator have what they need
            before = process.memory_info().rss
            time.sleep(HALF_AN_HOUR - 120)
            after = process.memory_info().rss
        assert not load.failed and len(load.acknowledged) > 20 * HALF_AN_HOUR
        assert after < 1.05 * before, f"{before / 1e6:.1f} MB after two minutes, {after / 1e6:.1f} MB after thirty"
