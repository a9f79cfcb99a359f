"""The automations of the Prefect server: what starts, ends and reports runs by itself.

    abstain-retrain-reviews   a retrain when so many reviews have come since the version in production was trained
    abstain-retrain-drift     a retrain when the monitoring has raised drift
    abstain-lost-run          a run without a sign of life is marked as crashed
    abstain-run-again         the deployment of a crashed run is run again
    abstain-alert-failed      the webhook gets failed and crashed runs
    abstain-alert-alarm       the webhook gets the alarms of the monitoring
    abstain-alert-rejected    the webhook gets rejected candidates
    abstain-alert-silence     the webhook is told that no rows came for long

Notes:

* The alerts exist where the server has a webhook, `ABSTAIN_ALERT_URL`. They run the deployment notify/webhook in a work
  pool of its own, whose worker neither waits behind a retrain nor dies with it.
* A trigger that may fire once for each resource has a long `within`: Prefect fires at the first event, and ignores
  others about the same resource until that time is over.
* A crashed run is not itself scheduled again: a worker that still holds its slot, as of a process that was only
  suspended, ends at that with an error of its own (Prefect 3.8).
* These are no triggers of prefect.yaml: each `prefect deploy` makes those anew, and Prefect forgets what has fired.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from abstain.config.params import MonitoringParams
from abstain.core.codes import Code
from abstain_tasks.runs.events import ALARM, DRIFT, INGESTED, REJECTED, REVIEWS

if TYPE_CHECKING:
    from prefect.events.schemas.automations import AutomationCore

PREFIX = "abstain-"
RERUN = f"{PREFIX}run-again"
RETRAIN, NOTIFY = "retrain/nightly", "notify/webhook"
"""The deployments that automations run."""
FLOWS = ("ingest", "monitor", "retention", "retrain")
"""The flows that are watched: those with a schedule."""
LOSABLE = (*FLOWS, "extract")
"""The flows whose lost runs are marked: somebody waits for those without a schedule, and runs them again itself."""
MISSED_HEARTBEATS = 3
"""A run that was not heard of for so many heartbeats is lost: Prefect's advice."""
ONCE = timedelta(days=365)
"""As good as for ever: Prefect forgets what has fired after it."""
DRIFT_REST = timedelta(days=7)
"""Drift may be raised in window after window; a retrain whose candidate was rejected is not repeated before."""

SAME_PARAMETERS = {
    "__prefect_kind": "json",
    "value": {"__prefect_kind": "jinja", "template": "{{ flow_run.parameters | tojson }}"},
}
RUN_TITLE = "{{ flow.name }}: run {{ flow_run.name }} has {{ flow_run.state.name | lower }}"
RUN_TEXT = "{{ flow_run.state.message or '' }}"
RUN_ID = "{{ flow_run.id }}"
EVENT_CODE, EVENT_TEXT = "{{ event.payload.code }}", "{{ event.payload.text }}; {{ event.payload.remedy }}"
ALARM_TITLE = "monitoring: {{ event.payload.kind }}"


def build_automations(
    params: MonitoringParams, heartbeat: float, deployment: Callable[[str], UUID], alerts: bool
) -> list[AutomationCore]:
    """Build the automations that a server needs.

    Args:
        params: Monitoring parameters.
        heartbeat: Seconds between the heartbeats of a run.
        deployment: Returns the id of a deployment.
        alerts: Whether there is a webhook.

    Returns:
        The automations.
    """
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState, RunDeployment

    our_flows = {"prefect.resource.role": "flow", "prefect.resource.name": list(FLOWS)}
    deployed = {"prefect.resource.role": "deployment"}
    per_resource = {"prefect.resource.id"}
    automations = [
        _automation(
            "retrain-reviews",
            f"retrain when {params.retrain_after_reviews} reviews have come since production was trained, once for "
            "each such number of them",
            RunDeployment(deployment_id=deployment(RETRAIN)),
            expect={REVIEWS},
            match={"prefect.resource.id": f"{REVIEWS}.*"},
            for_each=per_resource,
            within=ONCE,
        ),
        _automation(
            "retrain-drift",
            "retrain when the monitoring has raised drift, at most once a week",
            RunDeployment(deployment_id=deployment(RETRAIN)),
            expect={DRIFT},
            for_each=per_resource,
            within=DRIFT_REST,
        ),
        _automation(
            "lost-run",
            f"mark a run as crashed that has given no sign of life for {heartbeat * MISSED_HEARTBEATS:g} s",
            ChangeFlowRunState(state=StateType.CRASHED, message="its process gives no sign of life"),
            after={"prefect.flow-run.Running", "prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.*"},
            match_related=our_flows | {"prefect.resource.name": list(LOSABLE)},
            for_each=per_resource,
            within=timedelta(seconds=heartbeat * MISSED_HEARTBEATS),
        ),
        _automation(
            "run-again",
            "run a deployment again whose run has crashed, with its parameters, at most once a day",
            RunDeployment(source="inferred", parameters=SAME_PARAMETERS),
            expect={"prefect.flow-run.Crashed"},
            match_related=[our_flows, deployed],
            for_each={"related:deployment:prefect.resource.id"},
            within=timedelta(days=1),
        ),
    ]
    if alerts:
        automations += _alerts(params, deployment(NOTIFY), our_flows)
    return automations


def _alerts(params: MonitoringParams, notify: UUID, our_flows: dict[str, Any]) -> list[AutomationCore]:
    from prefect.events.actions import RunDeployment

    def post(title: str, text: str, code: str = "") -> RunDeployment:
        parts = {"title": title, "text": text, "code": code, "run_id": RUN_ID}
        templates = {name: {"__prefect_kind": "jinja", "template": part} for name, part in parts.items()}
        return RunDeployment(deployment_id=notify, parameters=templates)

    hours = params.feed_silent_hours
    return [
        _automation(
            "alert-failed",
            f"post a failed or crashed run of {', '.join(FLOWS)} to the webhook",
            post(RUN_TITLE, RUN_TEXT),
            expect={"prefect.flow-run.Failed", "prefect.flow-run.Crashed"},
            match_related=our_flows,
        ),
        _automation(
            "alert-alarm",
            "post each alarm of the monitoring to the webhook, once",
            post(ALARM_TITLE, EVENT_TEXT, EVENT_CODE),
            expect={ALARM},
            for_each={"prefect.resource.id"},
            within=ONCE,
        ),
        _automation(
            "alert-rejected",
            "post each rejected candidate to the webhook, once",
            post("a candidate was rejected", EVENT_TEXT, EVENT_CODE),
            expect={REJECTED},
            for_each={"prefect.resource.id"},
            within=ONCE,
        ),
        _automation(
            "alert-silence",
            f"tell the webhook once when no ingest has accepted a row for {hours:g} h",
            post(
                "no rows come in",
                f"no ingest has accepted a row for {hours:g} h: look at the runs of ingest/hourly and at sources.yaml",
                Code.NO_ROWS,
            ),
            after={INGESTED},
            expect={INGESTED},
            within=timedelta(hours=hours),
        ),
    ]


def _automation(name: str, description: str, action: Any, **trigger: Any) -> AutomationCore:
    """Make an automation with a single action; a trigger with `after` fires if nothing that it expects follows."""
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

    posture = Posture.Proactive if "after" in trigger else Posture.Reactive
    return AutomationCore(
        name=f"{PREFIX}{name}",
        description=description,
        trigger=EventTrigger(posture=posture, threshold=1, **trigger),
        actions=[action],
    )
