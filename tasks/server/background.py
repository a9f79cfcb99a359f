"""Background services of `make up` and `make down`: server, workers, deployments, automations, reports, the gate."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.request import Request
from xmlrpc.client import Fault

import yaml

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain_tasks.runs.shell import environment, run
from abstain_tasks.runs.workspace import project_root
from abstain_tasks.server import automation_sync, reports, webhook
from abstain_tasks.server.addresses import (
    HEALTH,
    HOST,
    KEY,
    PORT,
    UI,
    find_own_server,
    find_running_server,
    get_key_file,
    heartbeat,
    make_server_environment,
    post,
    read_server_key,
    report_to,
    request,
    require_free_port,
    require_key,
    with_login,
)
from abstain_tasks.server.processes import (
    control,
    end_remaining,
    get_log_path,
    hold_server_lock,
    home,
    is_responding,
    is_running,
    is_up,
    read_note,
    shut_down,
    start,
    wait_for,
    write_note,
)

POOL, GPU_POOL, ALERT_POOL = "local", "gpu", "alerts"
LIMITS = {ALERT_POOL: "4"}
"""Concurrent flow runs of a worker, if not one: the receiver of alerts may keep several waiting at once."""
WORK = "work"
WORKER, ALERTS, GATE = f"{WORK}:worker", f"{WORK}:alerts", f"{WORK}:gate"
"""Programs of supervisord.conf."""


def up() -> None:
    """Start everything, deploy prefect.yaml, and print the addresses.

    If everything is up, only alerts and automations are synchronized. Missing parts, for instance after an interrupted
    start or a program that died for good, are started.

    Raises:
        AbstainError: A part cannot be started.
    """
    root = project_root()
    receiver = webhook.receiver()
    with hold_server_lock("starting"):
        (home() / "inbox").mkdir(exist_ok=True)
        if is_up():
            served = read_note()
            started = _complete(root, served)
            outcome = f"started {', '.join(started)}" if started else "already up"
            print(f"{outcome}: {served['server']}\ngate         {served['gate']}\n{_automate(receiver)}")
            return
        end_remaining()
        served = _prepare()
        try:
            with _step("starting the Prefect server"):
                start(root, served)
                wait_for("server", UI + HEALTH)
            with _step("starting the worker, deploying"):
                _start_worker(root, served)
            automation_lines = _automate(receiver)
            with _step("starting the gate"):
                for program, address in _get_addresses(served).items():
                    wait_for(program, address)
        except BaseException:
            print()
            down()
            raise
    deployments = _read_deployments(root)
    print(f"\nPrefect UI   {with_login(UI)}")
    print(f"gate         {served['gate']}\nreports      {served['reports']}\n{automation_lines}")
    logs = _indent(str(get_log_path(name)) for name in ("server", WORKER, GATE))
    print(f"logs         {logs}\ndeployments")
    for name, description in deployments.items():
        print(f"  {name:16} {description}")
    prefect = Path(sys.executable).parent / "prefect"
    access = f"PREFECT_API_URL={UI}/api {KEY}=$(cat {shlex.quote(str(get_key_file()))})"
    command = f"{access} {prefect} deployment run {next(iter(deployments))}"
    print(f"run one now  in the UI, or: {command}")
    print("stop         make down")


def down() -> None:
    """Stop the worker, its runs, and the servers."""
    with hold_server_lock("stopping"):
        address = find_running_server()
        if address:
            report_to(address)
            automation_sync.remove_rerun_automation()
        if is_up():
            control().stopProcessGroup(WORK)
        end_remaining("server", "reports")
        if address:
            _end_lost_runs(address)
        print("stopped" if shut_down() else "nothing is up")


def worker(pool: str = GPU_POOL) -> None:
    """Become a worker of a pool until it is stopped.

    It joins the server at `PREFECT_API_URL`, otherwise that of `make up`.

    Args:
        pool: The work pool; by default the one that computes features.

    Raises:
        AbstainError: There is no server.
    """
    _join_server()
    command = ["prefect", "worker", "start", "--pool", pool, "--type", "process", "--limit", LIMITS.get(pool, "1")]
    name = [] if pool == GPU_POOL else ["--name", pool]  # of many workers of GPUs, each has a name of its own
    os.execvpe(Path(sys.executable).parent / command[0], [*command, *name], environment(project_root()))


def automations() -> None:
    """Synchronize alerts and automations on the server of `make up`, or on one that others started."""
    receiver = webhook.receiver()
    with hold_server_lock("starting"):
        print(_automate(receiver))


def print_key() -> None:
    """Print the key of this home's servers; it is created if there is none."""
    print(read_server_key())


