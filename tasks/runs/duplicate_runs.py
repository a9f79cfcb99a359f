"""Runs of a deployment that wait although the one that starts now does what they would do."""

from __future__ import annotations

from datetime import UTC, datetime

from prefect import runtime
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import DeploymentFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun
from prefect.states import Cancelled


def cancel_duplicate_runs() -> None:
    """Cancel the due runs of this run's deployment with the same parameters, which began to wait before this one ran.

    So a retrain that waits for its turn is not followed by another one for the same data. Runs for later stay.
    """
    if runtime.deployment.id is None:
        return
    waiting = {"state": {"type": {"any_": ["SCHEDULED"]}}}
    own = DeploymentFilter.model_validate({"id": {"any_": [runtime.deployment.id]}})
    with get_client(sync_client=True) as client:
        this = client.read_flow_run(runtime.flow_run.id)
        for run in client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(waiting), deployment_filter=own):
            if _is_due(run) and run.parameters == this.parameters:
                because = f"run {this.name}, which started later than this one was due, does the same"
                client.set_flow_run_state(run.id, Cancelled(name="Superseded", message=because), force=True)


def _is_due(run: FlowRun) -> bool:
    """Whether it waits for its turn, not for its time: for a slot, Prefect plans it anew a little later each time."""
    assert run.state is not None
    at = run.state.state_details.scheduled_time
    return run.state.name == "AwaitingConcurrencySlot" or at is None or at <= datetime.now(UTC)
