"""Limits on what arrives, below the routes: bytes and time of a body, origins, and headers of every response."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from abstain.core.codes import Code
from abstain.serving.api.problems import problem_response

ARRIVED = "arrived"
"""Key of a request's state: when its body was complete, by `time.perf_counter`."""


class BodyLimits:
    """Refuse a body that is longer than `most` bytes (413) or takes longer than `seconds` to arrive (408).

    A body without a length is counted as it comes: nothing is read beyond the limit.
    """

    def __init__(self, app: ASGIApp, most: int, seconds: float) -> None:
        self._app, self._most, self._seconds = app, most, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        if declared.isdigit() and int(declared) > self._most:
            await self._refuse(413, f"the body has {int(declared):,} bytes", scope, receive, send)
            return
        deadline = time.monotonic() + self._seconds
        body, more = bytearray(), True
        while more:
            try:
                message = await asyncio.wait_for(receive(), max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                await self._refuse(408, f"the body did not arrive within {self._seconds:g} s", scope, receive, send)
                return
            if message["type"] != "http.request":  # the caller is gone
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self._most:
                await self._refuse(413, "the body is longer", scope, receive, send)
                return
        scope.setdefault("state", {})[ARRIVED] = time.perf_counter()
        rest: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def whole() -> Message:
            return rest.pop() if rest else await receive()

        await self._app(scope, whole, send)

    async def _refuse(self, status: int, what: str, scope: Scope, receive: Receive, send: Send) -> None:
        detail = f"{what}, {self._most:,} bytes are allowed" if status == 413 else what
        await problem_response(status, Code.TOO_LARGE, detail, {"Connection": "close"})(scope, receive, send)


class OwnOriginOnly:
    """Refuse requests that a page of another site sends (403): a browser would add what it knows of this machine.

    Only for a server without keys, where reaching it is enough. Requests of programs have no `Origin`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"]) if scope["type"] == "http" else {}
        origin, host = headers.get(b"origin"), headers.get(b"host", b"").decode("latin-1")
        if origin is not None and urlsplit(origin.decode("latin-1")).netloc != host:
            response: Any = problem_response(403, Code.NO_ACCESS, "requests of pages of other sites are refused")
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)
