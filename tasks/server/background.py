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
from tasks.runs.shell import environment, run
from tasks.runs.workspace import project_root
from tasks.server import automation_sync, reports, webhook
from tasks.server.addresses import (
    HEALTH,
    HOST,
    KEY,
    PORT,
    UI,
    heartbeat,
    key_file,
    make_server_environment,
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
from tasks.server.processes import (
    alone,
    control,
    end_remaining,
    get_log_path,
    home,
    is_responding,
    is_running,
    is_up,
    note,
    shut_down,
    start,
    wait_for,
    write_note,
)

POOL, GPU_POOL, ALERT_POOL = "local", "gpu", "alerts"
LIMITS = {ALERT_POOL: "4"}
"""The flow runs that a worker is at, where that is not one: the receiver of alerts may keep so many waiting at once."""
WORK = "work"
WORKER, ALERTS, GATE = f"{WORK}:worker", f"{WORK}:alerts", f"{WORK}:gate"
"""Programs of supervisord.conf."""


def up() -> None:
    """Start everything, deploy prefect.yaml, and print the addresses. Raises `AbstainError`.

    Where everything is up, the alerts and the automations are brought in step alone. What is missing, since a start was
    cut off or a program died for good, is made up for.
    """
    root = project_root()
    receiver = webhook.receiver()
    with alone("starting"):
        (home() / "inbox").mkdir(exist_ok=True)
        if is_up():
            served = note()
            started = _complete(root, served)
            done = f"started {', '.join(started)}" if started else "already up"
            print(f"{done}: {served['server']}\ngate         {served['gate']}\n{_automate(receiver)}")
            return
        end_remaining()
        served = _prepare()
        try:
            with _step("starting the Prefect server"):
                start(root, served)
                wait_for("server", UI + HEALTH)
            with _step("starting the worker, deploying"):
                _start_worker(root, served)
            watched = _automate(receiver)
            with _step("starting the gate"):
                for program, address in _addresses(served).items():
                    wait_for(program, address)
        except BaseException:
            print()
            down()
            raise
    deployments = _deployments(root)
    print(f"\nPrefect UI   {with_login(UI)}")
    print(f"gate         {served['gate']}\nreports      {served['reports']}\n{watched}")
    logs = _indented(str(get_log_path(name)) for name in ("server", WORKER, GATE))
    print(f"logs         {logs}\ndeployments")
    for name, description in deployments.items():
        print(f"  {name:16} {description}")
    prefect = Path(sys.executable).parent / "prefect"
    access = f"PREFECT_API_URL={UI}/api {KEY}=$(cat {shlex.quote(str(key_file()))})"
    command = f"{access} {prefect} deployment run {next(iter(deployments))}"
    print(f"run one now  in the UI, or: {command}")
    print("stop         make down")


def down() -> None:
    """Stop the worker, the runs that it is at, and the servers."""
    with alone("stopping"):
        address = running_server()
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
    """Become a worker of `pool`, by default of those that compute features, until it is stopped.

    It joins the server at `PREFECT_API_URL`, else that of `make up`. Raises `AbstainError` where there is none.
    """
    _join_server()
    command = ["prefect", "worker", "start", "--pool", pool, "--type", "process", "--limit", LIMITS.get(pool, "1")]
    name = [] if pool == GPU_POOL else ["--name", pool]  # of many workers of GPUs, each has a name of its own
    os.execvpe(Path(sys.executable).parent / command[0], [*command, *name], environment(project_root()))


def automations() -> None:
    """Bring alerts and automations in step on the server of `make up`, or one that others started."""
    receiver = webhook.receiver()
    with alone("starting"):
        print(_automate(receiver))


def print_key() -> None:
    """Print the key of this home's servers; it is made where there is none."""
    print(server_key())


def _prepare() -> dict[str, str]:
    """Prepare the environment of the programs; the note of what they serve. Raises `AbstainError` for a bad setting."""
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
    """Report to the server of `make up`, for which this waits where it is being started, or to that of others."""
    if is_up():
        wait_for("server", note()["server"] + HEALTH)
    if address := own_server():
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
    began = time.monotonic()
    yield
    print(f"done after {time.monotonic() - began:.0f} s")


def _addresses(served: dict[str, str]) -> dict[str, str]:
    """What answers when a program is up, for those that serve something."""
    return {"server": served["server"] + HEALTH, GATE: f"{served['gate']}/healthz", "reports": served["reports"]}


def _complete(root: Path, served: dict[str, str]) -> list[str]:
    """Start the programs that do not run, under the supervisor that does, and deploy where that is due; what was done.

    Raises `AbstainError` where one does not start; the others go on.
    """
    report_to(served["server"])
    addresses = _addresses(served)
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
    """The worker makes its work pool, into which prefect.yaml is deployed then."""
    address = served["server"]
    if not is_running(WORKER):
        _end_lost_runs(address)
        control().startProcess(WORKER, False)
    wait_for(WORKER, _pool(POOL))
    for name in (GPU_POOL, ALERT_POOL):
        if not is_responding(_pool(name)):  # its first worker completes it
            post(f"{address}/api/work_pools/", {"name": name, "type": "process"})
    run(["prefect", "--no-prompt", "deploy", "--all"], root)
    write_note(served | {"deployed": "yes"})


def _automate(receiver: str | None) -> str:
    """Bring alerts and automations in step on the server that is joined, and the worker of alerts; what to print."""
    _join_server()
    receiver = webhook.store_url(receiver)
    if own_server():  # whose workers are ours to start
        change = control().startProcess if receiver else control().stopProcess
        with suppress(Fault):  # it is so already
            change(ALERTS, False)
    applied = automation_sync.sync_automations(bool(receiver))
    return f"alerts       {webhook.describe_receiver(receiver)}\nautomations  {applied}"


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
