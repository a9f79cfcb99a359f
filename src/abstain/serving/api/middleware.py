"""Middleware below the routes: limits on the size and time of bodies, on origins, and headers of every response."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from io import BytesIO
from json import detect_encoding
from urllib.parse import urlsplit

import prometheus_client
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.serving.api.problems import Problem, make_problem_response
from abstain.serving.service.callers import get_current_caller, set_caller
from abstain.serving.service.keys import ApiKeys

DEFAULT_HEADERS = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
"""Headers of every response that does not set them itself."""
BODY_TIMEOUT_S = 10.0
"""Time after which a body that has not arrived is given up."""
MAX_TOTAL_BODY_BYTES = 256 * 1024 * 1024
"""Maximum size of all bodies in memory."""
MAX_VALUES = 300_000
"""Maximum number of values in a JSON body: tiny values take far more memory and time than their bytes suggest."""
MAX_DRAINED_BYTES = 1024 * 1024
"""Number of bytes beyond the limit that are read of a rejected body and thrown away."""
BODY_RECEIVED_AT = "arrived"
"""Key of a request's state: when its body was complete, by `time.perf_counter`."""
BODY = "body"
"""Key of a request's state: its bytes. `Request.body` would copy them once more, a megabyte of states."""


class BodyLimitMiddleware:
    """Read bodies into memory, and reject one that is too large (413) or too late (408), or for which there is no room.

    Room is counted as bytes arrive, for all bodies that are read or being answered (503), and for those of one caller
    (429). A path that takes no body is answered without reading any.
    """

    def __init__(
        self,
        app: ASGIApp,
        get_limit: Callable[[Scope], int],
        max_bytes_per_caller: int,
        check_body: Callable[[Scope, bytes], None],
        make_response: Callable[[Scope, Problem], Response],
    ) -> None:
        """Limit the bodies of `app`.

        Args:
            app: The app below.
            get_limit: Returns the maximum number of bytes of a request's body; 0 if it takes none.
            max_bytes_per_caller: Maximum number of bytes of one caller's bodies in memory.
            check_body: Called with a body before it is parsed; raises `AbstainError` to reject it.
            make_response: Makes the response of a problem.
        """
        self._app, self._get_limit, self._max_bytes_per_caller = app, get_limit, max_bytes_per_caller
        self._check_body, self._make_response = check_body, make_response
        self._bytes_by_caller: Counter[str] = Counter()  # bytes in memory, by caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        max_bytes = self._get_limit(scope) if scope["type"] == "http" else 0
        if not max_bytes:
            await self._app(scope, receive, send)
            return
        body = _Body(receive, get_current_caller())
        try:
            try:
                await self._read(body, dict(scope["headers"]), max_bytes)
                if body.is_abandoned:
                    return
                self._check_body(scope, body.content)
            except (Problem, AbstainError) as error:
                problem = error if isinstance(error, Problem) else Problem.from_error(error)
                self._release(body)
                await _send_and_drain(
                    self._make_response(scope, problem), body, max_bytes + MAX_DRAINED_BYTES, scope, receive, send
                )
                return
            scope.setdefault("state", {}).update({BODY_RECEIVED_AT: time.perf_counter(), BODY: body.content})
            messages: list[Message] = [{"type": "http.request", "body": body.content, "more_body": False}]

            async def receive_body() -> Message:
                return messages.pop() if messages else await receive()

            await self._app(scope, receive_body, send)
        finally:
            self._release(body)

    async def _read(self, body: _Body, headers: Mapping[bytes, bytes], max_bytes: int) -> None:
        """Read `body` until it is whole or its caller has left. Raises `Problem` if it is rejected."""
        declared = headers.get(b"content-length", b"")
        if declared.isdigit() and int(declared) > max_bytes:
            raise _make_closing_problem(413, f"the body has {int(declared):,} bytes, {max_bytes:,} are allowed")
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                while not body.is_whole:
                    size = await body.receive()
                    self._bytes_by_caller[body.caller] += size
                    if body.size > max_bytes:
                        raise _make_closing_problem(
                            413, f"the body has more than the {max_bytes:,} bytes that are allowed"
                        )
                    self._require_room(body.caller)
        except TimeoutError:
            raise _make_closing_problem(408, f"the body did not arrive within {BODY_TIMEOUT_S:g} s") from None
        if b"json" in headers.get(b"content-type", b"") and not detect_encoding(body.content).startswith("utf-8"):
            raise Problem(400, Code.WRONG_FORMAT, "the body is no UTF-8: send JSON as UTF-8")

    def _require_room(self, caller: str) -> None:
        if self._bytes_by_caller[caller] > self._max_bytes_per_caller:
            raise _make_closing_problem(
                429, f"{caller} sends more than {self._max_bytes_per_caller:,} bytes at once: wait for the answers"
            )
        if self._bytes_by_caller.total() > MAX_TOTAL_BODY_BYTES:
            raise _make_closing_problem(
                503,
                f"all bodies that are read have more than {MAX_TOTAL_BODY_BYTES:,} bytes: send yours again in a moment",
            )

    def _release(self, body: _Body) -> None:
        """Free the memory of `body`."""
        self._bytes_by_caller[body.caller] -= body.size
        if not self._bytes_by_caller[body.caller]:
            del self._bytes_by_caller[body.caller]
        body.clear()


