"""What a socket of the gate server can be sent: heads, bodies and JSON that no client of ours would send."""

import base64
import gzip
import http.client
import json
import logging
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from abstain.serving.api.server import LOGGERS, MAX_LINES_PER_MINUTE, LogRateFilter
from abstain.serving.service.gate_service import GateService
from abstain.serving.service.keys import ApiKeys, create_key
from tests.attacks.conftest import Count
from tests.serving.clients import ASKED, bearer
from tests.serving.status_page.builders import listening, make_server

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions

HOST = b"Host: localhost\r\nConnection: close\r\n"
GET = b"GET /healthz HTTP/1.1\r\n" + HOST
POST = b"POST /v1/gate HTTP/1.1\r\n" + HOST
HEADS = {
    "a head of 70,000 bytes in one packet": GET + b"X: " + b"a" * 70_000 + b"\r\n\r\n",
    "10,000 headers in one packet": GET + b"".join(b"X%d: a\r\n" % n for n in range(10_000)) + b"\r\n",
    "a path of 70,000 bytes": b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    "length and chunks": POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + GET + b"\r\n",
    "two lengths": POST + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
    "a signed length": POST + b"Content-Length: +4\r\n\r\nabcd",
    "a negative length": POST + b"Content-Length: -1\r\n\r\nabcd",
    "another encoding": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a space before the colon": POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "an endless chunk": POST + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\nabc\r\n",
    "NUL in a header": GET + b"X: a\0b\r\n\r\n",
    "a bare CR in a header": GET + b"X: a\rb\r\n\r\n",
    "a header over two lines": GET + b"X: a\r\n b: c\r\n\r\n",
    "no host": b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n",
    "another host": b"GET /healthz HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
    "a host that begins like ours": b"GET / HTTP/1.1\r\nHost: 127.0.0.1.evil.example\r\nConnection: close\r\n\r\n",
    "CONNECT": b"CONNECT evil:443 HTTP/1.1\r\n" + HOST + b"\r\n",
    "a body beyond the limit that is announced": POST + b"Expect: 100-continue\r\nContent-Length: 99999999\r\n\r\n",
}
TEXT = '{"question": "q", "answer": "a", "contexts": ["c"], %s}'


def describe_states(**changes: Any) -> dict[str, Any]:
    return {"states": {"engine": "vllm", "layers": [2], "prompt_tokens": 1, **changes}}


