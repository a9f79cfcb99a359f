"""Cancels queued runs of a deployment that would repeat the run that starts now."""

from __future__ import annotations

from datetime import UTC, datetime

from prefect import runtime
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import DeploymentFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun
from prefect.states import Cancelled


def cancel_duplicate_runs() -> None:
    """Cancel the due runs of this run's deployment with the same parameters, which were queued before this one started.

    Then a retrain that waits for its turn is not followed by another one for the same data. Runs for later stay.
    """
    if runtime.deployment.id is None:
        return
    waiting = {"state": {"type": {"any_": ["SCHEDULED"]}}}
    deployment = DeploymentFilter.model_validate({"id": {"any_": [runtime.deployment.id]}})
    with get_client(sync_client=True) as client:
        current = client.read_flow_run(runtime.flow_run.id)
        for run in client.read_flow_runs(
            flow_run_filter=FlowRunFilter.model_validate(waiting), deployment_filter=deployment
        ):
            if _is_due(run) and run.parameters == current.parameters:
                message = f"run {current.name}, which started later than this one was due, does the same"
                client.set_flow_run_state(run.id, Cancelled(name="Superseded", message=message), force=True)


def _is_due(run: FlowRun) -> bool:
    """Whether the run waits for its turn, not for its time.

    For a slot, Prefect reschedules it a little later each time.
    """
    assert run.state is not None
    scheduled_at = run.state.state_details.scheduled_time
    return run.state.name == "AwaitingConcurrencySlot" or scheduled_at is None or scheduled_at <= datetime.now(UTC)
