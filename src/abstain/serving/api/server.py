"""Run the app: where it may listen, how it ends, and what a connection that sends nothing costs."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from abstain.core.codes import Code
from abstain.core.errors import AbstainError

HEADER_SECONDS = 10.0
"""A connection on which no whole request head arrives for so long is closed."""
HEADER_BYTES = 64 * 1024
"""So is one whose request head is longer."""
CONNECTIONS = 1024
"""Open connections."""
GRACE_SECONDS = 20
"""Requests that run at the end may take so long."""
LINES_A_MINUTE = 10
"""Lines of one message that are logged."""
MESSAGES_A_MINUTE = 20
"""Messages of one place in the code that are counted apart; further ones are counted as one."""
LOGGERS = ("uvicorn.error", "abstain.serve")
"""Where what callers do is logged."""
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


class HeaderTimeoutProtocol(HttpToolsProtocol):
    """uvicorn's faster HTTP protocol, which closes a connection whose request head does not arrive, or does not end.

    uvicorn limits how long a connection may be idle after a response, but not how long its first line may take, nor,
    in this protocol, how long its headers may be, nor how many connections an address may have.
    """

    _head: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _awaits_head = True

    def __init__(self, *given: Any, opened: OpenConnections, **named: Any) -> None:
        super().__init__(*given, **named)
        self._opened = opened

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if (excess := self._opened.add(self)) is not None:
            excess.transport.abort()
        if excess is not self:
            self._await_head()

    @property
    def address(self) -> str:
        return self.client[0] if self.client else ""

    @property
    def is_busy(self) -> bool:
        """Whether a request is being read or answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._awaits_head:
            self._forget_head()
            return
        self._head_bytes += len(data)
        if self._head_bytes > HEADER_BYTES:
            self.transport.close()
        elif self._head is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        # A head that came in one packet is parsed before its bytes are counted; an error here is status 400.
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > HEADER_BYTES:
            raise ValueError("the head is too long")
        self._awaits_head = False
        super().on_headers_complete()

    def on_message_begin(self) -> None:  # also of a request that is sent before the last one is answered
        self._awaits_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_response_complete(self) -> None:
        if self.cycle.response_complete:
            self._awaits_head, self._head_bytes = True, 0
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        self._opened.remove(self)
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._head = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _forget_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None


class OpenConnections:
    """The open connections of a server, by address.

    One address may have `most` of them. Where there are as many as there may be, the address with the most gives one up
    for a new one: who has few is always let in.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._of: dict[str, dict[HeaderTimeoutProtocol, None]] = {}

    def add(self, one: HeaderTimeoutProtocol) -> HeaderTimeoutProtocol | None:
        """Count `one`. Returns the one that has to go for it, `one` itself where its address has too many."""
        mine = self._of.setdefault(one.address, {})
        mine[one] = None
        if len(mine) > self._most:
            one.logger.warning(
                "%s has more than %d connections, which is all that one address may: raise "
                "ABSTAIN_SERVE_CALLER__CONNECTIONS for a proxy",
                one.address,
                self._most,
            )
            excess = one
        elif sum(map(len, self._of.values())) > CONNECTIONS:
            longest = max(self._of.values(), key=len)
            excess = next((other for other in longest if not other.is_busy), next(iter(longest)))
        else:
            return None
        self.remove(excess)
        return excess

    def remove(self, one: HeaderTimeoutProtocol) -> None:
        """Count `one` no more."""
        mine = self._of.get(one.address, {})
        mine.pop(one, None)
        if not mine:
            self._of.pop(one.address, None)


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def get_allowed_hosts(host: str) -> tuple[str, ...]:
    """The names in the address of a server without keys that listens to `host`."""
    shown = f"[{host}]" if ":" in host else host
    return tuple(dict.fromkeys((*LOOPBACK_NAMES, shown)))


def require_loopback(host: str, has_keys: bool) -> None:
    """Raise `AbstainError` for an address of the network without keys: whoever reaches it could ask and review."""
    if not has_keys and not is_loopback(host):
        raise AbstainError(
            Code.NO_ACCESS,
            f"--host {host} can be reached from other machines: set ABSTAIN_SERVE_KEYS_FILE (`abstain key` makes a "
            "key), or listen to 127.0.0.1",
        )


def listen(host: str, port: int) -> socket.socket:
    """A socket on `port`, 0 for any. Raises `AbstainError` where it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise AbstainError(
            Code.NO_SERVICE, f"{host} port {port} cannot be used ({error.strerror}): name another one with --port"
        ) from None


class FewLines(logging.Filter):
    """Lets few lines a minute of each message pass, and few messages of each place in the code.

    Callers may cause as many as they like, and hide no other error of the same place with them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._minute = 0
        self._lines: dict[tuple[str, int, int], Counter[int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        minute = int(record.created // 60)
        if minute != self._minute:
            self._minute, self._lines = minute, {}
        lines = self._lines.setdefault((record.pathname, record.lineno, record.levelno), Counter())
        message = hash((str(record.msg), str(record.args), record.exc_info and record.exc_info[0]))
        if message not in lines and len(lines) >= MESSAGES_A_MINUTE:
            message = 0
        lines[message] += 1
        if lines[message] == LINES_A_MINUTE:
            record.msg = f"{record.msg} (more of these are left out for a minute)"
        return lines[message] <= LINES_A_MINUTE


_few_lines = FewLines()


def make_uvicorn_config(app: FastAPI) -> uvicorn.Config:
    """How `app`, one of `make_app`, is served: requests that run at its end are answered."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_few_lines)
    return uvicorn.Config(
        app,
        http=partial(HeaderTimeoutProtocol, opened=OpenConnections(app.state.connections)),  # type: ignore[arg-type]  # it is only called
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # who asks is known by the key, never by a header
        timeout_keep_alive=30,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )


def serve_app(app: FastAPI, listening: socket.socket) -> None:
    """Serve `app` until SIGTERM or SIGINT."""
    with suppress(KeyboardInterrupt, SystemExit):  # which is how it is ended
        uvicorn.Server(make_uvicorn_config(app)).run(sockets=[listening])
