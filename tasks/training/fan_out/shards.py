"""Missing shards, computed on Prefect's task runners (a pool of processes, a Dask cluster) or on its work pool `gpu`.

Notes:

* A shard to compute is the file `jobs/NAME.job` next to the features in their shared store, because parameters of a run
  must hold no user's text. Whoever computes it writes the cost to `jobs/NAME.cost`, then removes the job. NAME is a
  digest of the work: a run that continues after a kill requests the same jobs, and workers skip missing ones.
* A dead process breaks its whole pool; a dead Dask worker costs only its shard, which another one computes; a dead flow
  run costs the rest of its part. Whatever still has a job is computed in another round.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from typing import Any, Literal, get_args
from uuid import UUID

import torch
from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner

from abstain.config.settings import Settings, load_settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError, parse_error_line
from abstain.llm.features import shard_job
from abstain.llm.features.file_store import FileStore
from abstain.llm.features.job_files import JOBS, find_abandoned_jobs
from abstain.llm.features.shard_job import JobStats, ShardJob
from abstain_tasks.runs.stopping import raise_if_stopped

DEPLOYMENT = "extract/gpu"
ROUNDS = 3
POLL_SECONDS = 1.0
PATIENCE_SECONDS = 300.0
"""A flow run that has not begun after that time is worth a warning."""
PAGE = 200  # the server answers with no more flow runs at once
Kind = Literal["job", "cost"]
Round = Generator[JobStats, None, str]
"""Yields the costs of finished shards; its result is why a process ended too early, "" if none did."""
_alone = threading.Lock()
"""Held where a shard is computed, since a Dask worker may have several threads, but one base model; and where a pool of
processes is up, since two stages of a run may fan out at once, but would share processors and GPUs."""


class DistributedRunner:
    """Computes shards in other processes, as `settings.runner` says.

    Args:
        settings: Settings of this machine.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings, self._store = settings, FileStore(settings.features)

    def run(self, shards: Iterable[ShardJob]) -> Iterator[JobStats]:
        """Compute shards in other processes.

        Args:
            shards: The shards.

        Yields:
            The cost of each shard once it is in the cache.

        Raises:
            AbstainError: A shard cannot be computed, or `ROUNDS` rounds in a row have computed none.
        """
        waiting: dict[str, str] = {}
        sent: set[str] = set()
        failures = 0
        compute_round = self._on_work_pool if self._settings.runner == "prefect" else self._on_task_runner
        try:
            for job in shards:
                sent.add(job.name)
                self._store.delete(_file(job.name, "cost"))
                self._store.write(_file(job.name, "job"), job.to_json().encode())
                waiting[job.name] = f"{job.requests[0].name} to {job.requests[-1].name}"
            while waiting:
                n_before = len(waiting)
                reason = yield from compute_round(waiting)
                yield from self._collect_finished(waiting)
                failures = 0 if len(waiting) < n_before else failures + 1
                if waiting:
                    _require_another_round(waiting, reason, failures)
        finally:
            self._remove(sent)

    def _on_task_runner(self, waiting: dict[str, str]) -> Round:
        reason = ""
        with _task_runner(self._settings) as runner:
            parameters = [{"name": name, "features": self._settings.features} for name in waiting]
            futures = [runner.submit(compute_shard, job_parameters) for job_parameters in parameters]
            while futures:
                yield from self._poll(waiting)
                done = [future for future in futures if future.wrapped_future.done()]
                futures = [future for future in futures if future not in done]
                for future in done:
                    try:
                        future.result()  # not `wait`, in which Dask's swallows exceptions
                    except AbstainError:
                        raise
                    except Exception as error:
                        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return reason

    def _on_work_pool(self, waiting: dict[str, str]) -> Round:
        reason, names, count = "", list(waiting), min(self._settings.workers, len(waiting))
        with get_client(sync_client=True) as client:
            _require_deployment(client)
            live = {_start(names[start::count]) for start in range(count)}
            patience = time.monotonic() + PATIENCE_SECONDS
            while live:
                yield from self._poll(waiting)
                page = list(live)[:PAGE]
                flow_runs = client.read_flow_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=page)))
                if deleted := set(page).difference(flow_run.id for flow_run in flow_runs):
                    live -= deleted
                    reason = f"a flow run of {DEPLOYMENT} was deleted"
                for flow_run in flow_runs:
                    if flow_run.state and flow_run.state.is_final():
                        live.remove(flow_run.id)
                        reason = _early_end(flow_run) or reason
                if time.monotonic() > patience and (
                    late := [flow_run.name for flow_run in flow_runs if _is_queued(flow_run)]
                ):
                    patience = math.inf
                    get_run_logger().warning(
                        "%s of %s have not begun: the workers of its pool are busy, or there is none (`make worker`)",
                        ", ".join(late),
                        DEPLOYMENT,
                    )
        return reason

    def _poll(self, waiting: dict[str, str]) -> Iterator[JobStats]:
        raise_if_stopped()
        time.sleep(POLL_SECONDS)
        yield from self._collect_finished(waiting)

    def _collect_finished(self, waiting: dict[str, str]) -> Iterator[JobStats]:
        """Yield the costs of shards that have no job any more, and remove them from `waiting`."""
        jobs = {entry.name for entry in self._store.list(JOBS)}
        for name in [name for name in waiting if _file(name, "job") not in jobs]:
            del waiting[name]
            try:
                yield JobStats(**json.loads(self._store.read(_file(name, "cost"))))
            except FileNotFoundError:  # a run that shares this cache has ended, and with it the shards that it had
                yield JobStats(0, 0, 0)

    def _remove(self, sent: set[str]) -> None:
        """Remove the files of the shards in `sent`, and abandoned ones."""
        entries = self._store.list(JOBS)
        job_files = {_file(name, kind) for name in sent for kind in get_args(Kind)}
        for name in job_files.intersection(entry.name for entry in entries).union(
            entry.name for entry in find_abandoned_jobs(entries)
        ):
            self._store.delete(name)


