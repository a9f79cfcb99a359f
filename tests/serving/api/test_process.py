"""The server as a process: killed under load, its versions exchanged under load, its memory over half an hour."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
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
from tests.serving.api.test_gate_route import ASKED
from tests.serving.builders import GUARANTEE, release

HALF_AN_HOUR = 30 * 60


@dataclass
class Load:
    """Requests of several threads: those that were acknowledged, by id, and what went wrong."""

    address: str
    per_second: float | None = None
    threads: int = 4
    acknowledged: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    @contextmanager
    def running(self) -> Iterator[None]:
        stop = threading.Event()
        threads = [threading.Thread(target=self._ask, args=(stop, at)) for at in range(self.threads)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def _ask(self, stop: threading.Event, thread: int) -> None:
        number = 0
        with httpx.Client(base_url=self.address, timeout=30) as client:
            while not stop.is_set():
                number += 1
                key = f"i-{thread}-{number}"
                try:
                    response = client.post("/v1/gate", json={**ASKED, "interaction_id": key})
                except httpx.HTTPError as error:
                    self.failed.append(f"{key}: {error!r}")
                    stop.wait(0.05)
                    continue
                if response.status_code == 200:
                    self.acknowledged[key] = response.json()["version"]
                else:
                    self.failed.append(f"{key}: {response.status_code} {response.text}")
                if self.per_second:
                    stop.wait(self.threads / self.per_second)


@pytest.fixture
def folder(tmp_path: Path, model: Path, settings: Settings) -> Path:
    root = tmp_path / "server"
    for minor in range(4):
        of = root / f"v1.{minor}.0"
        of.mkdir(parents=True)
        release(of, model, settings, version=of.name, guarantee=GUARANTEE)
    (root / "live").write_text("v1.0.0")
    return root


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


def kill_under_load(folder: Path, settings: Settings, seconds: float) -> int:
    """Kill a server that is asked; every decision that it has acknowledged must be in the log. Returns their number."""
    with serving(folder, settings) as (address, process):
        load = Load(address)
        with load.running():
            deadline = time.monotonic() + 20
            while len(load.acknowledged) < 20 and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(seconds)
            process.send_signal(signal.SIGKILL)
            process.wait()
    log = open_log(f"sqlite:///{folder / 'log.sqlite'}")
    lost = [key for key in load.acknowledged if queries.get_decision(log.database, key) is None]
    log.close()
    assert not lost
    return len(load.acknowledged)


@pytest.mark.slow
def test_what_was_acknowledged_survives_a_kill(folder: Path, settings: Settings) -> None:
    assert kill_under_load(folder, settings, 0.5) >= 20


@pytest.mark.soak(twin="test_what_was_acknowledged_survives_a_kill")
def test_what_was_acknowledged_survives_many_kills(folder: Path, settings: Settings) -> None:
    for number in range(15):
        assert kill_under_load(folder, settings, 0.1 * number) >= 20
        (folder / "log.sqlite").unlink()
        for name in ("log.sqlite-wal", "log.sqlite-shm"):
            (folder / name).unlink(missing_ok=True)


@pytest.mark.slow
def test_a_server_that_is_told_to_end_answers_what_it_has_begun(folder: Path, settings: Settings) -> None:
    with serving(folder, settings) as (address, process):
        load = Load(address)
        with load.running():
            while len(load.acknowledged) < 20:
                time.sleep(0.01)
            process.terminate()
            assert process.wait(30) in (0, -signal.SIGTERM)
        assert all("Connect" in one or "disconnected" in one for one in load.failed), load.failed[:3]
    log = open_log(f"sqlite:///{folder / 'log.sqlite'}")
    assert all(queries.get_decision(log.database, key) is not None for key in load.acknowledged)
    log.close()


@pytest.mark.soak(twin="test_a_new_version_takes_over_and_no_request_fails")
def test_versions_are_exchanged_under_load(folder: Path, settings: Settings) -> None:
    with serving(folder, settings) as (address, _):
        load = Load(address)
        with load.running():
            for number in range(60):
                (folder / "live").write_text(f"v1.{number % 4}.0")
                time.sleep(0.5)
        assert not load.failed and len(load.acknowledged) > 100
        assert set(load.acknowledged.values()) == {f"v1.{minor}.0" for minor in range(4)}


@pytest.mark.soak(twin="test_an_answer_is_decided_about_and_the_decision_is_in_the_log")
def test_memory_is_flat_under_half_an_hour_of_load(folder: Path, settings: Settings) -> None:
    with serving(folder, settings) as (address, process):
        load = Load(address, per_second=50)
        of_process = psutil.Process(process.pid)
        with load.running():
            time.sleep(120)  # pools, caches and the allocator have what they need
            before = of_process.memory_info().rss
            time.sleep(HALF_AN_HOUR - 120)
            after = of_process.memory_info().rss
        assert not load.failed and len(load.acknowledged) > 20 * HALF_AN_HOUR
        assert after < 1.05 * before, f"{before / 1e6:.1f} MB after two minutes, {after / 1e6:.1f} MB after thirty"
