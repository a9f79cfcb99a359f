"""The flow that posts an alert: deployment notify/webhook, which the automations run (tasks/server/automations.py).

Prefect's own notifications are sent once. This flow tries again, and its run shows a message that was not taken.
"""

from __future__ import annotations

from prefect import flow

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from tasks.failures import coded_failures
from tasks.webhook import VARIABLE, deliver, message, stored_url


@flow(validate_parameters=False)
@coded_failures()
def notify(title: str, text: str = "", link: str = "", code: str = "") -> None:
    """Post one message to the webhook whose URL the server keeps. Raises `AbstainError` where it is not taken."""
    url = stored_url()
    if url is None:
        raise AbstainError(
            Code.BAD_SETTING, f"the server has no webhook: set {VARIABLE} and run `python -m tasks.server automations`"
        )
    deliver(url, message(title, text, link, code))
