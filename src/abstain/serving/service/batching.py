"""Micro-batches for the base model: requests that wait while it is busy run together next.

A request that finds the model idle runs at once and does not wait for others. There is one model and one thread for it.
The queue is bounded, in total and for each caller, so that a burst is rejected instead of becoming a wait that outlasts
the callers.

Decisions have priority: they run before everything else in the queue, and in the pauses of a running job, between two
of its tokens. A job that nobody waits for any more, because it timed out or its caller has left, ends there, too.
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
from abstain.llm.engine.pauses import WorkCancelled, call_on_pause
from abstain.serving.service.callers import MAX_CALLERS

T = TypeVar("T")
R = TypeVar("R")
Run = Callable[[Sequence[T]], Sequence[R]]


@dataclass(frozen=True, eq=False)
class _Job(Generic[T, R]):
    """A job in the queue; `future` gets its result."""

    batch_key: Hashable
    run: Run
    item: T
    caller: str
    is_decision: bool
    future: asyncio.Future


class Batcher:
    """Runs jobs in one thread of its own; jobs with the same batch key run together.

    Args:
        size: Maximum number of jobs in a batch.
        max_queued: Maximum number of jobs in the queue; one more raises `AbstainError`.
        max_queued_per_caller: Maximum number of one caller's jobs in the queue; one more raises `AbstainError`.
    """

    def __init__(self, size: int, max_queued: int, max_queued_per_caller: int) -> None:
        self._size, self._max_queued, self._max_queued_per_caller = size, max_queued, max_queued_per_caller
        self._queue: deque[_Job[Any, Any]] = deque()
        self._served_callers: dict[str, None] = {}  # callers whose answers were begun, the one served last at the end
        self._lock = threading.Lock()  # of what waits: the thread takes decisions from it in its pauses
        self._thread = ThreadPoolExecutor(1, "base-model")
        self._runner: asyncio.Task | None = None

    def __len__(self) -> int:
        """Return the number of jobs in the queue."""
        return len(self._queue)

    @property
    def is_idle(self) -> bool:
        """Whether no job runs or waits."""
        return self._runner is None or self._runner.done()

    async def run(self, batch_key: Hashable, run: Run[T, R], item: T, *, caller: str, is_decision: bool = False) -> R:
        """Run one job and return its result.

        A cancelled job leaves the queue, and a running batch ends if nobody waits for it any more. If `run` fails for
        several jobs, each of them runs singly, so that one caller's bad input is not another's error.

        Args:
            batch_key: Jobs with equal keys may run in one batch.
            run: Computes the results of a batch, in order.
            item: Input of this job.
            caller: Name of the caller, for limits and turns.
            is_decision: Whether the job is a decision, which has priority.

        Returns:
            The result for `item`.

        Raises:
            AbstainError: The queue is full, in total or for this caller; and whatever `run` raises.
        """
        self.check_capacity(caller)
        future = asyncio.get_running_loop().create_future()
        job: _Job[T, R] = _Job(batch_key, run, item, caller, is_decision, future)
        with self._lock:
            self._queue.append(job)
        if self.is_idle:
            self._runner = asyncio.create_task(self._run_all())
        try:
            result: R = await job.future
            return result
        finally:
            with self._lock:
                if job in self._queue:
                    self._queue.remove(job)

    def check_capacity(self, caller: str, n_jobs: int = 1) -> None:
        """Check that the queue has room for more jobs of a caller.

        Args:
            caller: Name of the caller.
            n_jobs: Number of further jobs.

        Raises:
            AbstainError: There is no room, in total or for this caller.
        """
        with self._lock:
            n_queued_of_caller = sum(job.caller == caller for job in self._queue)
        if len(self._queue) + n_jobs > self._max_queued:
            raise AbstainError(
                Code.BUSY,
                f"{len(self._queue)} requests wait for the base model, {self._max_queued} may: ask again in a moment",
            )
        if n_queued_of_caller + n_jobs > self._max_queued_per_caller:
            raise AbstainError(
                Code.BUSY,
                f"{n_queued_of_caller} requests of {caller} wait for the base model, {self._max_queued_per_caller} of "
                "one caller may: ask for less at once, or again in a moment",
            )

    async def close(self) -> None:
        """Finish all jobs that run or wait."""
        if self._runner is not None:
            await self._runner
        self._thread.shutdown()

    async def _run_all(self) -> None:
        loop = asyncio.get_running_loop()
        while jobs := self._take_next():
            await loop.run_in_executor(self._thread, self._run, jobs, loop)

    def _take_next(self, *, decisions_only: bool = False) -> list[_Job[Any, Any]]:
        """Take the next batch from the queue: the decisions, else the job of the caller who was served least recently.

        Other jobs with the same batch key are taken with it; callers take turns there, too.
        """
        turns = Counter[str]()

        def get_priority(job: _Job[Any, Any]) -> tuple[int, int]:
            turns[job.caller] += 1
            return turns[job.caller], last_served.get(job.caller, -1)

        with self._lock:
            last_served = {caller: index for index, caller in enumerate(self._served_callers)}
            first = next((job for job in self._queue if job.is_decision), None)
            if first is None and self._queue and not decisions_only:
                first = min(self._queue, key=lambda job: last_served.get(job.caller, -1))
            same_batch = [job for job in self._queue if first is not None and job.batch_key == first.batch_key]
            jobs = sorted(same_batch, key=get_priority)[: self._size]
            for job in jobs:
                self._queue.remove(job)
                if not job.is_decision:
                    self._served_callers.pop(job.caller, None)
                    self._served_callers[job.caller] = None
            while len(self._served_callers) > MAX_CALLERS:
                del self._served_callers[next(iter(self._served_callers))]
        return jobs

    def _run(self, jobs: list[_Job[Any, Any]], loop: asyncio.AbstractEventLoop) -> None:
        """Run `jobs` in the thread of the base model, and set their results in `loop`."""

        def on_pause() -> None:
            if all(job.future.done() for job in jobs):
                raise WorkCancelled
            if not jobs[0].is_decision and (decisions := self._take_next(decisions_only=True)):
                self._run(decisions, loop)

        outcomes: Sequence[Any]
        try:
            with call_on_pause(on_pause):
                outcomes = jobs[0].run([job.item for job in jobs])
        except WorkCancelled:
            return
        except Exception as error:
            if len(jobs) > 1:
                for job in jobs:
                    self._run([job], loop)
                return
            outcomes = [error]
        for job, outcome in zip(jobs, outcomes, strict=True):
            loop.call_soon_threadsafe(_set_outcome, job.future, outcome)


def _set_outcome(future: asyncio.Future, outcome: Any) -> None:
    """Set a result or an error if somebody still waits for it."""
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
