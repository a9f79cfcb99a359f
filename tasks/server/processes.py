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
from typing import Any
from urllib.request import Request, urlopen

import psutil  # type: ignore[import-untyped]

from abstain.config.settings import load_settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import make_home, write_json
from tasks.shell import run

START_SECONDS = 120
STOP_SECONDS = 20
MAX_SOCKET = 95
"""Characters of the socket's path on every system, with those that supervisor appends while it makes it."""


def home() -> Path:
    """The absolute path of `ABSTAIN_HOME`."""
    return load_settings().home.resolve()


def log_of(program: str) -> Path:
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


@contextmanager
def starting_alone() -> Iterator[None]:
    """One server starts at a time: two would create the tables of a new database at once."""
    make_home(home())
    with (home() / "starting.lock").open("w") as lock:
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
    if len(str(_socket())) > MAX_SOCKET:
        raise AbstainError(
            Code.BAD_SETTING,
            f"ABSTAIN_HOME: {home()} is too long a path for a socket in it: choose one of at most "
            f"{MAX_SOCKET - len(_socket().name) - 1} characters",
        )
    write_json(_note(), noted)
    umask = os.umask(0o077)
    os.umask(umask)
    config = Path(__file__).with_name("supervisord.conf")
    run(["supervisord", "--configuration", str(config), "--umask", f"{umask:o}"], root)


def control() -> Any:
    """What supervisor can be asked to do: https://supervisord.org/api.html."""
    from supervisor.childutils import getRPCInterface  # type: ignore[import-untyped]

    return getRPCInterface({"SUPERVISOR_SERVER_URL": _url()}).supervisor


def wait_for(program: str, ready: str | Request) -> None:
    """Wait until `ready` responds, as it does when `program` is up. Raises `AbstainError` where that is not to be."""
    deadline = time.monotonic() + START_SECONDS
    while not answers(ready):
        if control().getProcessInfo(program)["statename"] == "FATAL" or time.monotonic() > deadline:
            raise AbstainError(Code.NO_SERVICE, f"the {log_of(program).stem} did not start: see {log_of(program)}")
        time.sleep(0.2)


def answers(url: str | Request, timeout: float = 2) -> bool:
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
        psutil.wait_procs([daemon])
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


def _socket() -> Path:
    return home() / "up.sock"


def _url() -> str:
    return f"unix://{_socket()}"


def _note() -> Path:
    return home() / "up.json"
