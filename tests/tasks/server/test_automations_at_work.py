"""Automations on `make up`, with real processes that are killed.

A stub of the retrain waits for a file. An alert may come twice here, because Prefect repeats what it was at if SQLite
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

from abstain_tasks.server.addresses import KEY, post
from tests.conftest import SERVER_KEY, Project, Up, new_project, processes_of
from tests.ports import free_port
from tests.tasks.receiver import Receiver
from tests.tasks.server.test_server import find_process, wait_until

RETRAIN = """
import os
import time
from pathlib import Path
from prefect import flow
from abstain_tasks.runs.duplicate_runs import cancel_duplicate_runs

@flow(validate_parameters=False)
def retrain(promote: bool = True):
    cancel_duplicate_runs()
    home = Path(os.environ["ABSTAIN_HOME"])
    with (home / "pids").open("a") as file:
        file.write(f"{os.getpid()}\\n")
    while not (home / "go").exists():
        time.sleep(0.2)
"""
EMIT = "import sys; from abstain_tasks.runs.events import post_event; post_event(*sys.argv[1:])"
NEXT_DAY = "from abstain_tasks.server.automation_sync import remove_rerun_automation; remove_rerun_automation()"
APPLY = "from abstain_tasks.server.automation_sync import sync_automations; print(sync_automations(True, heartbeat=30))"


@dataclass(frozen=True)
class Server:
    """A project that is up, with a webhook."""

    up: Up
    url: str

    def start(self) -> None:
        """Prefect allows no more heartbeats than this: a run that is killed with its worker is lost after 90 s."""
        done = self.up.call("up", self.url, PREFECT_FLOWS_HEARTBEAT_FREQUENCY="30")
        assert done.returncode == 0 and "secret" not in done.stdout, done.stdout + done.stderr

    @property
    def project(self) -> Project:
        return replace(self.up.project, server=self.up.api)

    def python(self, code: str, *arguments: str) -> str:
        done = self.project.command(["python", "-c", code, *arguments])
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start_retrain(self) -> None:
        path = f"{self.up.api}/deployments/{self.list_runs()[0]['deployment_id']}/create_flow_run"
        wait_until(lambda: self._accepts(path))

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
        return sorted((run for run in runs if not run["auto_scheduled"]), key=lambda run: str(run["created"]))

    def count_states(self) -> Counter[str]:
        return Counter(run["state"]["name"] for run in self.list_runs())

    def read_pids(self) -> list[int]:
        file = self.project.home / "pids"
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
def test_automations_retrain_alert_and_rerun(server: Server, webhook: Receiver) -> None:
    for name, resource in (
        *[("abstain.reviews", "abstain.reviews.v1.0.0.1")] * 3,
        ("abstain.reviews", "abstain.reviews.v1.0.0.2"),
        ("abstain.drift", "abstain.drift"),
    ):
        server.python(EMIT, name, resource)
    wait_until(lambda: len(server.read_pids()) == 1 and len(server.list_runs()) == 3, 60)
    (server.project.home / "go").touch()  # until now one runs, and the others wait
    wait_until(lambda: server.count_states() == {"Completed": 2, "Superseded": 1}, 60)
    assert len(server.read_pids()) == 2

    (server.project.home / "go").unlink()
    (server.project.home / "pids").unlink()
    server.start_retrain()
    for number in (1, 2):
        wait_until(lambda: len(server.read_pids()) == number, 60)  # noqa: B023
        os.kill(server.read_pids()[-1], signal.SIGKILL)
        wait_until(lambda: server.count_states()["Crashed"] == number, 30)  # noqa: B023
    wait_until(lambda: len({text for text in webhook.texts if "crashed\nA504: Process exited" in text}) == 2, 60)
    assert webhook.statuses == [] and len(server.list_runs()) == 5, "it is not run a third time"

    # A worker that is killed with its run, on the next day: neither reports anything, and another worker is started.
    server.python(NEXT_DAY)
    assert server.python(APPLY) == "1 created, 7 unchanged\n"
    server.start_retrain()
    wait_until(lambda: len(server.read_pids()) == 3, 60)
    worker = find_process(server.project, "worker", "start", "local")
    together = [worker, *worker.children(recursive=True)]
    for process in together:  # none of them sees another one die
        process.suspend()
    for process in together:
        process.kill()
    wait_until(lambda: len(server.list_runs()) == 7 and len(server.read_pids()) == 4, 90)
    assert server.count_states()["Crashed"] == 3
    wait_until(lambda: any("its process gives no sign of life" in text for text in webhook.texts), 60)

    # A run that is stopped on purpose is not run again.
    assert server.up.call("down").returncode == 0
    server.start()
    assert server.count_states()["Crashed"] == 4 and len(server.list_runs()) == 7
