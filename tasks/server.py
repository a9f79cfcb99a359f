"""Which Prefect server a run reports to: the one that `make up` started, else a temporary one that dies with the run.

python -m tasks.server up      server with UI, worker and deployments, in the background (`make up`)
python -m tasks.server down    stop them, and what they are running (`make down`)
python -m tasks.server worker  in the foreground: a worker that computes features (`make worker`)

Both servers keep the same SQLite database, `$ABSTAIN_HOME/prefect/prefect.db`, so every past run is listed in the UI.
`server.pid` and `worker.pid` are locked by the process that they name, for as long as it lives: a file that a
crash left behind is not believed, nor is a process that was given the same number later.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import yaml

from abstain.errors import AbstainError
from abstain.settings import load_settings
from tasks.shell import QUIET, environment, run
from tasks.workspace import project_root

HOST = "127.0.0.1"
PORT = os.environ.get("ABSTAIN_UI_PORT", "4200")
UI = f"http://{HOST}:{PORT}"
HEALTH = "/api/health"
POOL = "local"
GPU_POOL = "gpu"
START_SECONDS = 120
STOP_SECONDS = 20


def prepare_environment() -> None:
    """Everything that runs write goes beside the checkout, Prefect's database too; no telemetry."""
    home = Path(os.environ.setdefault("ABSTAIN_HOME", str(project_root() / ".abstain"))).resolve()
    os.environ.setdefault("PREFECT_HOME", str(home / "prefect"))
    os.environ.update(QUIET)


def running_server() -> str | None:
    """The address of this home's server; None where `make up` has not started one."""
    if _pid("server") is None:
        return None
    address = _pid_file("server").read_text().split()[1]
    return address if _answers(address + HEALTH) else None


@contextmanager
def server_for_run() -> Iterator[None]:
    """Give this process a server to report to; `with` it, import the flow: imports and a server's start overlap.

    That is `PREFECT_API_URL` where it is set, else the server of `make up`, else a temporary one. Must be entered
    before prefect is imported, which reads the variable once. Raises `AbstainError` where no server starts.
    """
    if "PREFECT_API_URL" in os.environ:
        yield
        return
    if address := running_server():
        _report_to(address)
        yield
        return
    with _starting_alone():
        process, address = _start_temporary()
        _report_to(address)
        yield
        if not _answers(address + HEALTH, timeout=START_SECONDS):
            process.kill()
            raise AbstainError(f"the temporary server did not start: see {_log('temporary-server')}")


def up() -> None:
    """Start what is not running yet, deploy prefect.yaml, and say where to look. Raises `AbstainError`."""
    root = project_root()
    _home().mkdir(parents=True, exist_ok=True)
    with _starting_alone():
        address = running_server()
        if address and _pid("worker"):
            print(f"already up: {address}")
            return
        if not address:
            _require_free_port()
        try:
            address = address or _start_server(root)
            _report_to(address)
            _start_worker(root, address)
        except BaseException:
            print()
            down()
            raise
    (_home() / "inbox").mkdir(exist_ok=True)
    deployments = _deployments(root)
    print(f"\nPrefect UI   {address}\nlogs         {_log('server')}\n             {_log('worker')}\ndeployments")
    for name, says in deployments.items():
        print(f"  {name:16} {says}")
    prefect = Path(sys.executable).parent / "prefect"
    command = f"PREFECT_API_URL={address}/api {prefect} deployment run {next(iter(deployments))}"
    print(f"run one now  in the UI, or: {command}")
    print("stop         make down")


def down() -> None:
    """Stop the worker, the runs that it is at, and the server; say what was done."""
    stopped = ["worker"] if _stop("worker") else []
    address = running_server()
    if address:
        _end_lost_runs(address)
    if _stop("server"):
        stopped.append("server")
    print(f"stopped: {' and '.join(stopped)}" if stopped else "nothing is up")


def worker() -> None:
    """Become a worker of the pool of those that compute features: one flow run at a time, until it is stopped.

    It joins the server at `PREFECT_API_URL`, else that of `make up`. Raises `AbstainError` where there is none.
    """
    if "PREFECT_API_URL" not in os.environ:
        address = running_server()
        if address is None:
            raise AbstainError("no server is up: run `make up` first, or set PREFECT_API_URL to your team's server")
        _report_to(address)
    env = environment(project_root())
    command = ["prefect", "worker", "start", "--pool", GPU_POOL, "--type", "process", "--limit", "1"]
    os.execvpe(Path(sys.executable).parent / command[0], command, env)


def _start_server(root: Path) -> str:
    print("starting the Prefect server ...", end=" ", flush=True)
    began = time.monotonic()
    command = ["prefect", "server", "start", "--host", HOST, "--port", PORT]
    os.environ["PREFECT_SERVER_UI_API_URL"] = f"{UI}/api"  # else a browser is sent to port 4200, whatever ours is
    process = _spawn("server", command, root, UI)
    _wait_for(UI + HEALTH, process, "server")
    print(f"ready after {time.monotonic() - began:.0f} s")
    return UI


def _start_worker(root: Path, address: str) -> None:
    """The worker makes its work pool, into which prefect.yaml is deployed then."""
    print("starting the worker, deploying ...", end=" ", flush=True)
    began = time.monotonic()
    _end_lost_runs(address)
    command = ["prefect", "worker", "start", "--pool", POOL, "--type", "process", "--limit", "1", "--name", POOL]
    process = _spawn("worker", command, root)
    _wait_for(f"{address}/api/work_pools/{POOL}", process, "worker")
    if not _answers(f"{address}/api/work_pools/{GPU_POOL}"):  # the first `make worker` completes it
        _post(f"{address}/api/work_pools/", {"name": GPU_POOL, "type": "process"})
    run(["prefect", "--no-prompt", "deploy", "--all"], root)
    print(f"done after {time.monotonic() - began:.0f} s")


