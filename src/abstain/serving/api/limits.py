"""Limits on what arrives, below the routes: bytes and time of a body, origins, and headers of every response."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from prometheus_client import Counter
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.serving.api.keys import Keys
from abstain.serving.api.problems import Problem, problem_response

OF_ALL = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
"""Headers of every response that does not say otherwise."""
BODY_SECONDS = 10.0
"""A body that has not arrived by then is given up."""
ARRIVED = "arrived"
"""Key of a request's state: when its body was complete, by `time.perf_counter`."""
BODY = "body"
"""Likewise its bytes: `Request.body` would copy them once more, a megabyte of states."""


class BodyLimits:
    """Refuse a body that is longer than `most` bytes (413) or takes longer than `BODY_SECONDS` to arrive (408).

    A body without a length is counted as it comes: nothing is read beyond the limit.
    """

    def __init__(self, app: ASGIApp, most: int, larger: Mapping[str, int]) -> None:
        """`larger`: the limits of the paths that have another one."""
        self._app, self._most, self._larger = app, most, larger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most = self._larger.get(scope["path"], self._most)
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        if declared.isdigit() and int(declared) > most:
            await _refuse(413, f"the body has {int(declared):,} bytes, {most:,} are allowed", scope, receive, send)
            return
        parts: list[bytes] = []
        size, more = 0, True
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while more and size <= most:
                    message = await receive()
                    if message["type"] != "http.request":  # the caller is gone
                        return
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    more = message.get("more_body", False)
        except TimeoutError:
            await _refuse(408, f"the body did not arrive within {BODY_SECONDS:g} s", scope, receive, send)
            return
        if size > most:
            await _refuse(413, f"the body has more than the {most:,} bytes that are allowed", scope, receive, send)
            return
        body = b"".join(parts)
        scope.setdefault("state", {}).update({ARRIVED: time.perf_counter(), BODY: body})
        rest: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def whole() -> Message:
            return rest.pop() if rest else await receive()

        await self._app(scope, whole, send)


class CountedResponses:
    """Count refused requests in `problems`, by status, and give every response the headers that all have.

    `/readyz` refuses while a server starts, which is no problem of a caller.
    """

    def __init__(self, app: ASGIApp, problems: Counter) -> None:
        self._app, self._problems = app, problems

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                if message["status"] >= 400 and scope["path"] != "/readyz":
                    self._problems.labels(str(message["status"])).inc()
                named = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(one for one in OF_ALL if one[0] not in named)]
            await send(message)

        try:
            await self._app(scope, receive, counted if scope["type"] == "http" else send)
        except Exception:  # answered further out
            self._problems.labels("500").inc()
            raise


class KeyFirst:
    """Refuse a request to one of `paths` without a valid key (401) before its body is read.

    The routes check the key's role.
    """

    def __init__(self, app: ASGIApp, keys: Keys, paths: tuple[str, ...]) -> None:
        self._app, self._keys, self._paths = app, keys, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(self._paths):
            sent = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
            scheme, _, key = sent.partition(" ")
            try:
                holder = self._keys.holder(key.strip()) if scheme.lower() == "bearer" else None
            except AbstainError as error:
                await Problem.of(error).response()(scope, receive, send)
                return
            if holder is None:
                await no_key().response()(scope, receive, send)
                return
        await self._app(scope, receive, send)


class OwnOriginOnly:
    """Refuse requests for another name than `hosts` (400), and those that a page of another site sends (403).

    Only for a server without keys, where reaching it is enough: a browser reaches what it cannot read, and a name that
    was pointed at this machine would let it read, too. Requests of programs have no `Origin`.
    """

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...]) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"]) if scope["type"] == "http" else None
        if headers is None:
            await self._app(scope, receive, send)
            return
        origin, host = headers.get(b"origin"), headers.get(b"host", b"").decode("latin-1")
        if _name_in(host) not in self._hosts:
            wanted = f"this server answers to {', '.join(self._hosts)} alone"
            await problem_response(400, Code.NO_ACCESS, wanted)(scope, receive, send)
        elif origin is not None and urlsplit(origin.decode("latin-1")).netloc != host:
            refused = "requests of pages of other sites are refused"
            await problem_response(403, Code.NO_ACCESS, refused)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def no_key() -> Problem:
    """The answer to who has no valid key."""
    detail = "send `Authorization: Bearer KEY` with a valid key"
    return Problem(401, Code.NO_ACCESS, detail, {"WWW-Authenticate": "Bearer"})


def _name_in(host: str) -> str:
    """The name or address in the header `Host`, without the port, as browsers and programs write it."""
    return host if host.endswith("]") or ":" not in host else host.rpartition(":")[0]


async def _refuse(status: int, detail: str, scope: Scope, receive: Receive, send: Send) -> None:
    await problem_response(status, Code.TOO_LARGE, detail, {"Connection": "close"})(scope, receive, send)
