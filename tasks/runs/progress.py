"""Observers of a run's progress, in addition to Prefect's log: the command line registers a progress bar here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Observer = Callable[[str, str], None]
"""Called with a step's name and a message: `waiting`, `running`, a line of its log, `progress n/m`, `ran`, `cached`."""

_observers: list[Observer] = []


@contextmanager
def register_observer(observer: Observer) -> Iterator[None]:
    """Notify an observer of every step while the block runs.

    Args:
        observer: Called with step and message.

    Yields:
        Nothing.
    """
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


def notify_observers(step: str, message: str) -> None:
    """Notify every observer.

    Args:
        step: Name of the step.
        message: Its message.
    """
    for observer in tuple(_observers):
        observer(step, message)
