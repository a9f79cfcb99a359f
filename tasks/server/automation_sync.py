"""Brings the automations of a server in step with those of the repository.

Those whose names begin as ours do are made as they are written here, whatever a person has changed about them, but for
one thing: one that is switched off stays off. One that is as it should be is not touched, since Prefect would forget
what it has fired for.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING
from uuid import UUID

from abstain.config.params import load_params
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from tasks.runs.workspace import project_root
from tasks.server.automations import PREFIX, RERUN, build_automations

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.events.schemas.automations import Automation

DEFAULT_HEARTBEAT = 180
"""Of Prefect, in seconds, where this process has switched its own off."""
CONTENT = ("description", "trigger", "actions", "actions_on_trigger", "actions_on_resolve")


def sync_automations(alerts: bool, heartbeat: float | None = None) -> str:
    """Give the server at `PREFECT_API_URL` the automations of this checkout; a second time changes nothing.

    Args:
        alerts: Whether the server has a webhook.
        heartbeat: Seconds between the signs of life of runs, by default as Prefect is set.

    Returns:
        How many were created, updated, deleted and left unchanged, as a line to print.

    Raises:
        AbstainError: A deployment of prefect.yaml is not there.
    """
    from prefect.client.orchestration import get_client
    from prefect.settings import get_current_settings

    params = load_params(project_root() / paths.PARAMS).monitoring
    beat = heartbeat or get_current_settings().flows.heartbeat_frequency or DEFAULT_HEARTBEAT
    done: Counter[str] = Counter()
    with get_client(sync_client=True) as client:
        made = build_automations(params, beat, lambda name: _deployment(client, name), alerts)
        ours = {automation.name: automation for automation in made}
        existing: dict[str, Automation] = {}
        for automation in client.read_automations():
            if automation.name in ours and automation.name not in existing:
                existing[automation.name] = automation
            elif automation.name.startswith(PREFIX):  # also one of two that were made at once
                client.delete_automation(automation.id)
                done["deleted"] += 1
        for name, written in ours.items():
            there = existing.get(name)
            if there is None:
                client.create_automation(written)
                done["created"] += 1
            elif all(getattr(there, part) == getattr(written, part) for part in CONTENT):
                done["unchanged"] += 1
            else:
                client.update_automation(there.id, written.model_copy(update={"enabled": there.enabled}))
                done["updated"] += 1
    return ", ".join(f"{count} {what}" for what, count in sorted(done.items()))


def remove_rerun_automation() -> None:
    """Remove the automation that runs crashed runs again, before runs are stopped on purpose; `sync_automations` makes it again.

    One that was switched off stays.
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
