"""Stopping: end the work of a run's threads when the run is interrupted.

Python raises KeyboardInterrupt, and Prefect its TerminationSignal, in the main thread only, while the threads of a task
runner wait for the commands of a run. The main thread signals here that it stops, and each thread registers how its
work can be ended. Prefect gives a task's thread the context of its flow, which identifies the run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from abstain.core.codes import Code
from abstain.core.errors import AbstainError

StopCallback = Callable[[], object]


class Stopped(AbstainError):
    """The run was interrupted while a thread of it was at work."""

    def __init__(self) -> None:
        super().__init__(Code.NOT_PUBLISHED, "the run was stopped: run the same command again to go on where it was")


class _Run:
    """The current work of a run's threads."""

    def __init__(self) -> None:
        self._alone, self._stopped = threading.Lock(), False
        self._ends: list[StopCallback] = []

    def stop(self) -> None:
        with self._alone:
            self._stopped = True
            for end in self._ends:
                end()

    def require_going_on(self) -> None:
        if self._stopped:
            raise Stopped

    def begin(self, end: StopCallback) -> None:
        with self._alone:
            self.require_going_on()
            self._ends.append(end)

    def finish(self, end: StopCallback) -> None:
        with self._alone:
            self._ends.remove(end)
        self.require_going_on()


_run: ContextVar[_Run | None] = ContextVar("run", default=None)


@contextmanager
def stop_threads_on_error() -> Iterator[None]:
    """End the work of the block's threads if an exception leaves it; they begin nothing more.

    Yields:
        Nothing.
    """
    run = _Run()
    token = _run.set(run)
    try:
        yield
    except BaseException:
        run.stop()
        raise
    finally:
        _run.reset(token)


@contextmanager
def stop_with(end: StopCallback) -> Iterator[None]:
    """Let another thread end the work of this block by calling `end`.

    Args:
        end: Ends the work.

    Yields:
        Nothing.

    Raises:
        Stopped: The run was stopped before the block or in it.
    """
    run = _run.get()
    if run is None:
        yield
        return
    run.begin(end)
    try:
        yield
    finally:
        run.finish(end)


def raise_if_stopped() -> None:
    """Raise `Stopped` if the run has been stopped, for a thread that waits in a polling loop."""
    if run := _run.get():
        run.require_going_on()
