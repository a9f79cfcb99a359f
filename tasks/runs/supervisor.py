"""Runs a command and ends it with its caller: `python -I -S supervisor.py COMMAND...`.

The caller holds this process's standard input open. When that closes, because the caller closed it or died (SIGKILL
included), the command is ended with all of its descendants. The kernel closes it, so no death is missed, on any POSIX
system; a parent-death signal would be specific to Linux, and tied to the thread that started the command. It imports
little, and from the standard library only, because every command waits for this to start.
"""

import os
import select
import signal
import sys
import time

STDIN = 0
STEPS = ((signal.SIGINT, 3.0), (signal.SIGTERM, 2.0), (signal.SIGKILL, 1.0))
"""The signals to the command's process group, and the seconds before the next one.

SIGINT first, because Python cleans up after it, and because DVC leaves it to the stage and then ends in good order.
"""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals to this process that mean the same as a closed standard input."""


def main(command: list[str]) -> int:
    """Run a command in its own process group.

    Args:
        command: The command.

    Returns:
        Its exit status; 128 + N if signal N ended it.
    """
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (*STOP_SIGNALS, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    pid = os.posix_spawnp(
        command[0],
        command,
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, STDIN, os.devnull, os.O_RDONLY, 0)],
        setpgroup=0,
        setsigdef=[
            signal.SIGPIPE,
            signal.SIGXFSZ,
            *STOP_SIGNALS,
        ],  # Python ignores the first two, a background job SIGINT
    )
    status = None
    while status is None:
        status = _end(pid) if _must_end(woken) else _status(pid)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _must_end(woken: int) -> bool:
    """Wait for a change, and return whether the command has to end; otherwise it may have ended by itself."""
    ready, _, _ = select.select([STDIN, woken], [], [])
    return STDIN in ready or not set(STOP_SIGNALS).isdisjoint(os.read(woken, 1024))


def _status(pid: int) -> int | None:
    """Return the wait status of the command; None while it runs."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return status if ended else None


def _end(pid: int) -> int | None:
    """End the command's process group; return its wait status, or None if even SIGKILL takes time."""
    status = None
    for number, seconds in STEPS:
        deadline = time.monotonic() + seconds
        try:
            os.killpg(pid, number)
            while time.monotonic() < deadline:
                status = _status(pid) if status is None else status
                os.killpg(pid, 0)
                time.sleep(0.02)
        except ProcessLookupError:  # no process of the group is left
            break
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
