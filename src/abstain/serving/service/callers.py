"""Names of callers, and how much one caller may send: a caller is a key or, without keys, an address."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextvars import ContextVar

from starlette.types import Scope

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.serving.service.keys import LOOPBACK_KEY, ApiKey

MAX_CALLERS = 1024
"""Number of callers above which those without a request in the last minute are forgotten."""


def get_caller_name(scope: Scope, api_key: ApiKey | None) -> str:
    """Return the name that a caller's limits apply to.

    Args:
        scope: ASGI scope of the request.
        api_key: Key of the caller; None without a key.

    Returns:
        The name of the key, else the address of the connection.
    """
    if api_key is not None and api_key is not LOOPBACK_KEY:
        return f"key {api_key.name}"
    return f"address {scope['client'][0] if scope.get('client') else 'unknown'}"


_current: ContextVar[str] = ContextVar("caller", default="this process")


def set_caller(scope: Scope, api_key: ApiKey | None) -> None:
    """Set the caller of the request that this task answers; its work counts as theirs.

    Args:
        scope: ASGI scope of the request.
        api_key: Key of the caller; None without a key.
    """
    _current.set(get_caller_name(scope, api_key))


def get_current_caller() -> str:
    """Return the name, by `get_caller_name`, of the caller whose request this task answers."""
    return _current.get()


class QuotaExceeded(AbstainError):
    """A caller has used its quota.

    Attributes:
        retry_after: Seconds until there is room again.
    """

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(Code.BUSY, message)
        self.retry_after = retry_after


class Quota:
    """A limit for each caller and minute; it may be used at once or evenly. For the event loop's thread only.

    Args:
        per_minute: Amount that each caller may take per minute.
        unit: Plural noun for the message.
        clock: Returns the time in seconds.
    """

    def __init__(self, per_minute: int, unit: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute, self._unit, self._clock = per_minute, unit, clock
        self._used: dict[str, tuple[float, float]] = {}  # caller -> how much is taken, and when that was

    def take(self, caller: str, amount: int = 1) -> None:
        """Take an amount from a caller's quota.

        A caller who has taken nothing in the last minute may take more than the limit at once.

        Args:
            caller: Name of the caller.
            amount: Amount to take.

        Raises:
            QuotaExceeded: The amount exceeds what is left; nothing is taken then.
        """
        used = self._get_used(caller, self._clock())
        if used and used + amount > self._per_minute:
            wait_s = (used + min(amount, self._per_minute) - self._per_minute) / self._per_minute * 60
            raise QuotaExceeded(
                f"{caller} has sent {self._per_minute:,} {self._unit} within a minute, which is all that one caller "
                "may: send fewer, or later",
                max(1, math.ceil(wait_s)),
            )
        self.charge(caller, amount)

    def charge(self, caller: str, amount: int) -> None:
        """Charge a caller for something that was admitted before; the caller's next requests have to wait for it.

        Args:
            caller: Name of the caller.
            amount: Amount to charge.
        """
        now = self._clock()
        if len(self._used) >= MAX_CALLERS:
            self._used = {name: entry for name, entry in self._used.items() if self._get_used(name, now)}
        self._used[caller] = self._get_used(caller, now) + amount, now

    def _get_used(self, caller: str, now: float) -> float:
        """Return how much of the caller's use still counts."""
        used, used_at = self._used.get(caller, (0.0, now))
        return max(0.0, used - (now - used_at) * self._per_minute / 60)
