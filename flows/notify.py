"""The flow that posts an alert: deployment notify/webhook, which the automations run (tasks/server/automations.py).

Prefect's own notifications are sent once. This flow tries again, and its run shows a message that was not taken.
"""

from __future__ import annotations

from uuid import UUID

from prefect import flow
from prefect.utilities.urls import url_for

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain_tasks.runs.failures import coded_failures
from abstain_tasks.server.webhook import VARIABLE, deliver, message, read_stored_url


@flow(validate_parameters=False)
@coded_failures()
def notify(title: str, text: str = "", code: str = "", run_id: str = "") -> None:
    """Post one message to the webhook whose URL the server stores.

    Args:
        title: First line.
        text: The text.
        code: Its error code.
        run_id: Id of the flow run to link to; "" for none.

    Raises:
        AbstainError: The message is not accepted, or the server stores no URL.
    """
    url = read_stored_url()
    if url is None:
        raise AbstainError(
            Code.BAD_SETTING,
            f"the server has no webhook: set {VARIABLE} and run `python -m abstain_tasks.server automations`",
        )
    link = url_for("flow-run", UUID(run_id)) if run_id else None
    deliver(url, message(title, text, code, link))