def compute_job(name: str, features: str) -> None:
    """Compute a shard into the cache, unless its job is missing; then write its cost.

    Args:
        name: Name of the job.
        features: Location of the cache.
    """
    store = FileStore(features)
    with _alone:
        try:
            text = store.read(_file(name, "job")).decode()
        except FileNotFoundError:
            return
        cost = shard_job.compute_shard(
            ShardJob.from_json(text), load_settings().model_copy(update={"features_url": features})
        )
        store.write(_file(name, "cost"), json.dumps(asdict(cost)).encode())
        store.delete(_file(name, "job"))


# Made of a function that has its own name here, so that other processes import it: Prefect would send its code.
compute_shard = task(name="compute_shard", task_run_name="{name}", cache_policy=NO_CACHE)(compute_job)


def begin_process(started: Any, threads: int, gpus: Sequence[str]) -> None:
    """Initialize a process of the pool: it ends with its parent and has its share of processors and GPUs.

    Args:
        started: Number of processes that have begun, which they share; below 0 if the pool was stopped.
        threads: Threads of torch; OMP_NUM_THREADS, if it is set, wins.
        gpus: Names of the GPUs, of which it takes one; empty if there is nothing to share.
    """
    if parent := multiprocessing.parent_process():
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads)
    with started.get_lock():
        number = started.value
        started.value += 1
    if number < 0:
        os._exit(1)
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]
        torch.cuda.init()  # reads the variable; Prefect then gives each task that of the run


def _end_with(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)


def list_shared_gpus(settings: Settings) -> list[str]:
    """List the GPUs that processes share.

    Args:
        settings: Settings of this machine.

    Returns:
        Their names, as in CUDA_VISIBLE_DEVICES; empty if there are fewer than two.
    """
    count = torch.cuda.device_count() if settings.device in ("auto", "cuda") else 0
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return (named or [str(number) for number in range(count)])[:count] if count > 1 else []


