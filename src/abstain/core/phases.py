"""The CPU time of a command by phase: of this process and of the commands that it has run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

OTHER = "other"


class CpuClock:
    """Adds up seconds of CPU by phase; what belongs to no phase, the start of the process included, is `OTHER`."""

    def __init__(self) -> None:
        self._seconds = {OTHER: 0.0}
        self._phase, self._since = OTHER, 0.0

    def enter(self, phase: str) -> str:
        """Count for `phase` from now on; returns the one before, to go back to."""
        now = sum(os.times()[:4])
        before = self._phase
        self._seconds[before] = self._seconds.get(before, 0.0) + now - self._since
        self._phase, self._since = phase, now
        return before

    @property
    def seconds(self) -> dict[str, float]:
        """Phase -> seconds of CPU up to now."""
        self.enter(self._phase)
        return dict(self._seconds)


_clock: ContextVar[CpuClock | None] = ContextVar("clock", default=None)


@contextmanager
def measured() -> Iterator[CpuClock]:
    """Within the block, the phases of this thread are measured."""
    clock = CpuClock()
    token = _clock.set(clock)
    try:
        yield clock
    finally:
        _clock.reset(token)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Count the CPU time of the block for `name`, but for that of phases inside it; nothing unless `measured`."""
    clock = _clock.get()
    before = clock.enter(name) if clock else ""
    try:
        yield
    finally:
        if clock:
            clock.enter(before)
