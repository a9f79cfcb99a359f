"""Shards on a Prefect work pool: flow runs of the deployment extract/gpu, one for each GPU, compute a batch.

Notes:

* Shards are in the cache's own store (todo.py), not in flow-run parameters: Prefect only tracks which flow runs are
  alive, and nothing large goes through its database.
* A dead flow run is replaced and its shard is freed: a dead process is reported by its worker; a dead host or a frozen
  process is detected by its missing heartbeat. A shard at which three flow runs died is given up.
* A lost flow run is cancelled before it is marked as crashed: if its worker is alive, that kills the frozen process,
  which would occupy the worker's only slot.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prefect import get_run_logger
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import MissingContextError, ObjectNotFound
from prefect.states import Cancelled, Cancelling, Crashed

from abstain.config.settings import Settings
from abstain.core.errors import AbstainError
from abstain.llm.features.cache_files import open_store
from abstain.llm.features.shard_job import JobStats, ShardJob
from tasks.fan_out.todo import LOST_SECONDS, RUN, Heartbeat, LivenessMonitor, ShardQueue, sweep
from tasks.stopping import require_going_on

DEPLOYMENT = "extract/gpu"
POLL_SECONDS = 1.0
START_SECONDS = 300.0  # from a worker's taking a flow run to its first line: imports on a slow disk
CANCEL_SECONDS = 45.0  # a live worker has killed a process by then
DEATHS = 3
OURS = "AbstainError: "


class PrefectRunner:
    """Computes on the workers of the pool `gpu` (`make worker`), at most `settings.workers` at a time."""

    def __init__(self, settings: Settings, lost_after: float = LOST_SECONDS) -> None:
        self._settings, self._lost_after = settings, lost_after

    def run(self, shards: Iterable[ShardJob]) -> Iterator[JobStats]:
        store = open_store(self._settings.features)
        sweep(store)
        batch = ShardQueue(store, uuid.uuid4().hex)
        with get_client(sync_client=True) as client:
            helpers = _Helpers(client, _find_deployment(client), batch, self._settings, self._lost_after)
            try:
                with Heartbeat(batch, RUN):
                    waiting: dict[str, str] = {}
                    for work in shards:
                        batch.write(work.name, "todo", work.to_json())
                        waiting[work.name] = f"{work.requests[0].name} to {work.requests[-1].name}"
                    yield from _wait(batch, waiting, helpers)
                helpers.dismiss()
            except BaseException:
                helpers.stop()
                raise
            finally:
                batch.clean()

    def close(self) -> None:
        """Every `run` cleans up after itself."""


def _wait(batch: ShardQueue, waiting: dict[str, str], helpers: _Helpers) -> Iterator[JobStats]:
    """Yield finished shards, and keep helpers running until none is left."""
    while waiting:
        require_going_on()
        helpers.look(waiting)
        for name in batch.names()["done"]:
            text = batch.read(name, "done")
            batch.delete(name, "done")
            if text and waiting.pop(name, None):
                yield JobStats(**json.loads(text))
        helpers.staff(waiting)
        if waiting:
            time.sleep(POLL_SECONDS)


@dataclass
class _Helper:
    """A flow run of ours, and the last shard that it claimed."""

    flow_run: FlowRun
    shard: str | None = None


class _Helpers:
    """The flow runs that compute one batch."""

    def __init__(
        self,
        client: SyncPrefectClient,
        deployment: DeploymentResponse,
        batch: ShardQueue,
        settings: Settings,
        lost_after: float,
    ) -> None:
        self._client, self._deployment, self._batch = client, deployment, batch
        self._settings, self._lost_after = settings, lost_after
        self._live: dict[uuid.UUID, _Helper] = {}
        self._lost: dict[uuid.UUID, float] = {}  # and when it was found to be
        self._deaths: Counter[str | None] = Counter()
        self._watch, self._told = LivenessMonitor(), False
        self._log = _logger()

    def look(self, waiting: dict[str, str]) -> None:
        """Check which helpers are alive. Raises `AbstainError` where a helper failed, or too many died at a shard."""
        for flow_run in self._read():
            state, key = flow_run.state, flow_run.id
            assert state is not None
            helper = self._live[key]
            helper.flow_run = flow_run
            beat = self._batch.read(str(key), "beat")
            if beat:
                helper.shard = json.loads(beat)["shard"]
            if state.is_final():
                del self._live[key]
                self._ended(helper, state, waiting)
            elif state.type in (StateType.PENDING, StateType.RUNNING, StateType.CANCELLING):
                silent = self._watch.silent(key, (state.type, beat))
                if silent > (START_SECONDS if state.type == StateType.PENDING else self._lost_after):
                    del self._live[key]
                    self._lost[key] = time.monotonic()
                    self._set(key, Cancelling(message=f"no heartbeat for {silent:.0f} s"))
                    self._died(helper, f"no heartbeat for {silent:.0f} s", waiting)
        for key, since in list(self._lost.items()):
            self._batch.delete(str(key), "beat")  # one that wakes up again claims nothing
            if time.monotonic() - since > CANCEL_SECONDS:
                self._bury(key)

    def staff(self, waiting: dict[str, str]) -> None:
        """Start a helper for each unclaimed shard, at most `ABSTAIN_WORKERS` in all."""
        claimed = {helper.shard for helper in self._live.values()} & waiting.keys()
        idle = len(self._live) - len(claimed)
        while len(self._live) < self._settings.workers and len(waiting) - len(claimed) > idle:
            parameters = {"batch": self._batch.key}
            started = self._client.create_flow_run_from_deployment(self._deployment.id, parameters=parameters)
            self._live[started.id] = _Helper(started)
            idle += 1
        scheduled = [h for h in self._live.values() if h.flow_run.state and h.flow_run.state.is_scheduled()]
        if scheduled and not self._told and not self._is_polled():
            self._told = True
            self._log.warning(
                "no worker polls the work pool %s: start one for each GPU with `make worker`; waiting for it",
                self._deployment.work_pool_name,
            )

    def dismiss(self) -> None:
        """All shards are done: cancel helpers that have not begun; the others find no shard left and end."""
        for flow_run in self._read():
            if flow_run.state and flow_run.state.type in (StateType.SCHEDULED, StateType.PENDING):
                self._set(flow_run.id, Cancelled(message="others have done it all"))
        for key in list(self._lost):
            self._bury(key)

    def stop(self) -> None:
        """The run ends before its batch is done: stop every helper."""
        for flow_run in self._read():
            if flow_run.state and not flow_run.state.is_final():
                begun = flow_run.state.type in (StateType.PENDING, StateType.RUNNING)
                self._set(flow_run.id, (Cancelling if begun else Cancelled)(message="the run that wanted it has ended"))
        for key in list(self._lost):
            self._bury(key)

    def _ended(self, helper: _Helper, state: State, waiting: dict[str, str]) -> None:
        message = " ".join((state.message or "").split())
        if state.is_cancelled():
            raise AbstainError(f"flow run {helper.flow_run.name} of {DEPLOYMENT} was cancelled: run again to go on")
        if state.is_failed() and OURS in message:
            raise AbstainError(message.partition(OURS)[2])
        if not state.is_completed():
            self._died(helper, message or state.name or "crashed", waiting)

    def _died(self, helper: _Helper, message: str, waiting: dict[str, str]) -> None:
        self._batch.delete(str(helper.flow_run.id), "beat")
        shard = helper.shard if helper.shard in waiting else None
        what = f"at shard {shard} ({waiting[shard]})" if shard else "at no shard"
        self._log.warning("flow run %s died %s: %s", helper.flow_run.name, what, message)
        self._deaths[shard] += 1
        if self._deaths[shard] == DEATHS:
            raise AbstainError(
                f"{DEATHS} flow runs of {DEPLOYMENT} died {what}, the last one, {helper.flow_run.name}, of: {message}: "
                "see the log of its worker; where memory ran out, set a lower ABSTAIN_BATCH_TOKENS"
            )

    def _bury(self, key: uuid.UUID) -> None:
        """Mark a lost flow run as crashed if its worker has not done so."""
        del self._lost[key]
        state = self._client.read_flow_run(key).state
        if state and not state.is_final():
            self._set(key, Crashed(message="its heartbeat stopped"))

    def _read(self) -> list[FlowRun]:
        if not self._live:
            return []
        return self._client.read_flow_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=list(self._live))))

    def _set(self, key: uuid.UUID, state: State) -> None:
        self._client.set_flow_run_state(key, state, force=True)

    def _is_polled(self) -> bool:
        pool = self._client.read_work_pool(self._deployment.work_pool_name or "")
        return pool.status is None or pool.status.value == "READY"


def _find_deployment(client: SyncPrefectClient) -> DeploymentResponse:
    try:
        return client.read_deployment_by_name(DEPLOYMENT)
    except ObjectNotFound:
        raise AbstainError(
            f"ABSTAIN_RUNNER=prefect needs a server with the deployment {DEPLOYMENT}, and {client.api_url} has none: "
            "run `make up`, then `make worker` for each GPU"
        ) from None


def _logger() -> logging.Logger | logging.LoggerAdapter[logging.Logger]:
    try:
        return get_run_logger()
    except MissingContextError:
        return logging.getLogger(__name__)