HUGE_HEADER = base64.b64encode((2**62).to_bytes(8, "little") + b"{}").decode()
JSON_BODIES: dict[str, bytes] = {
    "gzip": gzip.compress(json.dumps(ASKED).encode()),
    "a deep list": b'{"question": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": (TEXT % ('"response": ' + '{"a": ' * 5000 + "1" + "}" * 5000)).encode(),
    **{value: (TEXT % f'"writer_scores": {{"x": {value}}}').encode() for value in ("NaN", "Infinity", "1e999")},
    "no UTF-8": b'{"question": "q \xff", "answer": "a", "contexts": ["c"]}',
    **{of: json.dumps(ASKED).encode(of) for of in ("utf-16", "utf-16-le", "utf-16-be", "utf-32")},
    "a text above the limit": json.dumps({**ASKED, "answer": "x" * 100_001}).encode(),
    "65 answers": json.dumps([ASKED] * 65).encode(),
    "a million numbers": b"[" + b",".join([b"1"] * 1_000_000) + b"]",
    "a million contexts": (TEXT % ('"entitlements": [' + ",".join(['""'] * 1_000_000) + "]")).encode(),
    "an id of 1,001": json.dumps({**ASKED, "interaction_id": "i" * 1001}).encode(),
    "a blank id": json.dumps({**ASKED, "interaction_id": "  "}).encode(),
    "5,000 unknown fields": json.dumps({**ASKED, **{f"k{n}": 1 for n in range(5000)}}).encode(),
    "null": b"null",
    "nothing": b"",
    "states that are no base64": json.dumps(describe_states(safetensors="!!")).encode(),
    "states with a huge header": json.dumps(describe_states(safetensors=HUGE_HEADER)).encode(),
    "layer 1e9": json.dumps(describe_states(layers=[10**9], safetensors="")).encode(),
    "a path of the machine": json.dumps(describe_states(path="/etc/passwd")).encode(),
}
SURROGATE = json.dumps({**ASKED, "question": "\ud800", **describe_states()})
STATES_BODIES = {
    "deep metadata": b'{"__metadata__":{"request":"' + b"[" * 20_000 + b'"}}',
    "a list as request": b'{"__metadata__":{"request":"[]"}}',
    "NaN in metadata": json.dumps({"__metadata__": {"request": '{"writer_scores": {"a": NaN}}'}}).encode(),
    "a surrogate in metadata": json.dumps({"__metadata__": {"request": SURROGATE}}).encode(),
}
"""Headers of files of states."""


@pytest.fixture
def address(service: GateService) -> Iterator[str]:
    with listening(make_server(service, ApiKeys())) as url:
        yield url


def is_alive(address: str) -> bool:
    return httpx.get(f"{address}/healthz", timeout=10).status_code == 200


def post_at_once(address: str, path: str, size: int, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    """The reply to a client that sends the whole body before it reads."""
    with closing(http.client.HTTPConnection(urlsplit(address).netloc, timeout=20)) as connection:
        connection.request("POST", path, b"x" * size, headers or {})
        reply = connection.getresponse()
        return reply.status, reply.read()


def exchange(address: str, content: bytes) -> bytes:
    """What the server answers to raw bytes, up to the end of the connection, or of two seconds."""
    parts = urlsplit(address)
    with socket.create_connection((parts.hostname, parts.port), timeout=2) as connection:
        connection.sendall(content)
        received = b""
        try:
            while chunk := connection.recv(65536):
                received += chunk
        except TimeoutError:
            pass
    return received


def test_server_rejects_malformed_heads(address: str, assert_repelled: Count) -> None:
    replies = {name: exchange(address, content) for name, content in HEADS.items()}
    accepted = [name for name, reply in replies.items() if reply and reply.split()[1][:1] != b"4"]
    accepted += [name for name, reply in replies.items() if reply.count(b"HTTP/1.1 ") > 1]
    assert accepted == [] and is_alive(address)
    allowed = GET + b"X: " + b"a" * 60_000 + b"\r\n\r\n"
    assert exchange(address, allowed).startswith(b"HTTP/1.1 200"), "of a long head that is allowed"
    assert_repelled("malformed heads", len(HEADS), len(HEADS) - len(accepted))


def test_server_answers_malformed_bodies_with_a_problem(address: str, assert_repelled: Count) -> None:
    requests = [("/v1/gate", "application/json", name, content) for name, content in JSON_BODIES.items()]
    files = {name: len(header).to_bytes(8, "little") + header for name, header in STATES_BODIES.items()}
    files["a header without end"] = b"\xff" * 8 + b"{}"
    requests += [("/v1/gate/states", "application/octet-stream", name, content) for name, content in files.items()]
    accepted = []
    with httpx.Client(base_url=address, timeout=20) as client:
        for path, kind, name, content in requests:
            reply = client.post(path, content=content, headers={"Content-Type": kind})
            is_problem = reply.headers["content-type"] == "application/problem+json" and len(reply.content) < 10_000
            assert not name.startswith("utf") or "UTF-8" in reply.json()["detail"]
            if not (is_problem and 400 <= reply.status_code < 500):
                accepted.append(f"{name}: {reply.status_code}")
    assert accepted == [] and is_alive(address)
    assert_repelled("malformed bodies", len(requests), len(requests) - len(accepted))


@pytest.mark.parametrize(("path", "size"), [("/v1/gate", 9 << 20), ("/login", 1 << 20), ("/v1/gate/states", 65 << 20)])
def test_server_replies_to_too_large_a_body_sent_at_once(address: str, path: str, size: int) -> None:
    status, reply = post_at_once(address, path, size)
    assert status == 413 and b"are allowed" in reply


def test_server_replies_to_a_wrong_key_sent_with_its_body(service: GateService) -> None:
    _, line = create_key("ann", ["ask"])
    with listening(make_server(service, ApiKeys(line))) as address:
        status, reply = post_at_once(address, "/v1/gate", 7_000_000, bearer("wrong"))
    assert status == 401 and "Bearer KEY" in json.loads(reply)["detail"]


def test_server_logs_few_lines_of_invalid_requests(
    address: str, caplog: pytest.LogCaptureFixture, assert_repelled: Count
) -> None:
    logger = logging.getLogger(LOGGERS[0])
    filters = [each for each in logger.filters if isinstance(each, LogRateFilter)]
    assert len(filters) == 1, "as `make_uvicorn_config` adds it, once for all servers of a process"
    logger.addHandler(caplog.handler)
    upgrade = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, close\r\nUpgrade: h2c\r\n\r\n"
    for content in (b"\x00\xff\x16\x03", upgrade) * 40:
        exchange(address, content)
    logger.removeHandler(caplog.handler)
    lines = [record for record in caplog.records if record.name == logger.name]
    assert lines
    most = 2 * 3 * MAX_LINES_PER_MINUTE  # of three places in the code, and a minute may begin meanwhile
    assert_repelled("log flooding", 80, 80 if len(lines) <= most else 0)
