"""Background services of `make up` and `make down`: server, workers, deployments, automations, reports, the gate."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from urllib.request import Request

import yaml

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import make_home
from tasks import webhook
from tasks.server import automation_sync, gate, reports
from tasks.server.addresses import (
    HEALTH,
    HOST,
    KEY,
    PORT,
    UI,
    guard,
    heartbeat,
    key_file,
    own_server,
    post,
    report_to,
    request,
    require_free_port,
    require_key,
    running_server,
    server_key,
    with_login,
)
from tasks.server.processes import answers, home, log_of, pid_of, start, starting_alone, stop
from tasks.shell import environment, run
from tasks.workspace import project_root

POOL = "local"
GPU_POOL = "gpu"
ALERTS, ALERT_LIMIT = "alerts", "4"
"""The pool of flow runs that post alerts, and its worker; the receiver may keep so many waiting at once."""


def up() -> None:
    """Start what is not running yet, deploy prefect.yaml, and print the addresses. Raises `AbstainError`."""
    root = project_root()
    make_home(home())
    receiver = webhook.receiver()
    with starting_alone():
        address, report_url, gate_url = running_server(), reports.served_at(), gate.served_at()
        has_worker = address is not None and pid_of("worker") is not None
        is_up = bool(report_url and has_worker and gate_url)
        if not address:
            heartbeat()  # an invalid one is reported before anything starts
            require_free_port("ABSTAIN_UI_PORT", PORT)
        if not report_url:
            require_free_port(reports.VARIABLE, reports.port())
        if not gate_url:
            require_free_port(gate.VARIABLE, gate.port())
        try:
            report_url = report_url or reports.serve(root)
            address = address or _start_server(root)
            report_to(address)
            if not has_worker:
                stop("worker")  # that of a server that is gone
                _start_worker(root, address)
            receiver = webhook.keep_url(receiver)
            _serve_alerts(root, receiver)
            applied = automation_sync.apply(bool(receiver))
            gate_url = gate_url or _start_gate(root)
        except BaseException:
            print()
            down()
            raise
    watched = f"alerts       {webhook.summary(receiver)}\nautomations  {_indented(applied.lines())}"
    if is_up:
        print(f"already up: {address}\ngate         {gate_url}\n{watched}")
        return
    (home() / "inbox").mkdir(exist_ok=True)
    deployments = _deployments(root)
    print(f"\nPrefect UI   {with_login(address)}")
    print(f"gate         {gate_url}\nreports      {report_url}\n{watched}")
    logs = _indented(str(log_of(name)) for name in ("server", "worker", gate.NAME))
    print(f"logs         {logs}\ndeployments")
    for name, description in deployments.items():
        print(f"  {name:16} {description}")
    prefect = Path(sys.executable).parent / "prefect"
    access = f"PREFECT_API_URL={address}/api {KEY}=$(cat {shlex.quote(str(key_file()))})"
    command = f"{access} {prefect} deployment run {next(iter(deployments))}"
    print(f"run one now  in the UI, or: {command}")
    print("stop         make down")


def down() -> None:
    """Stop the worker, the runs that it is at, and the servers; print what was stopped."""
    address = running_server()
    if address:
        report_to(address)
        automation_sync.forget_run_again()
    stopped = [name for name in ("worker", ALERTS, gate.NAME) if stop(name)]
    if address:
        _end_lost_runs(address)
    if stop("server"):
        stopped.append("server")
    stop(reports.NAME)
    print(f"stopped: {', '.join(stopped)}" if stopped else "nothing is up")


def worker() -> None:
    """Become a worker of the pool of those that compute features: one flow run at a time, until it is stopped.

    It joins the server at `PREFECT_API_URL`, else that of `make up`. Raises `AbstainError` where there is none.
    """
    _join_server()
    env = environment(project_root())
    command = ["prefect", "worker", "start", "--pool", GPU_POOL, "--type", "process", "--limit", "1"]
    os.execvpe(Path(sys.executable).parent / command[0], command, env)


def automations(reset: bool = False) -> None:
    """Bring the automations in step on the server of `make up`, or one that others started: `automation_sync.apply`."""
    receiver = webhook.receiver()
    _join_server()
    receiver = webhook.keep_url(receiver)
    if own_server():  # whose workers are ours to start
        with starting_alone():
            _serve_alerts(project_root(), receiver)
    applied = automation_sync.apply(bool(receiver), reset)
    print(f"alerts       {webhook.summary(receiver)}\nautomations  {_indented(applied.lines())}")


def print_key() -> None:
    """Print the key of this home's servers; it is made where there is none."""
    print(server_key())


