"""Alerts: a Prefect automation that posts a notification to `ABSTAIN_ALERT_URL` when a run fails.

The payload is `{"text": ...}`, the format of Slack, Mattermost and Rocket.Chat: the flow, the run, the error's code
and message, and a link. The server sends it, so a run whose process was killed is reported, too. The URL may be a
secret: it is stored in the block's secrets and never printed whole.
"""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from tasks.failures import CodedFailure

VARIABLE, OLD_VARIABLE = "ABSTAIN_ALERT_URL", "ABSTAIN_PAGE_URL"
NAME = "abstain-alert"
"""The name of the automation and of its block: there is one of each, however often this is configured."""

FLOWS = ("ingest", "retrain")
SECONDS = 3
"""An alert is sent this long after the end of a run at the latest."""

SUBJECT = "{{ flow.name }}: run {{ flow_run.name }} has {{ flow_run.state.name | lower }}"
BODY = (
    f"{{% if '{CodedFailure.__name__}: ' not in (flow_run.state.message or '') %}}{Code.LOST_PROCESS}: {{% endif %}}"
    "{{ flow_run.state.message }}\n{{ (flow_run | ui_url) or 'start `make up` to look at the run' }}"
)
"""The message of a failed flow has a code; a process that died and a defect have none of their own."""


def receiver() -> str | None:
    """The URL that failed runs are posted to, or None. Raises `AbstainError` for an invalid URL or the old name."""
    if OLD_VARIABLE in os.environ:
        raise AbstainError(
            Code.BAD_SETTING, f"environment variable {OLD_VARIABLE} is now {VARIABLE}: set that one in its place"
        )
    url = os.environ.get(VARIABLE, "").strip()
    if not url:
        return None
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise AbstainError(Code.BAD_SETTING, f"environment variable {VARIABLE}: not an http(s) URL")
    return url


def configure(url: str | None) -> None:
    """Make the server at `PREFECT_API_URL` post failed and crashed runs of `FLOWS` to `url`; None: no alerts."""
    from prefect.blocks.notifications import CustomWebhookNotificationBlock
    from prefect.client.orchestration import get_client
    from prefect.events.actions import SendNotification
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

    with get_client(sync_client=True) as client:
        existing = client.read_automations_by_name(NAME)
        if url is None:
            for automation in existing:
                client.delete_automation(automation.id)
            return
        text = "{{subject}}\n{{body}}"
        block = CustomWebhookNotificationBlock(name=NAME, url="{{url}}", json_data={"text": text}, secrets={"url": url})
        definition = AutomationCore(
            name=NAME,
            description=f"post to {VARIABLE} when a run of {' or '.join(FLOWS)} fails",
            trigger=EventTrigger(
                expect={"prefect.flow-run.Failed", "prefect.flow-run.Crashed"},
                match_related={"prefect.resource.role": "flow", "prefect.resource.name": list(FLOWS)},
                posture=Posture.Reactive,
                threshold=1,
            ),
            actions=[SendNotification(block_document_id=block.save(NAME, overwrite=True), subject=SUBJECT, body=BODY)],
        )
        if not existing:
            client.create_automation(definition)
        for automation in existing:
            client.update_automation(automation.id, definition)


def summary(url: str | None) -> str:
    """The line of `make up` about alerts."""
    return f"failed runs are posted to {urlsplit(url).netloc}" if url else f"none: set {VARIABLE} to a webhook's URL"
