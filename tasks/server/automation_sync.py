"""Synchronizes the automations of a server with those of the repository.

Automations whose names begin with our prefix are written as they are here, whatever a person has changed, with one
exception: one that is switched off stays off. An automation that is up to date is not touched, because Prefect would
forget for which events it has fired.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING
from uuid import UUID

from abstain.config.params import load_params
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain_tasks.runs.workspace import project_root
from abstain_tasks.server.automations import PREFIX, RERUN, build_automations

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.events.schemas.automations import Automation

DEFAULT_HEARTBEAT = 180
"""Prefect's default in seconds, used if this process has switched its own heartbeats off."""
CONTENT = ("description", "trigger", "actions", "actions_on_trigger", "actions_on_resolve")


def sync_automations(alerts: bool, heartbeat: float | None = None) -> str:
    """Give the server at `PREFECT_API_URL` the automations of this checkout; a second call changes nothing.

    Args:
        alerts: Whether the server has a webhook.
        heartbeat: Seconds between the heartbeats of runs; by default as Prefect is set.

    Returns:
        How many were created, updated, deleted and left unchanged, as a line to print.

    Raises:
        AbstainError: A deployment of prefect.yaml is missing.
    """
    from prefect.client.orchestration import get_client
    from prefect.settings import get_current_settings

    params = load_params(project_root() / paths.PARAMS).monitoring
    beat = heartbeat or get_current_settings().flows.heartbeat_frequency or DEFAULT_HEARTBEAT
    counts: Counter[str] = Counter()
    with get_client(sync_client=True) as client:
        automations = build_automations(params, beat, lambda name: _deployment(client, name), alerts)
        automation_by_name = {automation.name: automation for automation in automations}
        existing: dict[str, Automation] = {}
        for automation in client.read_automations():
            if automation.name in automation_by_name and automation.name not in existing:
                existing[automation.name] = automation
            elif automation.name.startswith(PREFIX):  # also one of two that were made at once
                client.delete_automation(automation.id)
                counts["deleted"] += 1
        for name, written in automation_by_name.items():
            current = existing.get(name)
            if current is None:
                client.create_automation(written)
                counts["created"] += 1
            elif all(getattr(current, part) == getattr(written, part) for part in CONTENT):
                counts["unchanged"] += 1
            else:
                client.update_automation(current.id, written.model_copy(update={"enabled": current.enabled}))
                counts["updated"] += 1
    return ", ".join(f"{count} {action}" for action, count in sorted(counts.items()))


def remove_rerun_automation() -> None:
    """Remove the automation that reruns crashed runs, before runs are stopped on purpose.

    `sync_automations` creates it again. One that was switched off stays.
    """
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        for automation in client.read_automations_by_name(RERUN):
            if automation.enabled:
                client.delete_automation(automation.id)


def _deployment(client: SyncPrefectClient, name: str) -> UUID:
    from prefect.exceptions import ObjectNotFound

    try:
        return client.read_deployment_by_name(name).id
    except ObjectNotFound:
        raise AbstainError(
            Code.NO_SERVICE, f"the server has no deployment {name}: run `prefect --no-prompt deploy --all` first"
        ) from None
