"""Who is told how a run goes, beside Prefect's own log: the command line registers a progress bar here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Observer = Callable[[str, str], None]
"""Called with a step's name and what it says: a line of its log, `progress n/m`, `ran` or `cached`."""

_observers: list[Observer] = []


@contextmanager
def observed_by(observer: Observer) -> Iterator[None]:
    """Tell `observer` of every step while the block runs."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


def observe(step: str, says: str) -> None:
    """Tell every observer that `step` says `says`."""
    for observer in tuple(_observers):
        observer(step, says)
