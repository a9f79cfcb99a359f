"""Messages to the webhook `ABSTAIN_ALERT_URL`, posted again until the receiver has taken them.

The payload is `{"text": ...}`, the format of Slack, Mattermost and Rocket.Chat. The URL may be a secret: the server
keeps it in a Secret block, and only its host is ever printed. A redirect is not followed: it would be a GET without the
text, of any address that the receiver names.
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
from tasks.runs.failures import CodedFailure

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
    """Takes no redirect, so that it is an error as other statuses are."""

    def redirect_request(self, *_: object) -> None:
        return None


_OPENER = build_opener(_NoRedirects)


def receiver() -> str | None:
    """The URL to post alerts to: empty for no alerts, None where the variable is not set, and nothing is said.

    Raises `AbstainError` for an invalid URL.
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
    """The line of `make up` about alerts."""
    return f"posted to {host_of(url)}" if url else f"none: set {VARIABLE} to a webhook's URL"


def host_of(url: str) -> str:
    """Host and port of `url`, without the name and the password that it may have."""
    return urlsplit(url).netloc.rpartition("@")[2]


def message(title: str, text: str, code: str = "", link: str | None = None) -> str:
    """Three lines: what has happened, to what; the code and the text; a link.

    The text of a flow's own failure has its code in it; a process that died and a defect have none of their own.
    """
    if not code and f"{CodedFailure.__name__}: " not in text:
        code = Code.PROCESS_DIED
    begin = f"{code}: " if code else ""
    return f"{title}\n{begin}{text}\n{link or 'start `make up` to look at the run'}"


def store_url(url: str | None) -> str | None:
    """The URL that the server at `PREFECT_API_URL` keeps from now on, where flow runs find it; None for no alerts.

    That is `url`, as of `receiver`: None leaves what it keeps, and an empty one deletes that.
    """
    from prefect.blocks.system import Secret

    stored = stored_url()
    if url is None:
        return stored
    if not url:
        if stored is not None:
            Secret.delete(BLOCK)
        return None
    if stored != url:
        Secret(value=url).save(BLOCK, overwrite=True)
    return url


def stored_url() -> str | None:
    """The URL that the server keeps; None where it keeps none."""
    from prefect.blocks.system import Secret

    try:
        block = Secret.load(BLOCK)
    except ValueError:  # as Prefect reports a missing block
        return None
    assert isinstance(block, Secret)
    return str(block.get())


def deliver(url: str, text: str, waits: Sequence[float] = RETRY_DELAYS_S) -> None:
    """Post `text` to `url`; again after each of `waits`, in seconds, while the receiver is away, busy or broken.

    Raises `AbstainError` when it was taken by none of the attempts, or refused as a request that is wrong by itself.
    A receiver that takes a message and then breaks the connection gets it twice.
    """
    request = Request(url, json.dumps({"text": text}).encode(), {"Content-Type": "application/json"})
    for wait in (*waits, None):
        try:
            with _OPENER.open(request, timeout=TIMEOUT):
                return
        except HTTPError as error:
            problem = f"it answers {error.code}{', a redirect' if 300 <= error.code < 400 else ''}"
            is_lasting = error.code < 500 and error.code not in BUSY
        except OSError as error:
            problem = f"it is not reached ({getattr(error, 'reason', error)})"
            is_lasting = False
        except HTTPException as error:  # such as a proxy that breaks off
            problem = f"it does not answer by HTTP ({type(error).__name__})"
            is_lasting = False
        if wait is None or is_lasting:
            raise AbstainError(
                Code.NO_SERVICE,
                f"the webhook at {host_of(url)} did not take an alert: {problem}: correct {VARIABLE}, or the receiver",
            )
        time.sleep(wait)
