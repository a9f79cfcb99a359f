"""Messages to the webhook `ABSTAIN_ALERT_URL`, retried until the receiver has accepted them.

The payload is `{"text": ...}`, the format of Slack, Mattermost and Rocket.Chat. The URL may be a secret: the server
stores it in a Secret block, and only its host is ever printed. A redirect is not followed: it would be a GET without
the text, to any address that the receiver names.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain_tasks.runs.failures import CodedFailure

VARIABLE = "ABSTAIN_ALERT_URL"
BLOCK = "abstain-alert"
"""The name of the Secret block with the URL."""

RETRY_DELAYS_S = (1, 3, 10, 60, 300, 900, 1800)
"""Seconds between the attempts: a receiver may be away for 51 minutes."""
SHORT_RETRY_DELAYS_S = (1, 3)
"""The same for a command that a person waits for."""
TIMEOUT = 20
BUSY = (408, 425, 429)
"""Statuses below 500 with which a receiver asks for another attempt."""


class _NoRedirects(HTTPRedirectHandler):
    """Follows no redirect, so that it is an error like other statuses."""

    def redirect_request(self, *_: object) -> None:
        return None


_OPENER = build_opener(_NoRedirects)


def receiver() -> str | None:
    """Read the URL to post alerts to from the environment.

    Returns:
        The URL; "" for no alerts; None if the variable is not set, so that nothing changes.

    Raises:
        AbstainError: The URL is invalid.
    """
    url = os.environ.get(VARIABLE)
    url = url and url.strip()
    if not url:
        return url
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise AbstainError(Code.BAD_SETTING, f"environment variable {VARIABLE}: not an http(s) URL")
    return url


def describe_receiver(url: str | None) -> str:
    """Return the line of `make up` about alerts.

    Args:
        url: The URL; None or "" without alerts.

    Returns:
        The line.
    """
    return f"posted to {get_host(url)}" if url else f"none: set {VARIABLE} to a webhook's URL"


def get_host(url: str) -> str:
    """Return host and port of a URL, without the name and the password that it may have."""
    return urlsplit(url).netloc.rpartition("@")[2]


def message(title: str, text: str, code: str = "", link: str | None = None) -> str:
    """Format a message in three lines: what happened to what; code and text; a link.

    The text of a flow's own failure includes its code. A process that died and a defect have none.

    Args:
        title: First line.
        text: Second line.
        code: Code in front of the text.
        link: Third line; by default a hint.

    Returns:
        The message.
    """
    if not code and f"{CodedFailure.__name__}: " not in text:
        code = Code.PROCESS_DIED
    begin = f"{code}: " if code else ""
    return f"{title}\n{begin}{text}\n{link or 'start `make up` to look at the run'}"


def store_url(url: str | None) -> str | None:
    """Store the webhook URL on the server at `PREFECT_API_URL`, where flow runs find it.

    Args:
        url: Result of `receiver`: None leaves what is stored, "" deletes it.

    Returns:
        The stored URL; None for no alerts.
    """
    from prefect.blocks.system import Secret

    stored = read_stored_url()
    if url is None:
        return stored
    if not url:
        if stored is not None:
            Secret.delete(BLOCK)
        return None
    if stored != url:
        Secret(value=url).save(BLOCK, overwrite=True)
    return url


def read_stored_url() -> str | None:
    """Return the URL that the server stores; None if there is none."""
    from prefect.blocks.system import Secret

    try:
        block = Secret.load(BLOCK)
    except ValueError:  # as Prefect reports a missing block
        return None
    assert isinstance(block, Secret)
    return str(block.get())


def deliver(url: str, text: str, retry_delays_s: Sequence[float] = RETRY_DELAYS_S) -> None:
    """Post a text to a webhook, retrying while the receiver is unavailable, busy or broken.

    A receiver that accepts a message and then breaks the connection gets it twice.

    Args:
        url: The webhook.
        text: The message.
        retry_delays_s: Seconds before each further attempt.

    Raises:
        AbstainError: All attempts failed, or the request was rejected as invalid.
    """
    request = Request(url, json.dumps({"text": text}).encode(), {"Content-Type": "application/json"})
    for wait in (*retry_delays_s, None):
        try:
            with _OPENER.open(request, timeout=TIMEOUT):
                return
        except HTTPError as error:
            reason = f"it answers {error.code}{', a redirect' if 300 <= error.code < 400 else ''}"
            is_lasting = error.code < 500 and error.code not in BUSY
        except OSError as error:
            reason = f"it is not reached ({getattr(error, 'reason', error)})"
            is_lasting = False
        except HTTPException as error:  # such as a proxy that breaks off
            reason = f"it does not answer by HTTP ({type(error).__name__})"
            is_lasting = False
        if wait is None or is_lasting:
            raise AbstainError(
                Code.NO_SERVICE,
                f"the webhook at {get_host(url)} did not take an alert: {reason}: correct {VARIABLE}, or the receiver",
            )
        time.sleep(wait)