class _Body:
    """A body on its way from `caller`, with its `size` so far, and whether it `is_whole` or `is_abandoned`."""

    def __init__(self, receive: Receive, caller: str) -> None:
        self._receive, self.caller = receive, caller
        self._content = BytesIO()
        self.size, self.is_whole, self.is_abandoned = 0, False, False

    async def receive(self) -> int:
        """Receive the next part and return its number of bytes."""
        message = await self._receive()
        self.is_abandoned = message["type"] != "http.request"
        self.is_whole = self.is_abandoned or not message.get("more_body", False)
        size = self._content.write(message.get("body", b""))
        self.size += size
        return size

    @property
    def content(self) -> bytes:
        return self._content.getvalue()  # no copy: it may be megabytes

    def clear(self) -> None:
        self._content, self.size = BytesIO(), 0


class ResponseMetricsMiddleware:
    """Count rejected requests in `problems`, by status, and add the default headers to every response.

    `/readyz` fails while a server starts, which is not counted: it is no problem of a caller.
    """

    def __init__(self, app: ASGIApp, problems: prometheus_client.Counter) -> None:
        self._app, self._problems = app, problems

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_and_count(message: Message) -> None:
            if message["type"] == "http.response.start":
                if message["status"] >= 400 and scope["path"] != "/readyz":
                    self._problems.labels(str(message["status"])).inc()
                present_names = {name for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *(header for header in DEFAULT_HEADERS if header[0] not in present_names),
                ]
            await send(message)

        try:
            await self._app(scope, receive, send_and_count if scope["type"] == "http" else send)
        except Exception:  # answered further out
            self._problems.labels("500").inc()
            raise


class ApiKeyMiddleware:
    """Set the caller of a request, and reject a request to `paths` without a valid key (401) before its body is read.

    The routes check the key's role.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeys, paths: tuple[str, ...], get_limit: Callable[[Scope], int]) -> None:
        """Authenticate the requests of `app`.

        Args:
            app: The app below.
            keys: Keys of the callers.
            paths: Prefixes of the paths that need a key.
            get_limit: As in `BodyLimitMiddleware`.
        """
        self._app, self._keys, self._paths, self._get_limit = app, keys, paths, get_limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        api_key = None
        if scope["type"] == "http" and self._keys.required and scope["path"].startswith(self._paths):
            authorization = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
            scheme, _, key = authorization.partition(" ")
            problem = make_unauthorized_problem()
            try:
                api_key = self._keys.authenticate(key.strip()) if scheme.lower() == "bearer" else None
            except AbstainError as error:
                problem = Problem.from_error(error)
            if api_key is None:
                max_bytes = self._get_limit(scope) + MAX_DRAINED_BYTES
                await _send_and_drain(problem.to_response(), _Body(receive, ""), max_bytes, scope, receive, send)
                return
        set_caller(scope, api_key)
        await self._app(scope, receive, send)


class SameOriginMiddleware:
    """Reject requests for another host than `hosts` (400), and requests from a page of another site (403).

    Only for a server without keys, which everybody may use who reaches it. A browser sends requests to servers whose
    responses it may not read, and a host name that was pointed at this machine would let it read them, too. Requests of
    programs have no `Origin`.
    """

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...]) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"]) if scope["type"] == "http" else None
        if headers is None:
            await self._app(scope, receive, send)
            return
        origin, host = headers.get(b"origin"), headers.get(b"host", b"").decode("latin-1")
        if _get_host_name(host) not in self._hosts:
            detail = f"this server answers to {', '.join(self._hosts)} alone"
            await make_problem_response(400, Code.NO_ACCESS, detail)(scope, receive, send)
        elif origin is not None and urlsplit(origin.decode("latin-1")).netloc != host:
            detail = "requests of pages of other sites are rejected"
            await make_problem_response(403, Code.NO_ACCESS, detail)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def make_unauthorized_problem() -> Problem:
    """Return the response to a caller without a valid key."""
    detail = "send `Authorization: Bearer KEY` with a valid key"
    return Problem(401, Code.NO_ACCESS, detail, {"WWW-Authenticate": "Bearer"})


def estimate_value_count(content: bytes) -> int:
    """Estimate the number of values in JSON before it is parsed; punctuation in texts counts, too."""
    return content.count(b",") + content.count(b"[") + content.count(b"{")


def check_value_count(n_values: int) -> None:
    """Raise `AbstainError` if JSON has more than `MAX_VALUES` values by `estimate_value_count`."""
    if n_values > MAX_VALUES:
        raise AbstainError(
            Code.TOO_LARGE, f"the body has {n_values:,} values, {MAX_VALUES:,} are allowed: send it in several requests"
        )


def _get_host_name(host: str) -> str:
    """Return the name or address in the header `Host` without the port, as browsers and programs write it."""
    return host if host.endswith("]") or ":" not in host else host.rpartition(":")[0]


def _make_closing_problem(status: int, detail: str) -> Problem:
    """Return a problem that closes the connection, because a part of the body may still be on its way."""
    retry = {"Retry-After": "1"} if status in (429, 503) else {}
    return Problem(status, Code.BUSY if retry else Code.TOO_LARGE, detail, {"Connection": "close", **retry})


async def _send_and_drain(
    response: Response, body: _Body, max_bytes: int, scope: Scope, receive: Receive, send: Send
) -> None:
    """Send a response, and read up to `max_bytes` more.

    A caller who still writes when a connection closes would not see the response.
    """

    async def keep_open(message: Message) -> None:
        await send({**message, "more_body": True} if message["type"] == "http.response.body" else message)

    await response(scope, receive, keep_open)
    with suppress(TimeoutError):
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while response.status_code != 408 and not body.is_whole and max_bytes > 0:
                max_bytes -= await body.receive()
                body.clear()
    await send({"type": "http.response.body", "body": b""})
