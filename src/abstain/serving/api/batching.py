"""Micro-batches for the base model: what waits while it is busy is read together next.

Nothing waits for company: a request that finds the model idle is run at once, alone. There is one model and one thread
for it; the queue is bounded, so that a burst is refused instead of becoming a wait that nobody stays for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from abstain.core.codes import Code
from abstain.core.errors import AbstainError

T = TypeVar("T")
R = TypeVar("R")
Run = Callable[[Sequence[T]], Sequence[R]]


@dataclass(frozen=True, eq=False)
class _Job(Generic[T, R]):
    kind: Hashable
    run: Run
    item: T
    done: asyncio.Future


class Batcher:
    """Runs jobs in one thread of its own, those of one kind together, at most `size` at once.

    `waiting`: jobs that may wait; one more raises `AbstainError`.
    """

    def __init__(self, size: int, waiting: int) -> None:
        self._size, self._most = size, waiting
        self._waiting: deque[_Job[Any, Any]] = deque()
        self._thread = ThreadPoolExecutor(1, "base-model")
        self._runner: asyncio.Task | None = None

    def __len__(self) -> int:
        """Jobs that wait."""
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs or waits."""
        return self._runner is None or self._runner.done()

    async def run(self, kind: Hashable, run: Run[T, R], item: T) -> R:
        """The result of `item`; `run` may be given those of others of the same `kind`, too.

        Who is cancelled leaves the queue. Raises what `run` raises: if it does for several, each is run alone, so that
        one caller's bad input is not another's error.
        """
        self.require_room()
        job: _Job[T, R] = _Job(kind, run, item, asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run_all())
        try:
            result: R = await job.done
            return result
        finally:
            if job in self._waiting:
                self._waiting.remove(job)

    def require_room(self) -> None:
        """Raise `AbstainError` where as many wait as may."""
        if len(self._waiting) >= self._most:
            raise AbstainError(Code.BUSY, f"{self._most} requests wait for the base model: ask again in a moment")

    async def close(self) -> None:
        """Finish what runs and waits."""
        if self._runner is not None:
            await self._runner
        self._thread.shutdown()

    async def _run_all(self) -> None:
        while self._waiting:
            await self._run(self._next())

    def _next(self) -> list[_Job[Any, Any]]:
        kind = self._waiting[0].kind
        chosen = [job for job in self._waiting if job.kind == kind][: self._size]
        for job in chosen:
            self._waiting.remove(job)
        return chosen

    async def _run(self, jobs: list[_Job[Any, Any]]) -> None:
        loop = asyncio.get_running_loop()
        try:
            results = await loop.run_in_executor(self._thread, jobs[0].run, [job.item for job in jobs])
        except Exception as error:
            if len(jobs) > 1:
                for job in jobs:
                    await self._run([job])
            elif not jobs[0].done.done():
                jobs[0].done.set_exception(error)
            return
        for job, result in zip(jobs, results, strict=True):
            if not job.done.done():
                job.done.set_result(result)
