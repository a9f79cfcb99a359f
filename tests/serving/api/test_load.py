import gc
import itertools
import json
import math
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from subprocess import PIPE, Popen

import httpx
import psutil
import pytest
from fastapi import FastAPI

from abstain.data.decision_log import queries
from abstain.serving.api.app import make_app
from abstain.serving.service.keys import ApiKeys
from tests.data.decision_log.builders import open_log, url_of
from tests.data.decision_log.test_log import wait_until
from tests.serving.clients import ASKED
from tests.serving.conftest import MakeService, Promote
from tests.serving.status_page.builders import listening

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
def app(make_service: MakeService, promote: Promote) -> FastAPI:
    promote()
    return make_app(make_service(caller={"rows_per_minute": 100_000}), ApiKeys())


@pytest.mark.heavy
def test_stopped_server_answers_begun_requests(app: FastAPI, tmp_path: Path) -> None:
    """Every decision that it has acknowledged is in the log."""
    with ExitStack() as server:
        load = Load(server.enter_context(listening(app)))
        with load.running():
            wait_until(lambda: len(load.acknowledged) >= 20)
            server.close()
    assert all("Connect" in error or "disconnected" in error for error in load.failed), load.failed[:3]
    with closing(open_log(url_of(tmp_path))) as log:
        assert [key for key in load.acknowledged if queries.get_decision(log.database, key) is None] == []


def read_memory() -> int:
    """Bytes that this process has in memory, without pages of files, which the kernel drops and reads as others need."""
    memory = psutil.Process().memory_info()
    return memory.rss - memory.shared


@pytest.mark.soak(twin="test_stopped_server_answers_begun_requests")
def test_memory_is_flat_under_half_an_hour_of_load(app: FastAPI) -> None:
    gc.set_threshold(700, 10, 10)  # Python's own, as a server has it: tests/conftest.py makes collections rare
    # Another process makes the requests: this one remembers none of them.
    command = [sys.executable, "-m", "tests.serving.api.test_load"]
    with listening(app) as address, Popen([*command, address, str(HALF_AN_HOUR)], stdout=PIPE) as load:
        time.sleep(120)  # pools, caches and the allocator have what they need
        before = read_memory()
        n_acknowledged, failed = json.loads(load.communicate()[0])
        after = read_memory()
    assert not failed and n_acknowledged > 20 * HALF_AN_HOUR
    assert after < 1.05 * before, f"{before / 1e6:.1f} MB after two minutes, {after / 1e6:.1f} MB after thirty"


def main() -> None:
    """Load the server at ADDRESS for SECONDS; print how many requests were acknowledged, and what went wrong."""
    address, seconds = sys.argv[1:]
    load = Load(address, per_second=50)
    with load.running():
        time.sleep(float(seconds))
    print(json.dumps([len(load.acknowledged), load.failed]))


if __name__ == "__main__":
    main()
