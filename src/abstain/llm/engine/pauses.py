"""Between two forward passes the base model may pause: to stop, or to do something more urgent first.

Who runs it says what a pause does, for all that its thread does in a block; the engine's callers, down to the shards of
the feature cache, need not hand it on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_pause: ContextVar[Callable[[], None]] = ContextVar("pause", default=lambda: None)


class Unwanted(Exception):
    """Raised in a pause of work that nobody waits for any more."""


@contextmanager
def pausing(do: Callable[[], None]) -> Iterator[None]:
    """Within the block, `do` is called in each pause. It may raise, and may run other passes."""
    token = _pause.set(do)
    try:
        yield
    finally:
        _pause.reset(token)


def pause() -> None:
    """Called by the engine between two forward passes. Raises what `pausing` was given raises."""
    _pause.get()()
