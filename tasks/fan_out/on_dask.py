"""Shards on a Dask cluster: a running one, or one of local processes that ends with the run.

Notes:

* Only a shard's JSON and its cost are transferred. Dask wraps both in its own format, which includes pickle, between
  its processes; no file is read that way.
* Only a few shards per worker are submitted at a time, so that the texts of all answers are never in memory at once.
* When a worker dies, the scheduler gives its shard to another. The third death at one shard ends the run.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any

from abstain.config.settings import Settings, load_settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.features.shard_job import JobStats, ShardJob, compute
from tasks.stopping import require_going_on

try:
    import dask
    from distributed import Client, Future, KilledWorker, Nanny, Scheduler, SpecCluster, as_completed
except ImportError:
    raise AbstainError(
        Code.NO_PACKAGE, 'ABSTAIN_RUNNER=dask needs another package: `pip install "abstain[dask]"`'
    ) from None

UNDER_WAY = 2  # shards for each worker: one computes, one waits
DEATHS = 3
LOOK_SECONDS = 0.1  # between two checks whether a shard is done, or the run is stopped
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
LOGGING = "DASK_LOGGING__DISTRIBUTED"
_alone = threading.Lock()


def compute_json(work: str, given: dict[str, Any]) -> dict[str, int]:
    """In a worker: compute a shard under the settings of that process, except those that are `given`."""
    settings = load_settings().model_copy(update=given)
    with _alone:  # a worker may have several threads, the base model is one
        return asdict(compute(ShardJob.from_json(work), settings))


class DaskRunner:
    """Computes on the cluster at `settings.dask_scheduler`, or on `settings.workers` processes of this host."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._open = settings, ExitStack()
        self._client: Client | None = None

    def run(self, shards: Iterable[ShardJob]) -> Iterator[JobStats]:
        client = self._client = self._client or self._connect()
        todo, completed = iter(shards), as_completed(loop=client.loop)
        under_way: dict[Future, ShardJob] = {}
        try:
            while True:
                workers = client.scheduler_info(n_workers=-1)["workers"]
                while len(under_way) < UNDER_WAY * max(1, len(workers)) and (work := next(todo, None)):
                    future = self._submit(client, work, workers)
                    under_way[future] = work
                    completed.add(future)
                if not under_way:
                    return
                while not completed.has_ready():
                    require_going_on()
                    time.sleep(LOOK_SECONDS)
                future = next(completed)
                yield _result(future, under_way.pop(future))
        finally:
            client.cancel(list(under_way))

    def close(self) -> None:
        self._open.close()
        self._client = None

    def _submit(self, client: Client, work: ShardJob, workers: dict[str, Any]) -> Future:
        declared = any("GPU" in worker["resources"] for worker in workers.values())
        return client.submit(
            compute_json,
            work.to_json(),
            self._given(),
            key=f"shard-{work.name}",
            resources={"GPU": 1} if declared else None,
        )

    def _given(self) -> dict[str, Any]:
        """Settings sent to workers. On other hosts only those that decide content and place of results, because home
        and device are the host's own; on this host all."""
        if self._settings.dask_scheduler:
            return {"features_url": self._settings.features}
        return self._settings.model_copy(update={"home": self._settings.home.resolve()}).model_dump()

    def _connect(self) -> Client:
        for name in ("distributed", "distributed.nanny", "distributed.worker", "distributed.scheduler"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # a shard's exception carries the relevant message
        self._open.enter_context(_kept_environment())
        address: str | SpecCluster = self._settings.dask_scheduler or self._open.enter_context(self._local_cluster())
        try:
            client: Client = self._open.enter_context(Client(address, set_as_default=False))
            return client
        except (OSError, ValueError) as error:
            raise AbstainError(
                Code.NO_SERVICE,
                f"no Dask scheduler answers at {address}: start `dask scheduler` there, or unset "
                "ABSTAIN_DASK_SCHEDULER for a cluster of local processes",
            ) from error

    def _local_cluster(self) -> SpecCluster:
        count = self._settings.workers
        threads = max(1, len(os.sched_getaffinity(0)) // count)
        scratch = self._open.enter_context(tempfile.TemporaryDirectory(prefix="abstain-dask-"))
        common: dict[str, Any] = {"dashboard": False, "host": "127.0.0.1"}
        options = common | {"nthreads": 1, "memory_limit": 0, "local_directory": scratch}
        quiet = {
            # A variable that is set already wins. Dask itself would give every worker one thread.
            "distributed.nanny.pre-spawn-environ": dict.fromkeys(THREADS, threads) | {LOGGING: "critical"},
            "distributed.scheduler.allowed-failures": DEATHS - 1,
            "distributed.worker.use-file-locking": False,
        }
        with dask.config.set(quiet):
            return SpecCluster(
                scheduler={"cls": Scheduler, "options": common},
                workers={n: {"cls": Nanny, "options": options | {"env": _gpu(n)}} for n in range(count)},
                silence_logs=logging.CRITICAL,
            )


@contextmanager
def _kept_environment() -> Iterator[None]:
    """Dask's nannies set variables of this process for their workers; what starts later must not inherit those."""
    absent = {LOGGING, *THREADS, "PYTHONHASHSEED"} - os.environ.keys()
    try:
        yield
    finally:
        for name in absent:
            os.environ.pop(name, None)


def _gpu(worker: int) -> dict[str, str]:
    """The variable that gives local worker number `worker` a GPU of its own, where there are several."""
    import torch

    visible = list(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")))
    visible = visible or [str(n) for n in range(torch.cuda.device_count())]
    return {"CUDA_VISIBLE_DEVICES": visible[worker % len(visible)]} if len(visible) > 1 else {}


def _result(future: Future, work: ShardJob) -> JobStats:
    error = future.exception()
    if error is None:
        return JobStats(**future.result())
    if isinstance(error, AbstainError):
        raise AbstainError(error.code, error.message)
    if isinstance(error, KilledWorker):
        raise AbstainError(
            Code.LOST_PROCESS,
            f"{DEATHS} Dask workers died at shard {work.name} ({work.requests[0].name} to {work.requests[-1].name}): "
            "where memory ran out, set a lower ABSTAIN_BATCH_TOKENS, or fewer ABSTAIN_WORKERS",
        )
    raise error
