"""`make up`, `make down` and the temporary server of a run: no process is left behind."""

import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest
import yaml
from supervisor.childutils import getRPCInterface  # type: ignore[import-untyped]

from abstain_tasks.server.addresses import KEY, post
from abstain_tasks.server.processes import is_responding
from tests.conftest import MODELS, ROOT, Project, Up, list_processes, new_project, processes_of, start_up
from tests.ports import free_port
from tests.prefect_database import give_tables

pytestmark = pytest.mark.slow

RUN = """
import time
from abstain_tasks.server import prepare_environment, server_for_run
prepare_environment()
with server_for_run():
    from prefect import flow, task
from os import environ
print(environ["PREFECT_API_URL"], flush=True)

@task
def step(n: int) -> int:
    return n

@flow
def steps() -> None:
    step.map(range(5)).result()

steps()
print("ran", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return new_project(tmp_path_factory.mktemp("server"))


def make_project(checkout: Project, folder: Path) -> Project:
    """Make a new home; its processes are known by their environment, so they are started cold."""
    project = replace(checkout, home=folder / "home", warm=False)
    for needed in (project.home, folder / "empty"):
        needed.mkdir()
    give_tables(project.home, MODELS.parent)
    return project


@pytest.fixture
def project(checkout: Project, tmp_path: Path) -> Project:
    return make_project(checkout, tmp_path)


@pytest.fixture
def own_up(project: Project) -> Iterator[Up]:
    with start_up(project) as served:
        yield served


def find_process(project: Project, *words: str) -> psutil.Process:
    (process,) = (process for process, command in list_processes(project) if set(words) <= set(command))
    return process


def read_states(project: Project, flow: str) -> list[str]:
    query = "select state_type from flow_run join flow on flow.id = flow_id where flow.name = ? and flow_run.start_time"
    with sqlite3.connect(project.home / "prefect" / "prefect.db") as database:
        return [state for (state,) in database.execute(query, [flow])]


def wait_until(condition: Callable[[], bool], goal: float = 10) -> None:
    """Wait ten times as long as the condition takes on an idle machine, `goal` seconds."""
    deadline = time.monotonic() + 10 * goal
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


def require_key_and_origin(api: str, *origins: str) -> None:
    """The key in our environment suffices; without it nothing is read, and no foreign page may ask."""
    assert post(f"{api}/flows/count", {}) >= 0
    keys = ("7a" * 32, os.environ[KEY][:-1])
    wrong = [{"Authorization": f"Basic {b64encode(key.encode()).decode()}"} for key in keys]
    for headers in ({}, {"Authorization": "Basic"}, *wrong, {"Host": "rebound.evil.example"}):
        assert httpx.post(f"{api}/flows/count", json={}, headers=headers).status_code == 401
    for origin in (*origins, "https://evil.example", "null"):
        allowed = origin if origin in origins else None
        headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        for reply in (
            httpx.options(f"{api}/deployments/", headers=headers),
            httpx.get(f"{api}/health", headers={"Origin": origin}),
        ):
            assert reply.headers.get("Access-Control-Allow-Origin") == allowed


def is_sleeping(up: Up) -> bool:
    return "sleep 6000" in processes_of(up.project)


def test_up_serves_deployments_to_holders_of_key(up: Up) -> None:
    assert f"(log in with the text of {up.project.home / 'server.key'})\n" in up.printed
    for deployment in ("retrain/nightly", "ingest/hourly", "monitor/daily", "retention/weekly", "extract/gpu"):
        assert deployment in up.printed
    for name, port, path in (("gate", up.gate, "/healthz"), ("reports", up.reports, "")):
        address = f"http://127.0.0.1:{port}"
        assert re.search(rf"\n{name} +{address}\n", up.printed)
        assert httpx.get(address + path, timeout=30).status_code == 200
    # A browser asks this server, not the one at port 4200.
    assert httpx.get(f"{up.address}/ui-settings").json()["api_url"] == up.api
    require_key_and_origin(up.api, up.address, up.address.replace("127.0.0.1", "localhost"))
    assert (up.project.home / "up.sock").stat().st_mode & 0o777 == 0o700


@pytest.mark.soak(twin="test_up_serves_deployments_to_holders_of_key")
def test_up_again_starts_what_is_missing(up: Up) -> None:
    supervisor = getRPCInterface({"SUPERVISOR_SERVER_URL": f"unix://{up.project.home}/up.sock"}).supervisor
    for program in ("work:gate", "work:worker"):
        supervisor.stopProcess(program)
    again = up.call("up")
    assert again.stdout.startswith(f"started gate, worker, deployments: {up.address}\n"), again
    assert is_responding(f"http://127.0.0.1:{up.gate}/healthz")
    killed = find_process(up.project, "server", "start")
    killed.kill()
    wait_until(lambda: not killed.is_running() and is_responding(f"{up.api}/health"), 15)


def test_up_printed_command_runs_deployment_and_cancels(up: Up) -> None:
    command = up.printed.partition("in the UI, or: ")[2].splitlines()[0]
    started = up.project.command(["sh", "-c", command.replace("retrain/nightly", "sleeper/now")])
    assert started.returncode == 0, started.stderr
    wait_until(lambda: is_sleeping(up), 90)
    (sleeper,) = post(f"{up.api}/flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": ["RUNNING"]}}}})
    post(f"{up.api}/flow_runs/{sleeper['id']}/set_state", {"state": {"type": "CANCELLING"}})  # as the UI does
    wait_until(lambda: not is_sleeping(up), 100)
    wait_until(lambda: read_states(up.project, "sleeper") == ["CANCELLED"], 100)


@pytest.mark.soak(twin="test_up_serves_deployments_to_holders_of_key")
def test_down_after_killed_worker_leaves_nothing(own_up: Up) -> None:
    project = own_up.project
    assert "nothing is live" in httpx.get(f"http://127.0.0.1:{own_up.gate}", timeout=30).text
    earlier = read_states(project, "sleeper")
    (deployment,) = post(f"{own_up.api}/deployments/filter", {"flows": {"name": {"any_": ["sleeper"]}}})
    post(f"{own_up.api}/deployments/{deployment['id']}/create_flow_run", {})
    wait_until(lambda: is_sleeping(own_up), 90)
    find_process(project, "worker", "start").kill()  # which leaves its run to itself
    down = own_up.call("down")
    assert down.returncode == 0 and down.stdout == "stopped\n", down.stdout + down.stderr
    assert processes_of(project) == [] and not list(project.home.glob("up.*"))
    assert sorted(read_states(project, "sleeper")) == sorted([*earlier, "CRASHED"])
    assert own_up.call("down").stdout == "nothing is up\n"


def test_server_commands_fail_in_one_line(project: Project) -> None:
    def read_error(done: subprocess.CompletedProcess[str]) -> str:
        assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1, done
        return done.stderr

    worker = project.command([sys.executable, "-m", "abstain_tasks.server", "worker"])
    assert "set PREFECT_API_URL" in read_error(worker)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port, others = taken.getsockname()[1], (free_port(), free_port())
        for variable, up in (("UI", Up(project, port, *others)), ("GATE", Up(project, *others, port))):
            error = read_error(up.call("up"))
            assert f"port {port} is in use" in error and f"ABSTAIN_{variable}_PORT=" in error


def test_temporary_server_stores_run_and_dies_with_it(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    run = project.start([sys.executable, "-c", RUN], stderr=subprocess.DEVNULL)
    address = run.stdout.readline().strip()
    assert run.stdout.readline() == "ran\n"
    assert httpx.get(f"{address}/health").status_code == 200
    wait_until(lambda: read_states(project, "steps") == ["COMPLETED"])
    with sqlite3.connect(project.home / "prefect" / "prefect.db") as database:
        assert list(database.execute("select state_type, count(*) from task_run")) == [("COMPLETED", 5)]
    monkeypatch.setenv(KEY, (project.home / "server.key").read_text().strip())
    require_key_and_origin(address, address.removesuffix("/api"))
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    wait_until(lambda: processes_of(project) == [], 10)


def test_require_key_other_server_names_variable(prefect_server: str, project: Project) -> None:
    for key, command in (("", ["abstain_cli.app", "ingest"]), ("of another home", ["abstain_tasks.server", "worker"])):
        environment = ["env", f"PREFECT_API_URL={prefect_server}", f"{KEY}={key}"]
        done = project.command([*environment, sys.executable, "-m", *command])
        assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1, done
        assert prefect_server in done.stderr and KEY in done.stderr


@pytest.mark.parametrize(
    ("service", "variable"), [("server", "PREFECT_SERVER_API_AUTH_STRING"), ("worker", "PREFECT_API_AUTH_STRING")]
)
def test_compose_services_require_key_of_home(project: Project, tmp_path: Path, service: str, variable: str) -> None:
    declared = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"][service]
    prefect = tmp_path / "bin" / "prefect"
    prefect.parent.mkdir()
    prefect.write_text(f'#!/bin/sh\necho "prefect has ${variable}"\nexit 1\n')
    prefect.chmod(0o755)
    path = f"PATH={prefect.parent}:{project.environment['PATH']}"
    start = ["env", path, *declared["entrypoint"].split(), declared["command"][0].replace("$$", "$")]
    done = project.command(start)
    assert done.stdout == f"prefect has {(project.home / 'server.key').read_text().strip()}\n", done.stderr
    if service == "server":
        (project.home / "server.key").write_text("damaged")
        damaged = project.command(start)
        assert damaged.stdout == "" and "server.key holds no key" in damaged.stderr and damaged.returncode != 0
        assert "*" not in declared["environment"]["PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS"]
