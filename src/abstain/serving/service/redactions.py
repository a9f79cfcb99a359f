"""Threads that redact rows before the log takes them.

Long rows do not delay shorter ones, and those of one caller do not delay another's. In the threads of each lane a
caller has one row at a time; its other rows wait outside of them, shortest first. So a row waits there for at most one
row of each other caller.
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

from abstain.data.decision_log.decisions import RecordOutcome
from abstain.serving.service.callers import Quota, get_current_caller

LANE_CHARACTERS = (1_000, 8_000, math.inf)
"""Maximum length of a row in each lane; in tests 1,000 characters took at most 40 ms of a processor."""
THREADS_PER_LANE = 2
"""Redaction is pure Python, so more threads would not be faster."""
CHARACTERS_PER_ROW = 10_000
"""Number of characters that count as one more row."""


class Redactions:
    """Redacts rows in threads and writes them to the log. For the event loop's thread only.

    Args:
        row_quota: Quota of rows, of which long rows take more.
    """

    def __init__(self, row_quota: Quota) -> None:
        self._row_quota = row_quota
        self._lanes = {
            longest: ThreadPoolExecutor(THREADS_PER_LANE, f"redaction up to {longest}") for longest in LANE_CHARACTERS
        }
        self._turns: dict[tuple[str, float], list[tuple[int, int, asyncio.Future[None]]]] = {}
        """Waiting turns, shortest row first, by caller and lane; present while the lane has a row of the caller."""
        self._counter = count()

    async def redact_and_write(
        self, n_characters: int, timeout_s: float, write_row: Callable[..., Future[RecordOutcome]], *args: Any
    ) -> RecordOutcome:
        """Redact a row and write it to the log.

        Args:
            n_characters: Length of its texts. With 0 there is nothing to redact, and no thread is needed.
            timeout_s: Maximum time for waiting and redacting, in seconds.
            write_row: A method of the log, which redacts.
            *args: Its arguments except the last one.

        Returns:
            What became of the row.

        Raises:
            TimeoutError: The row is not redacted in time; it is not recorded.
            AbstainError: The log cannot take it.
        """
        if not n_characters:
            return await asyncio.wrap_future(write_row(*args))
        self._row_quota.charge(get_current_caller(), n_characters // CHARACTERS_PER_ROW)
        result: Future[RecordOutcome] = Future()
        try:
            async with asyncio.timeout(timeout_s):
                await self._redact(n_characters, partial(write_row, *args, result))
        except BaseException as error:
            if result.cancel() or not isinstance(error, TimeoutError):
                raise
        return await asyncio.wrap_future(result)

    async def _redact(self, n_characters: int, work: Callable[[], object]) -> None:
        """Run `work` in a thread when it is its turn; it does not begin any more once this is cancelled.

        The turn ends with the work, even if nobody waits for it: it cannot be stopped.
        """
        loop, longest = (
            asyncio.get_running_loop(),
            next(longest for longest in LANE_CHARACTERS if n_characters <= longest),
        )
        key = get_current_caller(), longest
        if key in self._turns:
            turn = loop.create_future()
            heappush(self._turns[key], (n_characters, next(self._counter), turn))
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # it had just come
                    self._give_turn(key)
                raise
        else:
            self._turns[key] = []

        def on_done(_: Future[object]) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._give_turn, key)

        job = self._lanes[longest].submit(work)
        job.add_done_callback(on_done)
        await asyncio.wrap_future(job)

    def _give_turn(self, key: tuple[str, float]) -> None:
        """Let the shortest waiting row continue."""
        waiting = self._turns[key]
        while waiting:
            *_, turn = heappop(waiting)
            if not turn.done():
                turn.set_result(None)
                return
        del self._turns[key]

    def close(self) -> None:
        """Stop without waiting for the remaining rows."""
        for lane in self._lanes.values():
            lane.shutdown(wait=False, cancel_futures=True)
