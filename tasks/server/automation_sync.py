"""Brings the automations of a server in step with those of the repository, and leaves alone what a person changed.

Each description ends with a digest of the automation as it was written here. Where it is no longer that of what the
server has, someone has changed it: it is kept and reported, until `--reset` writes ours again. Switching one off is no
change, and lasts.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from abstain.config.params import load_params
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from tasks.server.automations import PREFIX, RUN_AGAIN, wanted
from tasks.workspace import project_root

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.events.schemas.automations import Automation, AutomationCore

DIGEST = re.compile(r" \[([0-9a-f]{12})\]$")
DEFAULT_HEARTBEAT = 180
"""Of Prefect, in seconds, where this process has switched its own off."""
RESET = "python -m tasks.server automations --reset"


@dataclass
class Applied:
    """The names of the automations by what was done about them; `edited`: kept as someone changed them."""

    created: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    edited: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """What to print: one line of counts, and one for each automation that someone changed."""
        counts = {name: len(getattr(self, name)) for name in ("created", "updated", "deleted", "unchanged")}
        total = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        changed = [f"{name} was changed by hand and is kept: `{RESET}` writes ours again" for name in self.edited]
        return [total or "none", *changed]


def apply(alerts: bool, reset: bool = False, heartbeat: float | None = None) -> Applied:
    """Give the server at `PREFECT_API_URL` the automations of this checkout; a second time changes nothing.

    `alerts`: whether the server has a webhook. `reset`: overwrite what was changed by hand, too. `heartbeat`: seconds
    between the signs of life of runs, by default as Prefect is set. Raises `AbstainError` where a deployment of
    prefect.yaml is not there.
    """
    from prefect.client.orchestration import get_client
    from prefect.settings import get_current_settings

    params = load_params(project_root() / paths.PARAMS).monitoring
    beat = heartbeat or get_current_settings().flows.heartbeat_frequency or DEFAULT_HEARTBEAT
    applied = Applied()
    with get_client(sync_client=True) as client:
        made = [_sealed(one) for one in wanted(params, beat, lambda name: _deployment(client, name), alerts)]
        existing: dict[str, list[Automation]] = {}
        for automation in client.read_automations():
            if automation.name.startswith(PREFIX):
                existing.setdefault(automation.name, []).append(automation)
        for one in made:
            _write(client, one, existing.pop(one.name, []), reset, applied)
        for automation in (one for others in existing.values() for one in others):
            if _is_edited(automation) and not reset:
                applied.edited.append(automation.name)
                continue
            client.delete_automation(automation.id)
            applied.deleted.append(automation.name)
    return applied


def forget_run_again() -> None:
    """Remove the automation that runs crashed runs again, before runs are stopped on purpose; `apply` makes it again.

    One that was changed by hand or switched off stays.
    """
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        for automation in client.read_automations_by_name(RUN_AGAIN):
            if automation.enabled and not _is_edited(automation):
                client.delete_automation(automation.id)


def _write(
    client: SyncPrefectClient, ours: AutomationCore, existing: list[Automation], reset: bool, applied: Applied
) -> None:
    if not existing:
        client.create_automation(ours)
        applied.created.append(ours.name)
        return
    first, *others = existing
    for other in others:  # made by two servers that started at once
        client.delete_automation(other.id)
    if _is_edited(first) and not reset:
        applied.edited.append(ours.name)
    elif first.description == ours.description and _digest(first) == _digest(ours):
        applied.unchanged.append(ours.name)
    else:
        kept = ours.model_copy(update={"enabled": first.enabled, "actions_on_trigger": [], "actions_on_resolve": []})
        client.update_automation(first.id, kept)
        applied.updated.append(ours.name)


def _sealed(automation: AutomationCore) -> AutomationCore:
    """The same with its digest in the description."""
    return automation.model_copy(update={"description": f"{automation.description} [{_digest(automation)}]"})


def _is_edited(automation: Automation) -> bool:
    written = DIGEST.search(automation.description)
    return written is None or written[1] != _digest(automation)


def _digest(automation: AutomationCore) -> str:
    """Twelve hexadecimal digits of what an automation says and does, whether on or off."""
    content = automation.model_dump(
        mode="json", include={"name", "trigger", "actions", "actions_on_trigger", "actions_on_resolve"}
    )
    content["description"] = DIGEST.sub("", automation.description)
    return hashlib.sha256(json.dumps(_ordered(content), sort_keys=True).encode()).hexdigest()[:12]


def _ordered(value: Any) -> Any:
    """`value` with lists of texts sorted: sets are written in any order."""
    if isinstance(value, dict):
        return {key: _ordered(one) for key, one in value.items()}
    if isinstance(value, list):
        inner = [_ordered(one) for one in value]
        return sorted(inner) if all(isinstance(one, str) for one in inner) else inner
    return value


def _deployment(client: SyncPrefectClient, name: str) -> UUID:
    from prefect.exceptions import ObjectNotFound

    try:
        return client.read_deployment_by_name(name).id
    except ObjectNotFound:
        raise AbstainError(
            Code.NO_SERVICE, f"the server has no deployment {name}: run `prefect --no-prompt deploy --all` first"
        ) from None