@contextmanager
def _task_runner(settings: Settings) -> Iterator[TaskRunner[Any]]:
    if settings.runner == "processes":
        threads = max(1, len(os.sched_getaffinity(0)) // settings.workers)
        started = multiprocessing.get_context("spawn").Value("i", 0)
        initargs = (started, threads, list_shared_gpus(settings))
        with _alone, ProcessPoolTaskRunner(settings.workers, initializer=begin_process, initargs=initargs) as pool:
            try:
                yield pool
            except BaseException:  # the pool would wait for the shards that they are at
                started.value = -(10**6)  # for processes that are not up yet: a thread of Prefect's may start some
                for process in multiprocessing.active_children():
                    process.kill()
                raise
        return
    try:
        from dask.base import annotate
        from prefect_dask.task_runners import DaskTaskRunner
    except ImportError:
        raise AbstainError(
            Code.NO_PACKAGE, 'ABSTAIN_RUNNER=dask needs another package: `pip install "abstain[dask]"`'
        ) from None
    if not settings.dask_scheduler:
        raise AbstainError(
            Code.BAD_SETTING,
            "ABSTAIN_RUNNER=dask needs ABSTAIN_DASK_SCHEDULER, the address of a Dask scheduler: set it, or "
            "ABSTAIN_RUNNER=processes for several processes of this host",
        )
    with DaskTaskRunner(address=settings.dask_scheduler) as cluster:
        try:
            while not (workers := cluster.client.scheduler_info(n_workers=-1)["workers"].values()):
                raise_if_stopped()
                time.sleep(POLL_SECONDS)
        except (OSError, ValueError) as error:
            raise AbstainError(
                Code.NO_SERVICE,
                f"no Dask scheduler answers at {settings.dask_scheduler}: start `dask scheduler` there, or correct "
                "ABSTAIN_DASK_SCHEDULER",
            ) from error
        has_gpus = any("GPU" in worker["resources"] for worker in workers)
        with annotate(resources={"GPU": 1}) if has_gpus else nullcontext():
            yield cluster


def _require_deployment(client: Any) -> None:
    """Raise `AbstainError` if there is no deployment to run; warn if no worker would take its runs."""
    try:
        deployment = client.read_deployment_by_name(DEPLOYMENT)
    except ObjectNotFound:
        raise AbstainError(
            Code.NO_SERVICE,
            f"ABSTAIN_RUNNER=prefect needs a server with the deployment {DEPLOYMENT}, and {client.api_url} has none: "
            "run `make up`, then `make worker` for each GPU",
        ) from None
    pool = client.read_work_pool(deployment.work_pool_name)
    if pool.status and pool.status.value != "READY":
        get_run_logger().warning(
            "no worker polls the work pool %s: start one for each GPU with `make worker`; waiting for it", pool.name
        )


def _start(names: list[str]) -> UUID:
    flow_run = run_deployment(DEPLOYMENT, parameters={"names": names}, timeout=0)
    assert isinstance(flow_run, FlowRun)
    return flow_run.id


def _is_queued(flow_run: FlowRun) -> bool:
    return flow_run.state is not None and (flow_run.state.is_scheduled() or flow_run.state.is_pending())


def _early_end(flow_run: FlowRun) -> str:
    """Return why `flow_run` ended before its part was done; "" if it was done.

    Raises `AbstainError` if a person cancelled it, or if it cannot do its part.
    """
    state = flow_run.state
    assert state is not None
    if state.is_cancelled():
        raise AbstainError(
            Code.NOT_PUBLISHED, f"flow run {flow_run.name} of {DEPLOYMENT} was cancelled: run again to go on"
        )
    message = " ".join((state.message or state.name or "").split())
    if state.is_failed() and (error := parse_error_line(message)):
        raise error
    return "" if state.is_completed() else message


def _require_another_round(waiting: dict[str, str], reason: str, failures: int) -> None:
    """Raise `AbstainError` if another round would not help."""
    name, rows = next(iter(waiting.items()))
    if failures and not reason:
        raise AbstainError(
            Code.BAD_SETTING,
            f"workers have ended without shard {name} ({rows}), whose job they did not find: their ABSTAIN_FEATURES "
            "(or ABSTAIN_HOME) must name the same cache as the run's",
        )
    if failures == ROUNDS:
        raise AbstainError(
            Code.PROCESS_DIED,
            f"{ROUNDS} times processes ended without a result, the last ones at shard {name} ({rows}), of: {reason}: "
            "see the log of the workers; where memory ran out, set a lower ABSTAIN_BATCH_TOKENS, or fewer "
            "ABSTAIN_WORKERS",
        )
    get_run_logger().warning("%s shards are computed again, because a process ended: %s", len(waiting), reason)


def _file(name: str, kind: Kind) -> str:
    return f"{JOBS}/{name}.{kind}"