def _prepare() -> dict[str, str]:
    """Prepare the environment of the programs, and return the note of their addresses. Raises `AbstainError`."""
    ports = {
        "ABSTAIN_UI_PORT": PORT,
        reports.VARIABLE: reports.port(),
        "ABSTAIN_GATE_PORT": os.environ.get("ABSTAIN_GATE_PORT") or "8700",
    }
    for variable, port in ports.items():
        require_free_port(variable, port)
    served = [f"http://{HOST}:{port}" for port in ports.values()]
    noted = dict(zip(("server", "reports", "gate"), served, strict=True)) | {"heartbeat": heartbeat()}
    os.environ.update(ports)
    os.environ["PREFECT_SERVER_UI_API_URL"] = f"{UI}/api"  # else a browser is sent to port 4200 instead of ours
    os.environ["PREFECT_UI_URL"] = UI  # what an alert links to
    os.environ.update(make_server_environment(UI, UI.replace(HOST, "localhost")))
    report_to(UI)
    return noted


def _join_server() -> None:
    """Report to the server of `make up`, waiting for it if it is being started, or to that of others."""
    if is_up():
        wait_for("server", read_note()["server"] + HEALTH)
    if address := find_own_server():
        report_to(address)
    elif "PREFECT_API_URL" in os.environ:
        require_key()
    else:
        raise AbstainError(
            Code.NO_SERVICE, "no server is up: run `make up` first, or set PREFECT_API_URL to your team's server"
        )


@contextmanager
def _step(name: str) -> Iterator[None]:
    print(f"{name} ...", end=" ", flush=True)
    started_at = time.monotonic()
    yield
    print(f"done after {time.monotonic() - started_at:.0f} s")


def _get_addresses(served: dict[str, str]) -> dict[str, str]:
    """Return what responds if a program is up, for programs that serve something."""
    return {"server": served["server"] + HEALTH, GATE: f"{served['gate']}/healthz", "reports": served["reports"]}


def _complete(root: Path, served: dict[str, str]) -> list[str]:
    """Start missing programs under the running supervisor, and deploy if due; return what was done.

    Raises `AbstainError` if one does not start; the others keep running.
    """
    report_to(served["server"])
    addresses = _get_addresses(served)
    missing = [program for program in (*addresses, WORKER) if not is_running(program)]
    for program in missing:
        if program != WORKER:
            with suppress(Fault):  # it cannot be started, which is reported by:
                control().startProcess(program, False)
    for program, address in addresses.items():
        wait_for(program, address)
    done = [get_log_path(program).stem for program in missing]
    if WORKER in missing or "deployed" not in served:
        _start_worker(root, served)
        done.append("deployments")
    return done


def _start_worker(root: Path, served: dict[str, str]) -> None:
    """Start the worker, which creates its work pool, and deploy prefect.yaml into it."""
    address = served["server"]
    if not is_running(WORKER):
        _end_lost_runs(address)
        control().startProcess(WORKER, False)
    wait_for(WORKER, _make_pool_request(POOL))
    for name in (GPU_POOL, ALERT_POOL):
        if not is_responding(_make_pool_request(name)):  # its first worker completes it
            post(f"{address}/api/work_pools/", {"name": name, "type": "process"})
    run(["prefect", "--no-prompt", "deploy", "--all"], root)
    write_note(served | {"deployed": "yes"})


def _automate(receiver: str | None) -> str:
    """Synchronize alerts, automations and the worker of alerts on the joined server; return what to print."""
    _join_server()
    receiver = webhook.store_url(receiver)
    if find_own_server():  # whose workers are ours to start
        change = control().startProcess if receiver else control().stopProcess
        with suppress(Fault):  # it is so already
            change(ALERTS, False)
    applied = automation_sync.sync_automations(bool(receiver))
    return f"alerts       {webhook.describe_receiver(receiver)}\nautomations  {applied}"


def _make_pool_request(name: str) -> Request:
    return request(f"{os.environ['PREFECT_API_URL']}/work_pools/{name}")


def _indent(lines: Iterable[str]) -> str:
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


def _read_deployments(root: Path) -> dict[str, str]:
    """Return each deployment's name, as Prefect has it, and its description."""
    declared = yaml.safe_load((root / "prefect.yaml").read_text())["deployments"]
    return {f"{d['entrypoint'].partition(':')[2]}/{d['name']}": d["description"] for d in declared}
