"""Limits on what arrives, below the routes: size and time of a body, origins, and headers of every response."""

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
from abstain.serving.api.callers import current_caller, set_caller
from abstain.serving.api.keys import ApiKeys
from abstain.serving.api.problems import Problem, problem_response

DEFAULT_HEADERS = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
"""Headers of every response that does not say otherwise."""
BODY_SECONDS = 10.0
"""A body that has not arrived by then is given up."""
BODIES = 256 * 1024 * 1024
"""The most bytes of all bodies that are in memory."""
VALUES = 300_000
"""The most values of a JSON body: tiny ones take far more memory and time than their bytes."""
DRAINED = 1024 * 1024
"""Bytes beyond the limit that are read of a refused body, and thrown away."""
BODY_RECEIVED_AT = "arrived"
"""Key of a request's state: when its body was complete, by `time.perf_counter`."""
BODY = "body"
"""Likewise: its bytes. `Request.body` would copy them once more, a megabyte of states."""


class BodyLimitMiddleware:
    """Read bodies into memory, and refuse one that has too many bytes (413), arrives too late (408) or finds no room.

    Room is counted as bytes come, for all bodies that are read or being answered (503), and for those of one caller
    (429). A path that takes no body is answered without reading any.
    """

    def __init__(
        self,
        app: ASGIApp,
        limit_of: Callable[[Scope], int],
        of_caller: int,
        check: Callable[[Scope, bytes], None],
        refusal: Callable[[Scope, Problem], Response],
    ) -> None:
        """Limit the bodies of `app`.

        Args:
            limit_of: the most bytes of the body of a request; 0: it takes none.
            of_caller: the most bytes of one caller's bodies in memory.
            check: is called with a body before it is parsed; raises `AbstainError` where it is refused.
            refusal: the response of a problem.
        """
        self._app, self._limit_of, self._of_caller = app, limit_of, of_caller
        self._check, self._refusal = check, refusal
        self._held: Counter[str] = Counter()  # bytes in memory, by caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        most = self._limit_of(scope) if scope["type"] == "http" else 0
        if not most:
            await self._app(scope, receive, send)
            return
        body = _Body(receive, current_caller())
        try:
            try:
                await self._read(body, dict(scope["headers"]), most)
                if body.is_abandoned:
                    return
                self._check(scope, body.content)
            except (Problem, AbstainError) as error:
                refused = error if isinstance(error, Problem) else Problem.from_error(error)
                self._release(body)
                await _refuse(self._refusal(scope, refused), body, most + DRAINED, scope, receive, send)
                return
            scope.setdefault("state", {}).update({BODY_RECEIVED_AT: time.perf_counter(), BODY: body.content})
            rest: list[Message] = [{"type": "http.request", "body": body.content, "more_body": False}]

            async def whole() -> Message:
                return rest.pop() if rest else await receive()

            await self._app(scope, whole, send)
        finally:
            self._release(body)

    async def _read(self, body: _Body, headers: Mapping[bytes, bytes], most: int) -> None:
        """Read `body` until it is whole, or its caller has left. Raises `Problem` where it is refused."""
        declared = headers.get(b"content-length", b"")
        if declared.isdigit() and int(declared) > most:
            raise _closing(413, f"the body has {int(declared):,} bytes, {most:,} are allowed")
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while not body.is_whole:
                    size = await body.receive()
                    self._held[body.caller] += size
                    if body.size > most:
                        raise _closing(413, f"the body has more than the {most:,} bytes that are allowed")
                    self._require_room(body.caller)
        except TimeoutError:
            raise _closing(408, f"the body did not arrive within {BODY_SECONDS:g} s") from None
        if b"json" in headers.get(b"content-type", b"") and not detect_encoding(body.content).startswith("utf-8"):
            raise Problem(400, Code.WRONG_FORMAT, "the body is no UTF-8: send JSON as UTF-8")

    def _require_room(self, caller: str) -> None:
        if self._held[caller] > self._of_caller:
            raise _closing(429, f"{caller} sends more than {self._of_caller:,} bytes at once: wait for the answers")
        if self._held.total() > BODIES:
            raise _closing(
                503, f"all bodies that are read have more than {BODIES:,} bytes: send yours again in a moment"
            )

    def _release(self, body: _Body) -> None:
        """Let go of what is known of `body`."""
        self._held[body.caller] -= body.size
        if not self._held[body.caller]:
            del self._held[body.caller]
        body.forget()


