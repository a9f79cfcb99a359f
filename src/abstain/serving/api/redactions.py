"""The threads in which rows are redacted before the log takes them: long ones delay long ones alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from abstain.data.decision_log.decisions import Recorded

SHORT = 20_000
"""Characters of the texts of a row; a longer one is redacted in another thread than those up to here."""
THREADS = 2
"""For the short ones and for the long ones each: redaction is pure Python, and more would not be faster."""


class Redactions:
    """Brings rows to the log from threads in which they are redacted."""

    def __init__(self) -> None:
        self._short, self._long = (ThreadPoolExecutor(THREADS, f"redaction of {kind}") for kind in ("short", "long"))

    async def bring(
        self, characters: int, seconds: float, put: Callable[..., Future[Recorded]], *given: Any
    ) -> Recorded:
        """What becomes of a row, once it is written.

        Args:
            characters: of its texts; with none there is nothing to redact, and no thread is needed.
            seconds: how long its redaction may take.
            put: a method of the log, which redacts; `given`: its arguments but the last one.

        Raises:
            TimeoutError: The row is not redacted in time; it is not recorded.
            AbstainError: The log cannot take it.
        """
        if not characters:
            return await asyncio.wrap_future(put(*given))
        answer: Future[Recorded] = Future()
        lane = self._long if characters > SHORT else self._short
        redacting = asyncio.get_running_loop().run_in_executor(lane, partial(put, *given, answer))
        try:
            await asyncio.wait_for(redacting, seconds)
        except BaseException as error:
            if answer.cancel() or not isinstance(error, TimeoutError):
                raise
        return await asyncio.wrap_future(answer)

    def close(self) -> None:
        """Leave what nobody waits for any more."""
        for lane in (self._short, self._long):
            lane.shutdown(wait=False, cancel_futures=True)
