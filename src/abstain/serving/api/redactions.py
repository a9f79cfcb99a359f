"""The threads in which rows are redacted before the log takes them: long ones delay none that are shorter, and those of
one caller none of another's.

A caller has one row at a time in the threads of each lane, and what else it brings waits outside of them, shortest
first. So a row waits there for one of each other caller at most.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any

from abstain.data.decision_log.decisions import Recorded
from abstain.serving.api.callers import Quota, current_caller

LANES = (1_000, 8_000, math.inf)
"""Characters of the longest rows that share threads: of what was tried, 1,000 take 40 ms of a processor at most."""
THREADS = 2
"""Of each lane: redaction is pure Python, and more would not be faster."""
PER_ROW = 10_000
"""For each so many characters a row counts as one more."""


class Redactions:
    """Brings rows to the log from threads in which they are redacted. For the event loop's thread.

    `rows`: of which a caller takes more by long ones.
    """

    def __init__(self, rows: Quota) -> None:
        self._rows = rows
        self._lanes = {longest: ThreadPoolExecutor(THREADS, f"redaction up to {longest}") for longest in LANES}
        self._waiting: dict[tuple[str, float], list[tuple[int, int, asyncio.Future[None]]]] = {}
        """By caller and lane, where a row of the caller is in it: the turns of others, a heap of the shortest first."""
        self._numbers = count()

    async def bring(
        self, characters: int, seconds: float, put: Callable[..., Future[Recorded]], *given: Any
    ) -> Recorded:
        """What becomes of a row, once it is written.

        Args:
            characters: of its texts; with none there is nothing to redact, and no thread is needed.
            seconds: how long its redaction may take, and wait.
            put: a method of the log, which redacts; `given`: its arguments but the last one.

        Raises:
            TimeoutError: The row is not redacted in time; it is not recorded.
            AbstainError: The log cannot take it.
        """
        if not characters:
            return await asyncio.wrap_future(put(*given))
        self._rows.charge(current_caller(), characters // PER_ROW)
        answer: Future[Recorded] = Future()
        try:
            async with asyncio.timeout(seconds):
                await self._redact(characters, partial(put, *given, answer))
        except BaseException as error:
            if answer.cancel() or not isinstance(error, TimeoutError):
                raise
        return await asyncio.wrap_future(answer)

    async def _redact(self, characters: int, work: Callable[[], object]) -> None:
        """Do `work` in a thread, in its turn; it is not begun any more once this is cancelled.

        The turn is over when the work is, even where nobody waits for it: it cannot be stopped.
        """
        loop, longest = asyncio.get_running_loop(), next(longest for longest in LANES if characters <= longest)
        key = current_caller(), longest
        if key in self._waiting:
            turn = loop.create_future()
            heappush(self._waiting[key], (characters, next(self._numbers), turn))
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # it had just come
                    self._give_turn(key)
                raise
        else:
            self._waiting[key] = []

        def end(_: Future[object]) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(self._give_turn, key)

        redacting = self._lanes[longest].submit(work)
        redacting.add_done_callback(end)
        await asyncio.wrap_future(redacting)

    def _give_turn(self, key: tuple[str, float]) -> None:
        """Let the shortest row go on that somebody still waits for."""
        waiting = self._waiting[key]
        while waiting:
            *_, turn = heappop(waiting)
            if not turn.done():
                turn.set_result(None)
                return
        del self._waiting[key]

    def close(self) -> None:
        """Leave what nobody waits for any more."""
        for lane in self._lanes.values():
            lane.shutdown(wait=False, cancel_futures=True)