def _end_lost_runs(address: str) -> None:
    """What our worker was running when it was stopped, or the machine was, has crashed: say so, free its place."""
    lost = {
        "work_pools": {"name": {"any_": [POOL]}},
        "flow_runs": {"state": {"type": {"any_": ["PENDING", "RUNNING", "CANCELLING"]}}},
    }
    crashed = {"state": {"type": "CRASHED", "name": "Crashed", "message": "its worker was stopped"}}
    for flow_run in _post(f"{address}/api/flow_runs/filter", lost):
        _post(f"{address}/api/flow_runs/{flow_run['id']}/set_state", crashed)


def _wait_for(url: str, process: subprocess.Popen[bytes], name: str) -> None:
    """Wait until `url` is there. Raises `AbstainError` when `process` ends or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while not _answers(url):
        if process.poll() is not None or time.monotonic() > deadline:
            raise AbstainError(f"the {name} did not start: see {_log(name)}")
        time.sleep(0.2)


def _deployments(root: Path) -> dict[str, str]:
    """Every deployment's name, as Prefect has it, and its first line of description."""
    declared = yaml.safe_load((root / "prefect.yaml").read_text())["deployments"]
    return {f"{d['entrypoint'].partition(':')[2]}/{d['name']}": d["description"] for d in declared}


def _start_temporary() -> tuple[subprocess.Popen[bytes], str]:
    """A server on a port of its own, until our end of its standard input closes, in whatever way we end.

    We bind the port, so that nobody can take it, and requests made before the server is ready wait for it.
    """
    with socket.create_server((HOST, 0)) as port, _log("temporary-server").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tasks.server", "child", str(port.fileno())],
            env=environment(project_root()),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=[port.fileno()],
            start_new_session=True,  # Ctrl-C is for the run, which still has to report that it was stopped
        )
        address = f"http://{HOST}:{port.getsockname()[1]}"
    atexit.register(_stop_temporary, process)
    return process, address


def _stop_temporary(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def _serve_child(port: int) -> None:
    """The temporary server: serve the API on the inherited socket until standard input closes."""
    import uvicorn
    from prefect.server.api.server import create_app

    server = uvicorn.Server(uvicorn.Config(create_app(ephemeral=True, final=True), log_level="error"))

    def stop_with_parent() -> None:
        sys.stdin.buffer.read()
        server.should_exit = True
        time.sleep(STOP_SECONDS)
        os._exit(1)

    threading.Thread(target=stop_with_parent, daemon=True).start()
    server.run(sockets=[socket.socket(fileno=port)])


def _spawn(name: str, command: Sequence[str], root: Path, address: str = "") -> subprocess.Popen[bytes]:
    """Run `command` in the background, with its log and its locked pid file."""
    with _pid_file(name).open("a+") as pid, _log(name).open("ab") as log:
        fcntl.flock(pid, fcntl.LOCK_EX)
        process = subprocess.Popen(
            command,
            cwd=root,
            env=environment(root),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[pid.fileno()],
            start_new_session=True,
        )
        pid.truncate(0)
        pid.write(f"{process.pid} {address}\n")
    return process


def _stop(name: str) -> bool:
    """Ask the process and its descendants to stop, then make them; whether there was one."""
    pid = _pid(name)
    if pid is None:
        return False
    process = psutil.Process(pid)
    family = [process, *process.children(recursive=True)]
    for member in family:
        _signal(member, signal.SIGINT)
    _, left = psutil.wait_procs(family, STOP_SECONDS)
    for member in left:
        _signal(member, signal.SIGKILL)
    psutil.wait_procs(left, STOP_SECONDS)
    _pid_file(name).unlink(missing_ok=True)
    return True


def _signal(process: psutil.Process, number: int) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def _pid(name: str) -> int | None:
    """Who holds the pid file's lock; None for nobody."""
    file = _pid_file(name)
    if not file.is_file():
        return None
    with file.open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int((lock.read().split() or ["0"])[0]) or None  # it is written a moment after it is locked
    return None


@contextmanager
def _starting_alone() -> Iterator[None]:
    """One server starts at a time: two would create the tables of a new database at once."""
    _home().mkdir(parents=True, exist_ok=True)
    with (_home() / "starting.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _require_free_port() -> None:
    try:
        port = int(PORT)
        with socket.create_server((HOST, port)):
            pass
    except ValueError:
        raise AbstainError(f"environment variable ABSTAIN_UI_PORT: {PORT!r} is no port number") from None
    except OSError:
        raise AbstainError(
            f"port {PORT} is in use by another program: stop that, or take another port: ABSTAIN_UI_PORT=4300 make up"
        ) from None


def _report_to(address: str) -> None:
    os.environ["PREFECT_API_URL"] = f"{address}/api"


def _answers(url: str, timeout: float = 2) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=timeout) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=START_SECONDS) as reply:
        return json.load(reply)


def _home() -> Path:
    return load_settings().home.resolve()


def _pid_file(name: str) -> Path:
    return _home() / f"{name}.pid"


def _log(name: str) -> Path:
    return _home() / f"{name}.log"


def main() -> None:
    """Entry point of `make up`, `make down`, `make worker` and the temporary server."""
    try:
        prepare_environment()
        match sys.argv[1:]:
            case ["up"]:
                up()
            case ["down"]:
                down()
            case ["worker"]:
                worker()
            case ["child", port]:
                _serve_child(int(port))
            case _:
                raise AbstainError("run `python -m tasks.server up`, `down` or `worker`")
    except AbstainError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
