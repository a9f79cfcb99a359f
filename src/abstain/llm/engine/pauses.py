"""The base model may pause between two forward passes: to stop, or to do something more urgent first.

The caller that runs the model sets what a pause does, for all that its thread does in a block. The callers in between,
down to the shards of the feature cache, need not pass it on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_pause: ContextVar[Callable[[], None]] = ContextVar("pause", default=lambda: None)


class WorkCancelled(Exception):
    """Raised in a pause of work whose result is no longer needed."""


@contextmanager
def call_on_pause(callback: Callable[[], None]) -> Iterator[None]:
    """Call a function in each pause within the block.

    Args:
        callback: The function. It may raise, and may run other forward passes.

    Yields:
        None.
    """
    token = _pause.set(callback)
    try:
        yield
    finally:
        _pause.reset(token)


def pause() -> None:
    """Run the callback of `call_on_pause`; the engine calls this between two forward passes.

    Raises:
        Exception: Whatever the callback raises.
    """
    _pause.get()()
