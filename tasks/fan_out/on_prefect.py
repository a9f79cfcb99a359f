"""Shards on a Prefect work pool: flow runs of the deployment extract/gpu compute a batch, slice by slice.

Notes:

* The missing shards are cut into slices, one flow run each, so that the base model is loaded once for several shards.
  What is still missing when all slices have ended is cut again: a flow run that dies costs the shard that it was at.
* A dead process is reported by its worker. A frozen process or a lost host is detected by Prefect's heartbeat, and its
  flow run cancelled: if its worker is alive, that kills the process, which would occupy the worker's only slot.
* Three times no progress is an error, and so is at once what a worker cannot do.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

from prefect import get_run_logger
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.deployments import run_deployment
from prefect.events.filters import EventFilter
from prefect.exceptions import MissingContextError, ObjectNotFound
from prefect.states import Cancelling

from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError, parse_coded
from abstain.llm.features.file_store import FileStore
from abstain.llm.features.shard_job import JobStats, ShardJob
from tasks.fan_out.batch import Batch
from tasks.fan_out.ending import ending_with_this_process
from tasks.stopping import require_going_on

DEPLOYMENT = "extract/gpu"
SLICES = 4  # for each worker, so that a slow one takes fewer
ATTEMPTS = 3
POLL_SECONDS = 2.0
LOST_SECONDS = 600.0  # Prefect sends a heartbeat every 180 s; clocks of different hosts may differ by minutes


class PrefectRunner:
    """Computes on the workers of the pool `gpu` (`make worker`), at most `settings.workers` at a time."""

    def __init__(self, settings: Settings, lost_after: float = LOST_SECONDS) -> None:
        self._settings, self._lost_after = settings, timedelta(seconds=lost_after)

    def run(self, shards: Iterable[ShardJob]) -> Iterator[JobStats]:
        batch = Batch(FileStore(self._settings.features))
        with get_client(sync_client=True) as client:
            slices = _Slices(client, batch, self._settings.workers, self._lost_after)
            with ending_with_this_process(batch, self._settings.features, str(client.api_url)):
                waiting: dict[str, str] = {}
                for job in shards:
                    batch.send(job)
                    waiting[job.name] = f"{job.requests[0].name} to {job.requests[-1].name}"
                yield from slices.compute(waiting)

    def close(self) -> None:
        """Every `run` cleans up after itself."""


class _Slices:
    """The flow runs that compute one batch. Raises `AbstainError` where there is no deployment to run."""

    def __init__(self, client: SyncPrefectClient, batch: Batch, workers: int, lost_after: timedelta) -> None:
        self._client, self._batch, self._workers, self._lost_after = client, batch, workers, lost_after
        self._deployment = _find_deployment(client)
        self._live: set[UUID] = set()
        self._reason = ""  # why a flow run ended too early, the last one
        self._is_told = False
        self._log = _logger()

    def compute(self, waiting: dict[str, str]) -> Iterator[JobStats]:
        """Run slices of `waiting`, shard names with what they hold, until none is left; yields what each shard cost."""
        failures = 0
        while waiting:
            before, names = len(waiting), list(waiting)
            count = min(SLICES * self._workers, before)
            slices = deque(names[at::count] for at in range(count))
            while slices or self._live:
                while slices and len(self._live) < self._workers:
                    self._start(slices.popleft())
                require_going_on()
                time.sleep(POLL_SECONDS)
                self._look()
                for name, cost in self._batch.take_costs():
                    if waiting.pop(name, None):
                        yield cost
            failures = 0 if len(waiting) < before else failures + 1
            if failures == ATTEMPTS:
                name, rows = next(iter(waiting.items()))
                raise AbstainError(
                    Code.LOST_PROCESS,
                    f"{ATTEMPTS} times flow runs of {DEPLOYMENT} ended without a result, the last one at shard {name} "
                    f"({rows}), of: {self._reason}: see the log of its worker; where memory ran out, set a lower "
                    "ABSTAIN_BATCH_TOKENS",
                )

    def _start(self, names: list[str]) -> None:
        parameters = {"batch": self._batch.key, "shards": names}
        started = run_deployment(DEPLOYMENT, parameters=parameters, timeout=0, tags=[self._batch.key])
        assert isinstance(started, FlowRun)
        self._live.add(started.id)

    def _look(self) -> None:
        """Check which flow runs have ended or are lost. Raises `AbstainError` where one cannot do its work."""
        filter_ = FlowRunFilter(id=FlowRunFilterId(any_=list(self._live)))
        for flow_run in self._client.read_flow_runs(flow_run_filter=filter_):
            state = flow_run.state
            assert state is not None
            message = " ".join((state.message or state.name or "").split())
            if state.is_cancelled():
                raise AbstainError(
                    Code.NOT_PUBLISHED, f"flow run {flow_run.name} of {DEPLOYMENT} was cancelled: run again to go on"
                )
            if state.is_failed() and (error := parse_coded(message)):
                raise error
            if self._is_lost(flow_run):
                message = f"no heartbeat for {self._lost_after.total_seconds():.0f} s"
                self._client.set_flow_run_state(flow_run.id, Cancelling(message=message), force=True)
            elif not state.is_final():
                if state.is_scheduled() and not self._is_told:
                    self._tell_if_no_worker_polls()
                continue
            self._live.remove(flow_run.id)
            if not state.is_completed():
                self._reason = message
                self._log.warning("flow run %s died, its slice is computed again: %s", flow_run.name, message)

    def _is_lost(self, flow_run: FlowRun) -> bool:
        """Whether a flow run that a worker has taken has sent no heartbeat for too long."""
        state, since = flow_run.state, datetime.now(UTC) - self._lost_after
        if state is None or not (state.is_pending() or state.is_running()) or state.timestamp > since:
            return False
        heartbeats = {
            "event": {"name": ["prefect.flow-run.heartbeat"]},
            "resource": {"id": [f"prefect.flow-run.{flow_run.id}"]},
            "occurred": {"since": since},
        }
        return not self._client.read_events(EventFilter.model_validate(heartbeats), limit=1).events

    def _tell_if_no_worker_polls(self) -> None:
        pool = self._client.read_work_pool(self._deployment.work_pool_name or "")
        if pool.status is not None and pool.status.value != "READY":
            self._is_told = True
            self._log.warning(
                "no worker polls the work pool %s: start one for each GPU with `make worker`; waiting for it", pool.name
            )


def _find_deployment(client: SyncPrefectClient) -> DeploymentResponse:
    try:
        return client.read_deployment_by_name(DEPLOYMENT)
    except ObjectNotFound:
        raise AbstainError(
            Code.NO_SERVICE,
            f"ABSTAIN_RUNNER=prefect needs a server with the deployment {DEPLOYMENT}, and {client.api_url} has none: "
            "run `make up`, then `make worker` for each GPU",
        ) from None


def _logger() -> logging.Logger | logging.LoggerAdapter[logging.Logger]:
    try:
        return get_run_logger()
    except MissingContextError:
        return logging.getLogger(__name__)
