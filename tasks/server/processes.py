"""The programs of `make up`, kept running by supervisor: supervisord.conf beside this file lists them.

Supervisor accepts connections on the socket `up.sock` of the home, its owner's alone, for as long as it lives: a stale
file of a crash is ignored.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal
from urllib.request import Request, urlopen
from xmlrpc.client import Error

import psutil  # type: ignore[import-untyped]

from abstain.config.settings import load_settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import create_home, write_json
from tasks.runs.shell import run

START_SECONDS = 120
STOP_SECONDS = 20
MAX_SOCKET = 95
"""Bytes of the socket's path on every system, with those that supervisor appends while it makes it."""


def home() -> Path:
    """The absolute path of `ABSTAIN_HOME`."""
    return load_settings().home.resolve()


def get_log_path(program: str) -> Path:
    return home() / f"{program.rpartition(':')[2]}.log"


def is_up() -> bool:
    """Whether supervisor runs for this home."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(_socket()))
        except OSError:
            return False
    return True


def note() -> dict[str, str]:
    """What was noted when the programs were started; empty where they do not run."""
    noted: dict[str, str] = json.loads(_note().read_text()) if is_up() else {}
    return noted


def write_note(noted: dict[str, str]) -> None:
    """Note what those that use the programs have to know."""
    write_json(_note(), noted)


@contextmanager
def alone(act: Literal["starting", "stopping"]) -> Iterator[None]:
    """One server starts at a time, since two would create the tables of a new database at once; one process stops it.

    A start does not make a stop wait.
    """
    create_home(home())
    with (home() / f"{act}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def start(root: Path, noted: dict[str, str]) -> None:
    """Start supervisor in the background, and with it the programs that need nothing of others.

    Args:
        root: The checkout, in which the programs run.
        noted: What those that use the programs have to know, for `note`.

    Raises:
        AbstainError: It does not start.
    """
    if "%" in str(home()):  # supervisor takes it for a variable
        raise AbstainError(Code.BAD_SETTING, f"ABSTAIN_HOME: {home()} has a % in its path: choose one without")
    if len(os.fsencode(_socket())) > MAX_SOCKET:
        raise AbstainError(
            Code.BAD_SETTING,
            f"ABSTAIN_HOME: {home()} is too long a path for a socket in it: choose one of at most "
            f"{MAX_SOCKET - len(_socket().name) - 1} bytes",
        )
    write_note(noted)
    umask = os.umask(0o077)
    os.umask(umask)
    config = Path(__file__).with_name("supervisord.conf")
    run(["supervisord", "--configuration", str(config), "--umask", f"{umask:o}"], root)


def control() -> Any:
    """What supervisor can be asked to do: https://supervisord.org/api.html."""
    from supervisor.childutils import getRPCInterface  # type: ignore[import-untyped]

    return getRPCInterface({"SUPERVISOR_SERVER_URL": _url()}).supervisor


def is_running(program: str) -> bool:
    """Whether the program runs, or supervisor is about to start it. Raises `AbstainError` as supervisor stops."""
    return _state(program) in ("STARTING", "RUNNING", "BACKOFF")


def wait_for(program: str, ready: str | Request) -> None:
    """Wait until `ready` responds, as it does when `program` is up. Raises `AbstainError` where that is not to be."""
    deadline = time.monotonic() + START_SECONDS
    while not is_responding(ready):
        if _state(program) == "FATAL" or time.monotonic() > deadline:
            raise AbstainError(
                Code.NO_SERVICE, f"the {get_log_path(program).stem} did not start: see {get_log_path(program)}"
            )
        time.sleep(0.2)


def is_responding(url: str | Request, timeout: float = 2) -> bool:
    """Whether `url` responds."""
    try:
        with urlopen(url, timeout=timeout) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def shut_down() -> bool:
    """Stop supervisor and its programs, or what is left of them where it was killed; whether there were any."""
    has_run = _note().exists()
    if is_up():
        daemon = psutil.Process(control().getPID())
        control().shutdown()
        _, left = psutil.wait_procs([daemon], 3 * STOP_SECONDS)
        for process in left:
            process.kill()
    end_remaining()
    for file in (_socket(), _socket().with_suffix(".pid"), _note()):
        file.unlink(missing_ok=True)
    return has_run


def end_remaining(*but: str) -> None:
    """End what any program has started and left behind, in whatever session: the runs of a worker, and their commands.

    It is interrupted, and killed where that takes too long. `but`: programs that are spared.
    """
    url, left = _url(), []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            environment = process.environ()  # supervisor names itself and the program in it
            if environment.get("SUPERVISOR_SERVER_URL") == url and environment["SUPERVISOR_PROCESS_NAME"] not in but:
                left.append(process)
    for number in (signal.SIGINT, signal.SIGKILL):
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        _, left = psutil.wait_procs(left, STOP_SECONDS)


def _state(program: str) -> str:
    try:
        return str(control().getProcessInfo(program)["statename"])
    except (OSError, Error):
        raise AbstainError(
            Code.NO_SERVICE,
            f"the {get_log_path(program).stem} has been stopped meanwhile, as `make down` does: run `make up`",
        ) from None


def _socket() -> Path:
    return home() / "up.sock"


def _url() -> str:
    return f"unix://{_socket()}"


def _note() -> Path:
    return home() / "up.json"
