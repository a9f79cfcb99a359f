"""Who asks, and what one caller may take: the holder of a key, or where there are no keys, an address."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextvars import ContextVar

from starlette.types import Scope

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.serving.api.keys import LOOPBACK_KEY, ApiKey

REMEMBERED = 1024
"""From so many callers on, those are forgotten who have asked for nothing in the last minute."""


def caller_of(scope: Scope, holder: ApiKey | None) -> str:
    """Return by which name the limits of a caller count: that of the key, else the address of the connection."""
    if holder is not None and holder is not LOOPBACK_KEY:
        return f"key {holder.name}"
    return f"address {scope['client'][0] if scope.get('client') else 'unknown'}"


_current: ContextVar[str] = ContextVar("caller", default="this process")


def set_caller(scope: Scope, holder: ApiKey | None) -> None:
    """Say who has sent the request that this task answers: what is done for it counts as theirs."""
    _current.set(caller_of(scope, holder))


def current_caller() -> str:
    """Return the name, as of `caller_of`, of who has sent the request that this task answers."""
    return _current.get()


class OverQuota(AbstainError):
    """A caller has taken what it may: in `retry_after` seconds there is room again."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(Code.BUSY, message)
        self.retry_after = retry_after


class Quota:
    """A number of `things` that each caller may take in a minute: at once, or evenly. For the event loop's thread."""

    def __init__(self, a_minute: int, things: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._a_minute, self._things, self._clock = a_minute, things, clock
        self._taken: dict[str, tuple[float, float]] = {}  # caller -> how much is taken, and when that was

    def take(self, caller: str, amount: int = 1) -> None:
        """Count `amount` more of `caller`. Raises `OverQuota` where it is too much, and then counts nothing.

        More than a minute's at once is taken by who has taken nothing before.
        """
        taken = self._left(caller, self._clock())
        if taken and taken + amount > self._a_minute:
            wait = (taken + min(amount, self._a_minute) - self._a_minute) / self._a_minute * 60
            raise OverQuota(
                f"{caller} has sent {self._a_minute:,} {self._things} within a minute, which is all that one caller "
                "may: send fewer, or later",
                max(1, math.ceil(wait)),
            )
        self.charge(caller, amount)

    def charge(self, caller: str, amount: int) -> None:
        """Count `amount` more of `caller`, of what was let in before: what comes next has to wait for it."""
        now = self._clock()
        if len(self._taken) >= REMEMBERED:
            self._taken = {one: known for one, known in self._taken.items() if self._left(one, now)}
        self._taken[caller] = self._left(caller, now) + amount, now

    def _left(self, caller: str, now: float) -> float:
        """How much of what `caller` has taken still counts."""
        taken, at = self._taken.get(caller, (0.0, now))
        return max(0.0, taken - (now - at) * self._a_minute / 60)
