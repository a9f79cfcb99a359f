"""Automations on `make up`, with real processes that are killed, and a webhook that is away at first.

A stub of the retrain waits for a file. An alert may come twice here, because Prefect repeats what it was at if SQLite
is locked for long.
"""

from __future__ import annotations

import json
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
from tests.tasks.receiver import Receiver, free_address
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
EMIT = "import json, sys; from abstain_tasks.runs.events import post_event; post_event(*sys.argv[1:3], code='A999', **json.loads(sys.argv[3]))"
NEXT_DAY = "from abstain_tasks.server.automation_sync import remove_rerun_automation; remove_rerun_automation()"
APPLY = "from abstain_tasks.server.automation_sync import sync_automations; print(sync_automations(True, heartbeat=30))"


@dataclass(frozen=True)
class Server:
    """A project that is up."""

    up: Up
    url: str

    def start(self) -> None:
        """Prefect allows no more heartbeats than this: a run that is killed with its worker is lost after 90 s."""
        done = self.up.call("up", self.url, PREFECT_FLOWS_HEARTBEAT_FREQUENCY="30")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "secret" not in done.stdout, done.stdout

    @property
    def project(self) -> Project:
        return replace(self.up.project, server=self.up.api)

    def python(self, code: str, *arguments: str) -> str:
        done = self.project.command(["python", "-c", code, *arguments])
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def emit(self, name: str, resource: str, **payload: str) -> None:
        self.python(EMIT, name, resource, json.dumps(payload))

    def start_retrain(self) -> None:
        path = f"{self.up.api}/deployments/{self.runs('retrain')[0]['deployment_id']}/create_flow_run"
        wait_until(lambda: self._accepts(path))

    def _accepts(self, path: str) -> bool:
        """A server whose database is busy answers 503, upon which Prefect's own clients ask again, too."""
        try:
            post(path, {})
        except HTTPError as error:
            assert error.code == 503
            return False
        return True

    def runs(self, flow: str) -> list[dict[str, Any]]:
        """Those that are due or were, first one first."""
        found = post(f"{self.up.api}/flow_runs/filter", {"flows": {"name": {"any_": [flow]}}})
        asked = [run for run in found if not run["auto_scheduled"]]
        return sorted(asked, key=lambda run: str(run["created"]))

    def states(self, flow: str) -> Counter[str]:
        return Counter(run["state"]["name"] for run in self.runs(flow))

    def pids(self) -> list[int]:
        file = self.project.home / "pids"
        return [int(line) for line in file.read_text().split()] if file.exists() else []


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Server, int]]:
    """It posts to a port at which nothing listens yet."""
    project = replace(new_project(tmp_path), warm=False)
    (project.root / "flows" / "retrain.py").write_text(RETRAIN)
    project.git("commit", "-qam", "A retrain that waits")
    (project.home / "server.key").write_text(SERVER_KEY)
    port = free_address()
    made = Server(Up(project, free_port(), free_port(), free_port()), f"http://127.0.0.1:{port}/hook/secret")
    try:
        made.start()
        yield made, port
    finally:
        made.up.call("down")
    assert processes_of(project) == []


@pytest.mark.slow
@pytest.mark.soak(twin="test_automations_act_once_per_event")
def test_automations_retrain_alert_and_rerun(server: tuple[Server, int], monkeypatch: pytest.MonkeyPatch) -> None:
    made, port = server
    monkeypatch.setenv(KEY, SERVER_KEY)

    for _ in range(3):
        made.emit("abstain.reviews", "abstain.reviews.v1.0.0.1")
    wait_until(lambda: len(made.pids()) == 1, 60)
    made.emit("abstain.reviews", "abstain.reviews")  # of no portion that is full: it starts nothing
    made.emit("abstain.reviews", "abstain.reviews.v1.0.0.2")
    made.emit("abstain.drift", "abstain.drift")
    wait_until(lambda: len(made.runs("retrain")) == 3, 20)
    assert len(made.pids()) == 1, "one runs, the others wait"
    (made.project.home / "go").touch()
    wait_until(lambda: made.states("retrain") == {"Completed": 2, "Superseded": 1}, 60)
    assert len(made.pids()) == 2

    made.emit("abstain.alarm", "abstain.alarm", kind="guarantee violated", text="it is", remedy="look")
    wait_until(lambda: made.states("notify") == {"Running": 1}, 60)
    with Receiver(port, statuses=[500, 503]) as webhook:
        wait_until(lambda: made.states("notify") == {"Completed": 1}, 60)
        assert webhook.statuses == []
        (text,) = webhook.texts
        assert text.startswith("monitoring: guarantee violated\nA999: it is; look\n"), text
        webhook.alerts.clear()
        for _ in range(2):
            made.emit("abstain.rejected", "abstain.rejected.0123", text="probe: not better", remedy="wait")
        wait_until(lambda: len(webhook.texts) == 1, 60)
        assert webhook.texts[0].startswith("a candidate was rejected\nA999: probe: not better; wait\n")
        webhook.alerts.clear()

        (made.project.home / "go").unlink()
        (made.project.home / "pids").unlink()
        made.start_retrain()
        wait_until(lambda: len(made.pids()) == 1, 60)
        os.kill(made.pids()[0], signal.SIGKILL)
        wait_until(lambda: len(made.pids()) == 2, 60)
        assert (made.states("retrain")["Running"], made.states("retrain")["Crashed"]) == (1, 1)
        os.kill(made.pids()[1], signal.SIGKILL)
        wait_until(lambda: made.states("retrain")["Crashed"] == 2, 30)
        wait_until(
            lambda: len({text for text in webhook.texts if "has crashed\nA504: Process exited" in text}) == 2, 60
        )
        assert len(made.runs("retrain")) == 5, "it is not run a third time"

        # A worker that is killed with its run, on the next day: neither reports anything, and another worker is started.
        made.python(NEXT_DAY)
        assert made.python(APPLY) == "1 created, 7 unchanged\n"
        made.start_retrain()
        wait_until(lambda: len(made.pids()) == 3, 60)
        worker = find_process(made.project, "worker", "start", "local")
        together = [worker, *worker.children(recursive=True)]
        for process in together:  # none of them sees another one die
            process.suspend()
        for process in together:
            process.kill()
        wait_until(lambda: len(made.runs("retrain")) == 7, 30)
        assert made.states("retrain")["Crashed"] == 3
        wait_until(lambda: any("its process gives no sign of life" in text for text in webhook.texts), 60)
        wait_until(lambda: len(made.pids()) == 4, 60)

        # A run that is stopped on purpose is not run again.
        assert made.up.call("down").returncode == 0
        made.start()
        assert made.states("retrain")["Crashed"] == 4 and len(made.runs("retrain")) == 7
        webhook.shutdown()