def _join_server() -> None:
    if address := own_server():
        report_to(address)
    elif "PREFECT_API_URL" in os.environ:
        require_key()
    else:
        raise AbstainError(
            Code.NO_SERVICE, "no server is up: run `make up` first, or set PREFECT_API_URL to your team's server"
        )


def _start_server(root: Path) -> str:
    print("starting the Prefect server ...", end=" ", flush=True)
    began = time.monotonic()
    command = ["prefect", "server", "start", "--host", HOST, "--port", PORT]
    os.environ["PREFECT_SERVER_UI_API_URL"] = f"{UI}/api"  # else a browser is sent to port 4200 instead of ours
    os.environ["PREFECT_UI_URL"] = UI  # what an alert links to
    os.environ.update(guard(UI, UI.replace(HOST, "localhost")))
    start("server", command, root, ready=UI + HEALTH, address=UI, note=heartbeat())
    print(f"ready after {time.monotonic() - began:.0f} s")
    return UI


def _start_gate(root: Path) -> str:
    print("starting the gate ...", end=" ", flush=True)
    began = time.monotonic()
    address = gate.serve(root)
    print(f"ready after {time.monotonic() - began:.0f} s")
    return address


def _start_worker(root: Path, address: str) -> None:
    """The worker makes its work pool, into which prefect.yaml is deployed then."""
    print("starting the worker, deploying ...", end=" ", flush=True)
    began = time.monotonic()
    _end_lost_runs(address)
    command = ["prefect", "worker", "start", "--pool", POOL, "--type", "process", "--limit", "1", "--name", POOL]
    start("worker", command, root, ready=_pool(POOL))
    for name in (GPU_POOL, ALERTS):
        if not answers(_pool(name)):  # its first worker completes it
            post(f"{address}/api/work_pools/", {"name": name, "type": "process"})
    run(["prefect", "--no-prompt", "deploy", "--all"], root)
    print(f"done after {time.monotonic() - began:.0f} s")


def _serve_alerts(root: Path, receiver: str | None) -> None:
    """A worker that posts alerts where there is a `receiver`: it neither waits for runs nor dies with their worker."""
    if receiver is None:
        stop(ALERTS)
    elif pid_of(ALERTS) is None:
        command = ["prefect", "worker", "start", "--pool", ALERTS, "--type", "process", "--limit", ALERT_LIMIT]
        start(ALERTS, [*command, "--name", ALERTS], root, ready=_pool(ALERTS))


def _pool(name: str) -> Request:
    return request(f"{os.environ['PREFECT_API_URL']}/work_pools/{name}")


def _indented(lines: Iterable[str]) -> str:
    return "\n             ".join(lines)


def _end_lost_runs(address: str) -> None:
    """Mark flow runs of a stopped worker or machine as crashed, and free their slot."""
    lost = {
        "work_pools": {"name": {"any_": [POOL]}},
        "flow_runs": {"state": {"type": {"any_": ["PENDING", "RUNNING", "CANCELLING"]}}},
    }
    crashed = {"state": {"type": "CRASHED", "name": "Crashed", "message": "its worker was stopped"}}
    for flow_run in post(f"{address}/api/flow_runs/filter", lost):
        post(f"{address}/api/flow_runs/{flow_run['id']}/set_state", crashed)


def _deployments(root: Path) -> dict[str, str]:
    """Every deployment's name, as Prefect has it, and its first line of description."""
    declared = yaml.safe_load((root / "prefect.yaml").read_text())["deployments"]
    return {f"{d['entrypoint'].partition(':')[2]}/{d['name']}": d["description"] for d in declared}
