"""Automations on `make up`, with real processes that are killed.

A stub of the retrain sleeps. An alert may come twice here, because Prefect repeats what it was at if SQLite
is locked for long.
"""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from abstain_tasks.server.addresses import KEY, post
from abstain_tasks.server.automation_sync import remove_rerun_automation, sync_automations
from tests.conftest import SERVER_KEY, Up, new_project, processes_of
from tests.ports import free_port
from tests.tasks.receiver import Receiver
from tests.tasks.server.test_server import find_process, wait_until

RETRAIN = """
import os
import time
from pathlib import Path
from prefect import flow

@flow(validate_parameters=False)
def retrain(promote: bool = True):
    with (Path(os.environ["ABSTAIN_HOME"]) / "pids").open("a") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(6000)
"""


@dataclass(frozen=True)
class Server:
    up: Up
    url: str

    def start(self) -> None:
        """Prefect allows no more heartbeats than this: a run that is killed with its worker is lost after 90 s."""
        done = self.up.call("up", self.url, PREFECT_FLOWS_HEARTBEAT_FREQUENCY="30")
        assert done.returncode == 0 and "secret" not in done.stdout, done.stdout + done.stderr

    def start_retrain(self) -> None:
        (deployment,) = post(f"{self.up.api}/deployments/filter", {"flows": {"name": {"any_": ["retrain"]}}})
        wait_until(lambda: self._accepts(f"{self.up.api}/deployments/{deployment['id']}/create_flow_run"))

    def _accepts(self, path: str) -> bool:
        """A server whose database is busy answers 503, upon which Prefect's own clients ask again, too."""
        try:
            post(path, {})
        except HTTPError as error:
            assert error.code == 503
            return False
        return True

    def list_runs(self) -> list[dict[str, Any]]:
        runs = post(f"{self.up.api}/flow_runs/filter", {"flows": {"name": {"any_": ["retrain"]}}})
        return [run for run in runs if not run["auto_scheduled"]]

    def count_states(self) -> Counter[str]:
        return Counter(run["state"]["name"] for run in self.list_runs())

    def read_pids(self) -> list[int]:
        file = self.up.project.home / "pids"
        return [int(line) for line in file.read_text().split()] if file.exists() else []


@pytest.fixture
def webhook() -> Iterator[Receiver]:
    with Receiver(statuses=[500, 503]) as webhook:
        yield webhook
        webhook.shutdown()


@pytest.fixture
def server(tmp_path: Path, webhook: Receiver, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    project = replace(new_project(tmp_path), warm=False)
    (project.root / "flows" / "retrain.py").write_text(RETRAIN)
    project.git("commit", "-qam", "A retrain that waits")
    (project.home / "server.key").write_text(SERVER_KEY)
    monkeypatch.setenv(KEY, SERVER_KEY)
    server = Server(Up(project, free_port(), free_port(), free_port()), webhook.url)
    try:
        server.start()
        yield server
    finally:
        server.up.call("down")
    assert processes_of(project) == []


@pytest.mark.slow
@pytest.mark.soak(twin="test_automations_act_once_per_event")
def test_automations_rerun_killed_run_once_and_alert(server: Server, webhook: Receiver) -> None:
    server.start_retrain()
    for number in (1, 2):
        wait_until(lambda: len(server.read_pids()) == number, 60)  # noqa: B023
        os.kill(server.read_pids()[-1], signal.SIGKILL)
        wait_until(lambda: server.count_states()["Crashed"] == number, 30)  # noqa: B023
    wait_until(lambda: len({text for text in webhook.texts if "crashed\nA504: Process exited" in text}) == 2, 60)
    assert webhook.statuses == [] and len(server.list_runs()) == 2, "it is not run a third time"

    # A worker that is killed with its run, on the next day: neither reports anything, and another worker is started.
    with temporary_settings({PREFECT_API_URL: server.up.api}):
        remove_rerun_automation()
        assert sync_automations(True, heartbeat=30) == "1 created, 7 unchanged"
    server.start_retrain()
    wait_until(lambda: len(server.read_pids()) == 3, 60)
    worker = find_process(server.up.project, "worker", "start", "local")
    together = [worker, *worker.children(recursive=True)]
    for process in together:  # none of them sees another one die
        process.suspend()
    for process in together:
        process.kill()
    wait_until(lambda: len(server.list_runs()) == 4 and len(server.read_pids()) == 4, 90)
    assert server.count_states()["Crashed"] == 3
    wait_until(lambda: any("its process gives no sign of life" in text for text in webhook.texts), 60)

    # A run that is stopped on purpose is not run again.
    assert server.up.call("down").returncode == 0
    server.start()
    assert server.count_states()["Crashed"] == 4 and len(server.list_runs()) == 4
