"""The threads in which rows are redacted before the log takes them: long ones delay none that are shorter."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from abstain.data.decision_log.decisions import Recorded

LANES = (1_000, 8_000, math.inf)
"""Characters of the longest rows that share threads: of what was tried, 1,000 take 40 ms of a processor at most."""
THREADS = 2
"""Of each lane: redaction is pure Python, and more would not be faster."""


class Redactions:
    """Brings rows to the log from threads in which they are redacted."""

    def __init__(self) -> None:
        self._lanes = {longest: ThreadPoolExecutor(THREADS, f"redaction up to {longest}") for longest in LANES}

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
        lane = next(lane for longest, lane in self._lanes.items() if characters <= longest)
        redacting = asyncio.get_running_loop().run_in_executor(lane, partial(put, *given, answer))
        try:
            await asyncio.wait_for(redacting, seconds)
        except BaseException as error:
            if answer.cancel() or not isinstance(error, TimeoutError):
                raise
        return await asyncio.wrap_future(answer)

    def close(self) -> None:
        """Leave what nobody waits for any more."""
        for lane in self._lanes.values():
            lane.shutdown(wait=False, cancel_futures=True)
