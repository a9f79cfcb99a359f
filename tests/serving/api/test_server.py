"""What a real socket can be sent: the server answers, or ends the connection, and goes on."""

import asyncio
import logging
import socket
import time
import tracemalloc

import httpx
import pytest
from starlette.types import Message

from abstain.core.errors import AbstainError
from abstain.serving.api import middleware
from abstain.serving.api.app import make_app
from abstain.serving.api.server import MAX_LINES_PER_MINUTE, MAX_MESSAGES_PER_MINUTE, LogRateFilter, listen
from abstain.serving.service.keys import ApiKeys
from tests.serving.api.conftest import MadeUpReleases, MakeRelease, MakeService
from tests.serving.clients import ASKED
from tests.serving.status_page.builders import listening

pytestmark = pytest.mark.heavy


def exchange(address: tuple[str, int], content: bytes) -> bytes:
    """What the server answers to raw bytes, up to the end of the connection, or of two seconds."""
    with socket.create_connection(address, timeout=2) as connection:
        connection.sendall(content)
        received = b""
        try:
            while chunk := connection.recv(65536):
                received += chunk
        except TimeoutError:
            pass
    return received


def make_head(length: str, more: str = "") -> bytes:
    return f"POST /v1/gate HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{more}{length}\r\n\r\n".encode()


def test_server_goes_on_after_malformed_requests(
    make_service: MakeService, releases: MadeUpReleases, make_release: MakeRelease
) -> None:
    releases.promote("v1.0.0", make_release())
    chunk = b"1000\r\n" + b" " * 4096 + b"\r\n"
    with listening(make_app(make_service(body_limit=4096), ApiKeys())) as url:
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        assert b" 413 " in exchange(address, make_head("Content-Length: 1000000"))
        assert b" 413 " in exchange(address, make_head("Transfer-Encoding: chunked") + chunk * 3)
        for content in (
            b"GET / HTTP/9.9\r\n\r\n",
            make_head("Content-Length: 2", "X: a\r\n b: c\r\n") + b"{}",
            make_head("Content-Length: 40000", "X-Long: " + "a" * 100_000 + "\r\n"),
            make_head("Content-Length: 3") + b"\xff\xfe{",
            make_head("Content-Length: 9") + b'{"a": 1e9',
            make_head("Content-Length: 4") + b"[[[[",
        ):
            answer = exchange(address, content)
            assert answer == b"" or answer.split()[1][:1] == b"4"
        for before in (b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"):  # also of a second request
            with socket.create_connection(address, timeout=5) as endless:
                endless.sendall(before + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
                with pytest.raises(OSError):
                    for _ in range(1000):
                        endless.sendall(b"X-A: " + b"a" * 4000 + b"\r\n")
                        time.sleep(0.001)
        response = httpx.post(f"{url}/v1/gate", json=ASKED, timeout=30)
    assert response.status_code == 200 and response.json()["decision"] in ("show", "abstain")


def test_listen_names_the_option_of_a_taken_port() -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(AbstainError, match="--port"):
        listen("127.0.0.1", taken.getsockname()[1])


def test_log_rate_filter_hides_no_other_cause() -> None:
    log_filter = LogRateFilter()

    def passes(cause: object, level: int = logging.WARNING) -> bool:
        return log_filter.filter(logging.LogRecord("x", level, "log.py", 1, "decision log: %s", (cause,), None))

    assert sum(passes("locked") for _ in range(100)) == MAX_LINES_PER_MINUTE
    assert passes("disk full") and passes("locked", logging.ERROR)
    assert sum(passes(number) for number in range(10_000)) < MAX_LINES_PER_MINUTE + MAX_MESSAGES_PER_MINUTE, (
        "callers may make up causes"
    )


def test_body_keeps_no_parts_beside_itself() -> None:
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
