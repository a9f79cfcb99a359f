"""Run the app: addresses it may listen on, its end, and limits on idle connections."""

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

HEADER_TIMEOUT_S = 10.0
"""A connection without a whole request head within this time is closed."""
MAX_HEADER_BYTES = 64 * 1024
"""A connection with a longer request head is closed."""
MAX_CONNECTIONS = 1024
"""Maximum number of open connections."""
SHUTDOWN_GRACE_S = 20
"""Maximum time for requests that run when the server ends."""
MAX_LINES_PER_MINUTE = 10
"""Maximum number of log lines of one message."""
MAX_MESSAGES_PER_MINUTE = 20
"""Messages of one place in the code that are counted separately; further ones are counted as one."""
LOGGERS = ("uvicorn.error", "abstain.serve")
"""Loggers of messages that callers can cause."""
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


class HeaderTimeoutProtocol(HttpToolsProtocol):
    """uvicorn's faster HTTP protocol with a limit on request heads that do not arrive or do not end.

    uvicorn limits how long a connection may be idle after a response, but not how long its first line may take, nor, in
    this protocol, how long its headers may be, nor how many connections an address may have.
    """

    _head: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _awaits_head = True

    def __init__(self, *args: Any, connections: OpenConnections, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._connections = connections

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if (excess := self._connections.add(self)) is not None:
            excess.transport.abort()
        if excess is not self:
            self._await_head()

    @property
    def address(self) -> str:
        """Address of the client."""
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
        if self._head_bytes > MAX_HEADER_BYTES:
            self.transport.close()
        elif self._head is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        # A head that came in one packet is parsed before its bytes are counted; an error here is status 400.
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEADER_BYTES:
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
        self._connections.remove(self)
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._head = self.loop.call_later(HEADER_TIMEOUT_S, self.transport.close)

    def _forget_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None


class OpenConnections:
    """The open connections of a server, by address.

    If the server has as many as it may have, the address with the most connections gives one up for a new one: a caller
    with few is always admitted.

    Args:
        max_per_address: Maximum number of connections of one address.
    """

    def __init__(self, max_per_address: int) -> None:
        self._max_per_address = max_per_address
        self._by_address: dict[str, dict[HeaderTimeoutProtocol, None]] = {}

    def add(self, connection: HeaderTimeoutProtocol) -> HeaderTimeoutProtocol | None:
        """Add a connection.

        Args:
            connection: The new connection.

        Returns:
            The connection to close for it, which is `connection` itself if its address has too many; None if there is
            room.
        """
        same_address = self._by_address.setdefault(connection.address, {})
        same_address[connection] = None
        if len(same_address) > self._max_per_address:
            connection.logger.warning(
                "%s has more than %d connections, which is all that one address may: raise "
                "ABSTAIN_SERVE_CALLER__MAX_CONNECTIONS for a proxy",
                connection.address,
                self._max_per_address,
            )
            excess = connection
        elif sum(map(len, self._by_address.values())) > MAX_CONNECTIONS:
            largest = max(self._by_address.values(), key=len)
            excess = next((candidate for candidate in largest if not candidate.is_busy), next(iter(largest)))
        else:
            return None
        self.remove(excess)
        return excess

    def remove(self, connection: HeaderTimeoutProtocol) -> None:
        """Remove a connection."""
        same_address = self._by_address.get(connection.address, {})
        same_address.pop(connection, None)
        if not same_address:
            self._by_address.pop(connection.address, None)


def is_loopback(host: str) -> bool:
    """Return whether only programs on this machine reach `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def get_allowed_hosts(host: str) -> tuple[str, ...]:
    """Return the host names of a server without keys that listens on `host`."""
    url_host = f"[{host}]" if ":" in host else host
    return tuple(dict.fromkeys((*LOOPBACK_NAMES, url_host)))


def require_loopback(host: str, has_keys: bool) -> None:
    """Check that a server without keys does not listen on the network: everybody who reaches it could ask and review.

    Args:
        host: Address to listen on.
        has_keys: Whether the server has keys.

    Raises:
        AbstainError: The server has no keys and `host` is not a loopback address.
    """
    if not has_keys and not is_loopback(host):
        raise AbstainError(
            Code.NO_ACCESS,
            f"--host {host} can be reached from other machines: set ABSTAIN_SERVE_KEYS_FILE (`abstain key` makes a "
            "key), or listen to 127.0.0.1",
        )


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket.

    Args:
        host: Address to listen on.
        port: Port; 0 for any.

    Returns:
        The socket.

    Raises:
        AbstainError: The port cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise AbstainError(
            Code.NO_SERVICE, f"{host} port {port} cannot be used ({error.strerror}): name another one with --port"
        ) from None


class LogRateFilter(logging.Filter):
    """Limits the log lines per minute of each message, and the messages of each place in the code.

    Callers can cause any number of messages, and must not hide another error of the same place with them.
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
        if message not in lines and len(lines) >= MAX_MESSAGES_PER_MINUTE:
            message = 0
        lines[message] += 1
        if lines[message] == MAX_LINES_PER_MINUTE:
            record.msg = f"{record.msg} (more of these are left out for a minute)"
        return lines[message] <= MAX_LINES_PER_MINUTE


_log_rate_filter = LogRateFilter()


def make_uvicorn_config(app: FastAPI) -> uvicorn.Config:
    """Return the server configuration for an app of `make_app`; requests that run at its end are answered."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_log_rate_filter)
    return uvicorn.Config(
        app,
        http=partial(HeaderTimeoutProtocol, connections=OpenConnections(app.state.max_connections)),  # type: ignore[arg-type]  # it is only called
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # callers are known by their key, never by a header
        timeout_keep_alive=30,
        timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
    )


def serve_app(app: FastAPI, listener: socket.socket) -> None:
    """Serve an app until SIGTERM or SIGINT.

    Args:
        app: The app.
        listener: Listening socket.
    """
    with suppress(KeyboardInterrupt, SystemExit):  # which is how it is ended
        uvicorn.Server(make_uvicorn_config(app)).run(sockets=[listener])
