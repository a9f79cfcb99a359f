"""Waiting for a result no longer than the caller does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from abstain.core.codes import Code
from abstain.core.errors import AbstainError

WaitForDisconnect = Callable[[], Awaitable[object]]
"""Returns an awaitable that ends when the caller does not wait any more."""
T = TypeVar("T")


class CallerLeft(AbstainError):
    """The caller does not wait for the result any more."""

    def __init__(self) -> None:
        super().__init__(Code.BUSY, "the caller has disconnected")


async def cancel_on_disconnect(work: Coroutine[Any, Any, T], wait_for_disconnect: WaitForDisconnect) -> T:
    """Return the result of `work`; if the caller leaves before, cancel it.

    Args:
        work: The work.
        wait_for_disconnect: Ends when the caller has left.

    Returns:
        The result.

    Raises:
        CallerLeft: The caller has left.
    """
    tasks = asyncio.ensure_future(work), asyncio.ensure_future(wait_for_disconnect())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise CallerLeft
        return tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()


async def run_with_timeout(timeout_s: float, work: Awaitable[T]) -> T:
    """Return the result of `work` if it comes in time.

    Args:
        timeout_s: Time limit in seconds.
        work: The work.

    Returns:
        The result.

    Raises:
        AbstainError: There is no result within the limit.
    """
    try:
        return await asyncio.wait_for(work, timeout_s)
    except TimeoutError:
        raise AbstainError(Code.BUSY, f"there was no result within {timeout_s:g} s: ask again later") from None
