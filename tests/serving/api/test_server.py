"""What a real socket can be sent: the server answers, or ends the connection, and goes on."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest
import uvicorn
from starlette.types import Message

from abstain.core.errors import AbstainError
from abstain.serving.api import middleware, server
from abstain.serving.api.app import make_app
from abstain.serving.api.server import (
    LOOPBACK_NAMES,
    MAX_LINES_PER_MINUTE,
    MAX_MESSAGES_PER_MINUTE,
    LogRateFilter,
    listen,
    make_uvicorn_config,
)
from abstain.serving.service.gate_service import GateService
from abstain.serving.service.keys import ApiKeys
from tests.serving.api.conftest import MadeUpReleases
from tests.serving.api.test_gate_route import ASKED

pytestmark = pytest.mark.heavy


@contextmanager
def running(service: GateService) -> Iterator[tuple[str, int]]:
    """The service on a socket of this machine: host and port."""
    with listen("127.0.0.1", 0) as listening:
        own = uvicorn.Server(make_uvicorn_config(make_app(service, ApiKeys(), LOOPBACK_NAMES)))
        thread = threading.Thread(target=own.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()
        finally:
            own.should_exit = True
            thread.join()


@pytest.fixture
def small(
    make_service: Callable[..., GateService],
    releases: MadeUpReleases,
    make_release: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
) -> GateService:
    monkeypatch.setattr(middleware, "BODY_TIMEOUT_S", 0.5)
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 16)
    releases.promote("v1.0.0", make_release())  # type: ignore[arg-type]
    return make_service(body_limit=4096)


def sent(address: tuple[str, int], content: bytes) -> bytes:
    """What the server answers to raw bytes, up to the end of the connection, or of two seconds."""
    with socket.create_connection(address, timeout=2) as connection:
        connection.sendall(content)
        found = b""
        try:
            while chunk := connection.recv(65536):
                found += chunk
        except TimeoutError:
            pass
    return found


def head(length: str, more: str = "") -> bytes:
    return f"POST /v1/gate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{more}{length}\r\n\r\n".encode()


def still_decides(address: tuple[str, int]) -> bool:
    response = httpx.post(f"http://{address[0]}:{address[1]}/v1/gate", json=ASKED, timeout=30)
    return response.status_code == 200 and response.json()["decision"] in ("show", "abstain")


def test_a_request_that_never_comes_costs_a_connection_for_a_while_only(
    small: GateService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEADER_TIMEOUT_S", 0.3)
    with running(small) as address:
        idle = [socket.create_connection(address, timeout=5) for _ in range(12)]
        for at, one in enumerate(idle):
            one.sendall(b"POST /v1/gate HTTP/1.1\r\nHost: local"[: 3 * at])
        assert still_decides(address)
        for one in idle:
            assert one.recv(100) == b"", "closed by the server"
            one.close()
        dripping = socket.create_connection(address, timeout=5)
        dripping.sendall(b"GET /healthz HT")
        began = time.monotonic()
        with pytest.raises(OSError):
            while time.monotonic() - began < 5:
                dripping.sendall(b"x")
                time.sleep(0.1)
        assert still_decides(address)


def test_headers_without_an_end_close_the_connection(small: GateService) -> None:
    line = b"X-A: " + b"a" * 4000 + b"\r\n"
    with running(small) as address:
        for before in (b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"):  # also of a second request
            with socket.create_connection(address, timeout=5) as endless:
                endless.sendall(before + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
                with pytest.raises(OSError):
                    for _ in range(1000):
                        endless.sendall(line)
                        time.sleep(0.001)
        assert still_decides(address)


def test_a_body_that_does_not_arrive_is_given_up(small: GateService) -> None:
    with running(small) as address:
        assert b" 408 " in sent(address, head("Content-Length: 100") + b'{"question"')
        assert still_decides(address)


def test_too_long_a_body_is_refused_before_it_is_read(small: GateService) -> None:
    with running(small) as address:
        assert b" 413 " in sent(address, head("Content-Length: 1000000"))
        chunk = b"1000\r\n" + b" " * 4096 + b"\r\n"
        assert b" 413 " in sent(address, head("Transfer-Encoding: chunked") + chunk * 3)
        assert still_decides(address)


@pytest.mark.parametrize(
    "content",
    [
        b"\x00\xff\x16\x03\x01",
        b"GET / HTTP/9.9\r\n\r\n",
        head("Content-Length: -1"),
        head("Content-Length: 2\r\nContent-Length: 4") + b"{}{}",
        head("Content-Length: 2", "X: a\r\n b: c\r\n") + b"{}",
        head("Content-Length: 40000", "X-Long: " + "a" * 100_000 + "\r\n"),
        head("Content-Length: 3") + b"\xff\xfe{",
        head("Content-Length: 9") + b'{"a": 1e9',
        head("Content-Length: 4") + b"[[[[",
    ],
)
def test_malformed_requests_are_answered_or_ended(small: GateService, content: bytes) -> None:
    with running(small) as address:
        answer = sent(address, content)
        assert answer == b"" or answer.split()[1][:1] == b"4"
        assert still_decides(address)


def test_deep_json_is_a_problem(small: GateService) -> None:
    deep = b'{"a":' * 500 + b"1" + b"}" * 500
    with running(small) as address:
        assert b" 422 " in sent(address, head(f"Content-Length: {len(deep)}", "Connection: close\r\n") + deep)
        assert still_decides(address)


def test_what_is_sent_does_not_come_back_as_headers(small: GateService) -> None:
    asked = {**ASKED, "interaction_id": "i\r\nSet-Cookie: x=1", "call_id": "\u2028"}
    with running(small) as (host, port):
        response = httpx.post(f"http://{host}:{port}/v1/gate", json=asked, headers={"traceparent": "00-x\ty"})
        assert "set-cookie" not in response.headers and response.status_code in (200, 422)
        assert "traceparent" not in response.headers
        assert json.loads(response.text)


def test_a_port_that_is_taken_is_named(small: GateService) -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(AbstainError, match="--port"):
        listen("127.0.0.1", taken.getsockname()[1])


def test_many_lines_of_one_cause_hide_no_other_of_its_place() -> None:
    few = LogRateFilter()

    def passes(cause: object, level: int = logging.WARNING) -> bool:
        return few.filter(logging.LogRecord("x", level, "log.py", 1, "decision log: %s", (cause,), None))

    assert sum(passes("locked") for _ in range(100)) == MAX_LINES_PER_MINUTE
    assert passes("disk full") and passes("locked", logging.ERROR)
    assert sum(passes(at) for at in range(10_000)) < MAX_LINES_PER_MINUTE + MAX_MESSAGES_PER_MINUTE, (
        "callers may make up causes"
    )


def test_parts_of_a_body_are_not_kept_beside_it() -> None:
    async def receive() -> Message:
        return {"type": "http.request", "body": bytes(1_000_000), "more_body": True}

    body = middleware._Body(receive, "ann")
    tracemalloc.start()
    for _ in range(20):
        asyncio.run(body.receive())
    assert len(body.content) == 20_000_000
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 30_000_000
