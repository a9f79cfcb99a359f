"""Background processes by name: started with a log and a locked pid file, stopped with all their descendants.

`NAME.pid` is locked by its process for as long as it lives: a stale file of a crash is ignored, and so is a later
process with the same number.
"""

from __future__ import annotations

import fcntl
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.request import Request, urlopen

import psutil  # type: ignore[import-untyped]

from abstain.config.settings import load_settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import make_home
from tasks.shell import environment

START_SECONDS = 120
STOP_SECONDS = 20


def home() -> Path:
    """The absolute path of `ABSTAIN_HOME`."""
    return load_settings().home.resolve()


def log_of(name: str) -> Path:
    return home() / f"{name}.log"


def pid_of(name: str) -> int | None:
    """The process that holds the pid file's lock; None where it is not locked."""
    file = _pid_file(name)
    if not file.is_file():
        return None
    with file.open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int((lock.read().split() or ["0"])[0]) or None  # it is written a moment after it is locked
    return None


def address_of(name: str) -> str | None:
    """The address that the process serves; None where it does not run."""
    return None if pid_of(name) is None else _pid_file(name).read_text().split()[1]


def note_of(name: str) -> str:
    """What was noted when the process was started; empty where it does not run."""
    return "" if pid_of(name) is None else " ".join(_pid_file(name).read_text().split()[2:])


@contextmanager
def starting_alone() -> Iterator[None]:
    """One server starts at a time: two would create the tables of a new database at once."""
    make_home(home())
    with (home() / "starting.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def start(
    name: str, command: Sequence[str], root: Path, ready: str | Request, address: str = "", note: str = ""
) -> None:
    """Run `command` in the background, with its log and its locked pid file, and wait until `ready` responds.

    `address` is what it serves, `note` what those that use it have to know. Raises `AbstainError` where it ends, or
    takes too long.
    """
    with _pid_file(name).open("a+") as pid, log_of(name).open("ab") as log:
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
        pid.write(f"{process.pid} {address} {note}\n")
    deadline = time.monotonic() + START_SECONDS
    while not answers(ready):
        if process.poll() is not None or time.monotonic() > deadline:
            raise AbstainError(Code.NO_SERVICE, f"the {name} did not start: see {log_of(name)}")
        time.sleep(0.2)


def answers(url: str | Request, timeout: float = 2) -> bool:
    """Whether `url` responds."""
    try:
        with urlopen(url, timeout=timeout) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def stop(name: str) -> bool:
    """Terminate the process and its descendants, then kill them; whether there was one."""
    pid = pid_of(name)
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


def _pid_file(name: str) -> Path:
    return home() / f"{name}.pid"