class _Body:
    """A body on its way from `caller`: its `size` so far, whether it `is_whole`, and whether it `is_abandoned`."""

    def __init__(self, receive: Receive, caller: str) -> None:
        self._receive, self.caller = receive, caller
        self._content = BytesIO()
        self.size, self.is_whole, self.is_abandoned = 0, False, False

    async def receive(self) -> int:
        """Read on: the number of bytes that came."""
        message = await self._receive()
        self.is_abandoned = message["type"] != "http.request"
        self.is_whole = self.is_abandoned or not message.get("more_body", False)
        size = self._content.write(message.get("body", b""))
        self.size += size
        return size

    @property
    def content(self) -> bytes:
        return self._content.getvalue()  # no copy: it may be megabytes

    def forget(self) -> None:
        self._content, self.size = BytesIO(), 0


class ResponseMetricsMiddleware:
    """Count refused requests in `problems`, by status, and give every response the headers that all have.

    `/readyz` refuses while a server starts, which is no problem of a caller.
    """

    def __init__(self, app: ASGIApp, problems: prometheus_client.Counter) -> None:
        self._app, self._problems = app, problems

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                if message["status"] >= 400 and scope["path"] != "/readyz":
                    self._problems.labels(str(message["status"])).inc()
                named = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(one for one in DEFAULT_HEADERS if one[0] not in named)]
            await send(message)

        try:
            await self._app(scope, receive, counted if scope["type"] == "http" else send)
        except Exception:  # answered further out
            self._problems.labels("500").inc()
            raise


class ApiKeyMiddleware:
    """Tell who sends a request, and refuse one to `paths` without a valid key (401) before its body is read.

    The routes check the key's role.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeys, paths: tuple[str, ...], limit_of: Callable[[Scope], int]) -> None:
        """`limit_of`: as of `BodyLimitMiddleware`."""
        self._app, self._keys, self._paths, self._limit_of = app, keys, paths, limit_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        holder = None
        if scope["type"] == "http" and self._keys.required and scope["path"].startswith(self._paths):
            sent = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
            scheme, _, key = sent.partition(" ")
            refused = make_unauthorized_problem()
            try:
                holder = self._keys.authenticate(key.strip()) if scheme.lower() == "bearer" else None
            except AbstainError as error:
                refused = Problem.from_error(error)
            if holder is None:
                most = self._limit_of(scope) + DRAINED
                await _refuse(refused.response(), _Body(receive, ""), most, scope, receive, send)
                return
        set_caller(scope, holder)
        await self._app(scope, receive, send)


class SameOriginMiddleware:
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
        if _get_host_name(host) not in self._hosts:
            wanted = f"this server answers to {', '.join(self._hosts)} alone"
            await problem_response(400, Code.NO_ACCESS, wanted)(scope, receive, send)
        elif origin is not None and urlsplit(origin.decode("latin-1")).netloc != host:
            refused = "requests of pages of other sites are refused"
            await problem_response(403, Code.NO_ACCESS, refused)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def make_unauthorized_problem() -> Problem:
    """The answer to who has no valid key."""
    detail = "send `Authorization: Bearer KEY` with a valid key"
    return Problem(401, Code.NO_ACCESS, detail, {"WWW-Authenticate": "Bearer"})


def count_values(content: bytes) -> int:
    """About how many values JSON has, before it is parsed: marks in texts count, too."""
    return content.count(b",") + content.count(b"[") + content.count(b"{")


def require_few_values(values: int) -> None:
    """Raise `AbstainError` where JSON has more than `VALUES` values, by `count_values`."""
    if values > VALUES:
        raise AbstainError(
            Code.TOO_LARGE, f"the body has {values:,} values, {VALUES:,} are allowed: send it in several requests"
        )


def _get_host_name(host: str) -> str:
    """The name or address in the header `Host`, without the port, as browsers and programs write it."""
    return host if host.endswith("]") or ":" not in host else host.rpartition(":")[0]


def _closing(status: int, detail: str) -> Problem:
    """A problem after which nothing can be asked on this connection: a part of the body may be on its way."""
    retry = {"Retry-After": "1"} if status in (429, 503) else {}
    return Problem(status, Code.BUSY if retry else Code.TOO_LARGE, detail, {"Connection": "close", **retry})


async def _refuse(refusal: Response, body: _Body, most: int, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer, and read `most` bytes more for nothing: who is still writing when a connection closes sees no answer."""

    async def keep_open(message: Message) -> None:
        await send({**message, "more_body": True} if message["type"] == "http.response.body" else message)

    await refusal(scope, receive, keep_open)
    with suppress(TimeoutError):
        async with asyncio.timeout(BODY_SECONDS):
            while refusal.status_code != 408 and not body.is_whole and most > 0:
                most -= await body.receive()
                body.forget()
    await send({"type": "http.response.body", "body": b""})
