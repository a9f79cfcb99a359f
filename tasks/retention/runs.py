"""Old runs of the Prefect server, with their artifacts and their report pages in the home.

Notes:

* A run that has not ended stays, and so does the last one that ended of each deployment, and of each flow that commands
  start: the UI shows when it was.
* Only runs of this project's flows go: a team's server may have other ones.
* Artifacts go before their run, so that a deletion that was cut short is completed by the next one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tasks.retention.expired import Expired, bytes_of, remove_all
from tasks.server import reports

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import Artifact, FlowRun

FLOWS = ("extract", "ingest", "monitor", "notify", "promote", "retention", "retrain", "retry", "study")
PAGE = 100
"""Runs and artifacts of one request; the server allows 200."""


def clear_runs(days: int | None, now: datetime, *, apply: bool) -> list[Expired]:
    """The runs that ended more than `days` ago, their artifacts, and report pages of no run that stays.

    The bytes of runs are those of their artifacts. Raises `OSError` and `httpx` errors of a server that is away.
    """
    from prefect.client.orchestration import get_client

    if days is None:
        return []
    before = now - timedelta(days=days)
    with get_client(sync_client=True) as client:
        gone = _expired_runs(client, before)
        artifacts = list(_artifacts(client, gone))
        pages = _pages_of_none(client, {run.id for run in gone}, before)
        size, of_pages = sum(len(json.dumps(one.data)) for one in artifacts), bytes_of(pages)
        if apply:
            for artifact in artifacts:
                client.delete_artifact(artifact.id)
            for run in gone:
                client.delete_flow_run(run.id)
            remove_all(pages)
    return [Expired("runs", len(gone), size), Expired("report pages", len(pages), of_pages)]


def _expired_runs(client: SyncPrefectClient, before: datetime) -> list[FlowRun]:
    runs = list(_ended(client, {"end_time": {"before_": before.isoformat()}}))
    groups = {(run.deployment_id, run.flow_id) for run in runs}
    last = {_last_ended(client, *group) for group in groups}
    return [run for run in runs if run.id not in last]


def _last_ended(client: SyncPrefectClient, deployment: UUID | None, flow: UUID) -> UUID:
    """The run that ended last of a deployment, or of a flow without one."""
    of_group = {"deployment_id": {"any_": [str(deployment)]} if deployment else {"is_null_": True}}
    return next(_ended(client, of_group, flow)).id


def _ended(client: SyncPrefectClient, criteria: dict[str, Any], flow: UUID | None = None) -> Iterator[FlowRun]:
    """The ended runs of our flows that meet `criteria`, the newest first."""
    from prefect.client.schemas.filters import FlowFilter, FlowRunFilter
    from prefect.client.schemas.objects import TERMINAL_STATES
    from prefect.client.schemas.sorting import FlowRunSort

    ended = {"state": {"type": {"any_": [state.value for state in TERMINAL_STATES]}}}
    ours = {"id": {"any_": [str(flow)]}} if flow else {"name": {"any_": list(FLOWS)}}
    offset = 0
    while True:
        page = client.read_flow_runs(
            flow_filter=FlowFilter.model_validate(ours),
            flow_run_filter=FlowRunFilter.model_validate({**ended, **criteria}),
            sort=FlowRunSort.END_TIME_DESC,
            limit=PAGE,
            offset=offset,
        )
        yield from page
        if len(page) < PAGE:
            return
        offset += PAGE


def _artifacts(client: SyncPrefectClient, runs: Sequence[FlowRun]) -> Iterator[Artifact]:
    from prefect.client.schemas.filters import ArtifactFilter

    for start in range(0, len(runs), PAGE):
        ids = [str(run.id) for run in runs[start : start + PAGE]]
        of_runs = ArtifactFilter.model_validate({"flow_run_id": {"any_": ids}})
        offset = 0
        while page := client.read_artifacts(artifact_filter=of_runs, limit=PAGE, offset=offset):
            yield from page
            offset += PAGE


def _pages_of_none(client: SyncPrefectClient, gone: set[UUID], before: datetime) -> list[Any]:
    """The folders of report pages that were written before, and whose run goes or is not known any more."""
    from prefect.client.schemas.filters import FlowRunFilter

    folder = reports.folder()
    old = {}
    for page in sorted(folder.iterdir()) if folder.is_dir() else ():
        run = _run_of(page.name)
        if run is not None and page.stat().st_mtime < before.timestamp():
            old[run] = page
    ids = list(old)
    for start in range(0, len(ids), PAGE):
        there = FlowRunFilter.model_validate({"id": {"any_": [str(one) for one in ids[start : start + PAGE]]}})
        known = client.read_flow_runs(flow_run_filter=there, limit=PAGE)
        for one in {run.id for run in known} - gone:
            del old[one]
    return list(old.values())


def _run_of(name: str) -> UUID | None:
    """The run that a folder is named after; None for other folders."""
    try:
        return UUID(name)
    except ValueError:
        return None
