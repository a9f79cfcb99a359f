"""Micro-batches for the base model: what waits while it is busy is read together next.

Nothing waits for company: a request that finds the model idle is run at once, alone. There is one model and one thread
for it; the queue is bounded, for all and for each caller, so that a burst is refused instead of becoming a wait that
nobody stays for.

Decisions go first: before all else that waits, and in the pauses of what runs, between two of its tokens. There, too,
ends what nobody waits for any more, because its time is up or its caller has left.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.engine.pauses import Unwanted, pausing
from abstain.serving.api.callers import REMEMBERED

T = TypeVar("T")
R = TypeVar("R")
Run = Callable[[Sequence[T]], Sequence[R]]


@dataclass(frozen=True, eq=False)
class _Job(Generic[T, R]):
    batch_key: Hashable
    run: Run
    item: T
    caller: str
    is_decision: bool
    future: asyncio.Future


class Batcher:
    """Runs jobs in one thread of its own, those of one kind together, at most `size` at once.

    `max_queued`: jobs that may wait, `of_caller`: those of one caller; one more raises `AbstainError`.
    """

    def __init__(self, size: int, max_queued: int, of_caller: int) -> None:
        self._size, self._most, self._of_caller = size, max_queued, of_caller
        self._waiting: deque[_Job[Any, Any]] = deque()
        self._served: dict[str, None] = {}  # callers whose answers were begun, the one served last at the end
        self._lock = threading.Lock()  # of what waits: the thread takes decisions from it in its pauses
        self._thread = ThreadPoolExecutor(1, "base-model")
        self._runner: asyncio.Task | None = None

    def __len__(self) -> int:
        """Jobs that wait."""
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs or waits."""
        return self._runner is None or self._runner.done()

    async def run(self, batch_key: Hashable, run: Run[T, R], item: T, *, caller: str, is_decision: bool = False) -> R:
        """The result of `item`; `run` may be given those of others of the same `batch_key`, too.

        Who is cancelled leaves the queue, and what runs for nobody else ends. Raises what `run` raises: if it does for
        several, each is run alone, so that one caller's bad input is not another's error.
        """
        self.check_capacity(caller)
        done = asyncio.get_running_loop().create_future()
        job: _Job[T, R] = _Job(batch_key, run, item, caller, is_decision, done)
        with self._lock:
            self._waiting.append(job)
        if self.is_idle:
            self._runner = asyncio.create_task(self._run_all())
        try:
            result: R = await job.future
            return result
        finally:
            with self._lock:
                if job in self._waiting:
                    self._waiting.remove(job)

    def check_capacity(self, caller: str, jobs: int = 1) -> None:
        """Raise `AbstainError` where, with `jobs` more of `caller`, more would wait than may, of all or of `caller`."""
        with self._lock:
            of_caller = sum(job.caller == caller for job in self._waiting)
        if len(self._waiting) + jobs > self._most:
            raise AbstainError(
                Code.BUSY,
                f"{len(self._waiting)} requests wait for the base model, {self._most} may: ask again in a moment",
            )
        if of_caller + jobs > self._of_caller:
            raise AbstainError(
                Code.BUSY,
                f"{of_caller} requests of {caller} wait for the base model, {self._of_caller} of one caller may: ask "
                "for less at once, or again in a moment",
            )

    async def close(self) -> None:
        """Finish what runs and waits."""
        if self._runner is not None:
            await self._runner
        self._thread.shutdown()

    async def _run_all(self) -> None:
        loop = asyncio.get_running_loop()
        while jobs := self._next():
            await loop.run_in_executor(self._thread, self._run, jobs, loop)

    def _next(self, *, decisions_only: bool = False) -> list[_Job[Any, Any]]:
        """Take what is run next from the queue: the decisions, else what the caller served least recently asks for.

        Others of its kind are run with it; callers take turns there, too.
        """
        before = Counter[str]()

        def turn(job: _Job[Any, Any]) -> tuple[int, int]:
            before[job.caller] += 1
            return before[job.caller], last_served.get(job.caller, -1)

        with self._lock:
            last_served = {caller: at for at, caller in enumerate(self._served)}
            first = next((job for job in self._waiting if job.is_decision), None)
            if first is None and self._waiting and not decisions_only:
                first = min(self._waiting, key=lambda job: last_served.get(job.caller, -1))
            of_kind = [job for job in self._waiting if first is not None and job.batch_key == first.batch_key]
            chosen = sorted(of_kind, key=turn)[: self._size]
            for job in chosen:
                self._waiting.remove(job)
                if not job.is_decision:
                    self._served.pop(job.caller, None)
                    self._served[job.caller] = None
            while len(self._served) > REMEMBERED:
                del self._served[next(iter(self._served))]
        return chosen

    def _run(self, jobs: list[_Job[Any, Any]], loop: asyncio.AbstractEventLoop) -> None:
        """Run `jobs` in the thread of the base model, and tell `loop` what came of them."""

        def pause() -> None:
            if all(job.future.done() for job in jobs):
                raise Unwanted
            if not jobs[0].is_decision and (decisions := self._next(decisions_only=True)):
                self._run(decisions, loop)

        outcomes: Sequence[Any]
        try:
            with pausing(pause):
                outcomes = jobs[0].run([job.item for job in jobs])
        except Unwanted:
            return
        except Exception as error:
            if len(jobs) > 1:
                for job in jobs:
                    self._run([job], loop)
                return
            outcomes = [error]
        for job, outcome in zip(jobs, outcomes, strict=True):
            loop.call_soon_threadsafe(_format_reason, job.future, outcome)


def _format_reason(done: asyncio.Future, outcome: Any) -> None:
    """Give `outcome`, a result or an error, to who waits for it, if anybody still does."""
    if done.done():
        return
    if isinstance(outcome, Exception):
        done.set_exception(outcome)
    else:
        done.set_result(outcome)
