"""The programs of `make up`, kept running by supervisor; supervisord.conf in this folder lists them.

Supervisor accepts connections on the socket `up.sock` of the home, which only its owner may use, for as long as it
lives: a stale file of a crash is ignored.
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
from abstain_tasks.runs.shell import run

START_SECONDS = 120
STOP_SECONDS = 20
MAX_SOCKET = 95
"""Bytes of the socket's path on every system, with those that supervisor appends while it makes it."""


def home() -> Path:
    """Return the absolute path of `ABSTAIN_HOME`."""
    return load_settings().home.resolve()


def get_log_path(program: str) -> Path:
    """Return the log file of a program."""
    return home() / f"{program.rpartition(':')[2]}.log"


def is_up() -> bool:
    """Return whether supervisor runs for this home."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(_socket()))
        except OSError:
            return False
    return True


def read_note() -> dict[str, str]:
    """Read what was noted when the programs were started; empty if they do not run."""
    noted: dict[str, str] = json.loads(_note().read_text()) if is_up() else {}
    return noted


def write_note(noted: dict[str, str]) -> None:
    """Note what users of the programs have to know, such as addresses.

    Args:
        noted: The note.
    """
    write_json(_note(), noted)


@contextmanager
def hold_server_lock(act: Literal["starting", "stopping"]) -> Iterator[None]:
    """Hold the lock for starting or stopping the programs while the block runs.

    One server starts at a time, because two would create the tables of a new database at once; one process stops it. A
    start does not make a stop wait.

    Args:
        act: What the block does.

    Yields:
        Nothing.
    """
    create_home(home())
    with (home() / f"{act}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def start(root: Path, noted: dict[str, str]) -> None:
    """Start supervisor in the background, and with it the programs that need no others.

    Args:
        root: The checkout, in which the programs run.
        noted: What users of the programs have to know, for `read_note`.

    Raises:
        AbstainError: Supervisor does not start.
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
    """Return supervisor's interface: https://supervisord.org/api.html."""
    from supervisor.childutils import getRPCInterface  # type: ignore[import-untyped]

    return getRPCInterface({"SUPERVISOR_SERVER_URL": _url()}).supervisor


def is_running(program: str) -> bool:
    """Return whether a program runs, or supervisor is about to start it. Raises `AbstainError` if supervisor stops."""
    return _state(program) in ("STARTING", "RUNNING", "BACKOFF")


def wait_for(program: str, ready: str | Request) -> None:
    """Wait until a program is up.

    Args:
        program: The program.
        ready: URL that responds when it is up.

    Raises:
        AbstainError: The program does not start.
    """
    deadline = time.monotonic() + START_SECONDS
    while not is_responding(ready):
        if _state(program) == "FATAL" or time.monotonic() > deadline:
            raise AbstainError(
                Code.NO_SERVICE, f"the {get_log_path(program).stem} did not start: see {get_log_path(program)}"
            )
        time.sleep(0.2)


def is_responding(url: str | Request, timeout: float = 2) -> bool:
    """Check whether a URL responds with status 200.

    Args:
        url: The URL.
        timeout: Seconds to wait.

    Returns:
        Whether it does.
    """
    try:
        with urlopen(url, timeout=timeout) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def shut_down() -> bool:
    """Stop supervisor and its programs, or what is left of them if it was killed; return whether there were any."""
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
    """End what any program has started and left behind, in any session: the runs of a worker, and their commands.

    A process is interrupted, and killed if that takes too long.

    Args:
        *but: Programs that are spared.
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
