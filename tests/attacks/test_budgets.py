"""What one caller may take of the gate server: its base model, memory, connections and threads."""

import asyncio
import fcntl
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from abstain.config.serve_settings import CallerLimits
from abstain.llm.engine.incremental_decoder import KVCacheDecoder, SharedPromptDecoder
from abstain.llm.familiarity.concepts import recognize_concepts
from abstain.llm.familiarity.familiarity import SelfFamiliarity
from abstain.serving.api import middleware
from abstain.serving.api.app import BYTES_PER_ROW, MAX_FORM_BYTES, VALUES_PER_ROW
from abstain.serving.service.gate_service import GateService
from abstain.serving.service.keys import ApiKeys, create_key
from benchmarks import hostile
from tests.attacks.conftest import Count
from tests.serving.clients import ASKED
from tests.serving.conftest import MakeService, Promote
from tests.serving.status_page.builders import listening, make_server

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions

STEP_S = 0.03
LONG = {"question": "Tell me everything.", "contexts": ["word"], "max_new_tokens": 300, "temperature": 2.0, "seed": 1}
UNKNOWN = {**LONG, "question": " ".join(f"Zorblax{n} of Quintar{n}." for n in range(9)), "max_new_tokens": 6}
"""Not familiar: the check takes long, not the answer."""
GATEWAYS = ("/beta/litellm_basic_guardrail_api", "/gateways/kgateway/response", "/gateways/portkey")
JSON = {"Content-Type": "application/json"}
HOME, OTHER, THIRD = "127.0.0.1", "127.0.0.2", "127.0.0.3"
"""Addresses of this machine."""


@dataclass(frozen=True)
class Server:
    """A server on this machine; `stack` closes the connections to it."""

    service: GateService
    address: str
    stack: ExitStack

    def connect(self, source: str = HOME) -> socket.socket:
        parts = urlsplit(self.address)
        return self.stack.enter_context(socket.create_connection((parts.hostname, parts.port), 20, (source, 0)))

    def send(self, path: str, content: bytes, source: str = HOME, missing: int = 0) -> socket.socket:
        """A connection with a request whose body lacks so many of the bytes that its head announces."""
        connection, length = self.connect(source), len(content) + missing
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode())
        with suppress(OSError):  # it may be rejected meanwhile
            connection.sendall(content)
        return connection

    def send_unfinished(self, path: str, size: int, source: str = HOME) -> socket.socket:
        return self.send(path, b"x" * size, source, missing=1)

    def post(self, path: str, **content: Any) -> httpx.Response:
        return httpx.post(self.address + path, timeout=20, **content)

    def decides(self, source: str = HOME, **changes: Any) -> bool:
        """Whether a caller at this address is answered, and with a decision."""
        with httpx.Client(transport=httpx.HTTPTransport(local_address=source), timeout=20) as client:
            reply = client.post(f"{self.address}/v1/gate", json={**ASKED, **changes})
        return reply.status_code == 200 and reply.json()["decision"] in ("show", "abstain")


Serve = Callable[..., Server]


@pytest.fixture
def serve(make_service: MakeService, promote: Promote) -> Iterator[Serve]:
    promote(includes_eos="false")
    with ExitStack() as servers, ExitStack() as connections:

        def start(keys: ApiKeys | None = None, **settings: Any) -> Server:
            service = make_service(**settings)
            address = servers.enter_context(listening(make_server(service, keys or ApiKeys())))
            return Server(service, address, connections)

        yield start


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When each token was read, which takes `STEP_S`."""
    times: list[float] = []

    def slow_down(read: Callable[..., Any]) -> Callable[..., Any]:
        def read_slowly(*args: Any) -> Any:
            times.append(time.monotonic())
            time.sleep(STEP_S)
            return read(*args)

        return read_slowly

    monkeypatch.setattr(KVCacheDecoder, "read", slow_down(KVCacheDecoder.read))
    monkeypatch.setattr(SharedPromptDecoder, "read_final", slow_down(SharedPromptDecoder.read_final))
    return times


def read_reply(connection: socket.socket, wait_s: float = 5) -> bytes:
    """The first bytes that come; none where the connection is closed, or nothing comes."""
    connection.settimeout(wait_s)
    try:
        return connection.recv(1000)
    except OSError:
        return b""


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(0.1)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def happens(condition: Callable[[], bool], within_s: float = 10) -> bool:
    until = time.monotonic() + within_s
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return condition()


@pytest.mark.parametrize("seconds", [0.3, 60.0], ids=["time-out", "left"])
def test_long_work_ends_with_its_time_and_its_caller(
    serve: Serve, steps: list[float], seconds: float, monkeypatch: pytest.MonkeyPatch, assert_repelled: Count
) -> None:
    """Also that of the familiarity check, before the answer."""
    pytest.importorskip("wordfreq", reason="the extra `familiarity` is not installed")
    monkeypatch.setattr(SelfFamiliarity, "get_cached_threshold", lambda self: 0.5)
    server, repelled = serve(answer_timeout_s=seconds, familiarity="withhold"), 0
    recognize_concepts(["Who is that?"])  # loads its packages
    work = [("/v1/answer", {**LONG, "stream": stream}) for stream in (None, "buffered", "optimistic")]
    work += [("/v1/answer", UNKNOWN)]
    for path, body in work:
        steps.clear()
        for _ in range(10):  # on a busy machine the time may be over before the work begins
            connection = server.send(path, json.dumps(body).encode())
            if happens(lambda: bool(steps), 1):
                break
            connection.close()
        assert steps
        if seconds < 1:
            assert read_reply(connection)
            time.sleep(seconds)
        connection.close()
        repelled += happens(lambda: server.service._batcher.is_idle, 1) and server.decides()
    assert_repelled("abandoned work", len(work), repelled)


def test_body_without_a_key_takes_no_memory(serve: Serve, assert_repelled: Count) -> None:
    server = serve(ApiKeys(create_key("ann", ["ask"])[1]), body_limit=8 * 1024 * 1024)
    tried = [("/nothing", b" 404 "), ("/login", b" 413 "), ("/try", b" 413 "), ("/v1/gate", b" 401 ")]
    repelled = sum(status in read_reply(server.send_unfinished(path, MAX_FORM_BYTES + 1)) for path, status in tried)
    chunked = server.connect()
    chunk = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
    chunked.sendall(b"POST /login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk * 5)
    repelled += b" 413 " in read_reply(chunked)
    assert_repelled("unfinished bodies without a key", len(tried) + 1, repelled)


def test_all_bodies_have_one_budget(serve: Serve, monkeypatch: pytest.MonkeyPatch, assert_repelled: Count) -> None:
    monkeypatch.setattr(middleware, "MAX_TOTAL_BODY_BYTES", 400_000)
    server = serve(caller=CallerLimits(max_body_bytes=250_000))
    held = [server.send_unfinished("/v1/gate", 100_000) for _ in range(2)]
    rejected = read_reply(server.send_unfinished("/v1/gate", 100_000))
    repelled = b" 429 " in rejected and b"retry-after" in rejected
    repelled += server.decides(OTHER)
    held.append(server.send_unfinished("/v1/gate", 150_000, OTHER))
    rejected = read_reply(server.send_unfinished("/v1/gate", 100_000, THIRD))
    repelled += b" 503 " in rejected and b"retry-after" in rejected
    assert not any(read_reply(connection, 0.1) for connection in held), "those before go on"
    server.stack.close()
    time.sleep(0.2)
    repelled += server.decides()
    assert_repelled("bodies beyond their memory", 4, repelled)


def test_connections_are_not_taken_by_one_address(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, assert_repelled: Count
) -> None:
    monkeypatch.setattr("abstain.serving.api.server.MAX_CONNECTIONS", 24)
    server = serve(caller=CallerLimits(max_connections=16))
    idle = [server.connect() for _ in range(40)]
    repelled = server.decides(OTHER)
    assert sum(map(is_closed, idle)) == 24
    for _ in range(20):
        server.connect(OTHER)
    repelled += server.decides(THIRD)
    assert_repelled("connections of one or two addresses", 2, repelled)


def test_slow_heads_and_bodies_are_ended(serve: Serve, monkeypatch: pytest.MonkeyPatch, assert_repelled: Count) -> None:
    monkeypatch.setattr("abstain.serving.api.server.HEADER_TIMEOUT_S", 0.5)
    monkeypatch.setattr(middleware, "BODY_TIMEOUT_S", 0.5)
    server = serve()
    heads = [server.connect() for _ in range(40)]
    bodies = [server.send_unfinished("/v1/gate", 1) for _ in range(40)]
    silent, dripping = heads[:20], heads[20:]
    for number, connection in enumerate(silent):
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127"[:number])
    for connection in dripping:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127")
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        for connection in dripping:
            with suppress(OSError):
                connection.sendall(b"a")
        time.sleep(0.1)
    repelled = sum(map(is_closed, heads))
    repelled += sum(b" 408 " in read_reply(connection, 0.1) for connection in bodies)
    assert server.decides()
    assert_repelled("slow heads and bodies", len(heads + bodies), repelled)


def test_locked_files_of_states_delay_no_decision(serve: Serve, tmp_path: Path, assert_repelled: Count) -> None:
    folder = tmp_path / "states"
    folder.mkdir()
    (folder / "held.safetensors").write_bytes(b"x")
    server = serve(states_folder=folder, timeout_s=2)
    states = {"engine": "vllm", "layers": [2], "prompt_tokens": 1, "path": "held.safetensors"}
    with (folder / "held.safetensors.lock").open("w") as lock, ThreadPoolExecutor(40) as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        asked = [pool.submit(server.post, "/v1/gate", json={"states": states}) for _ in range(40)]
        time.sleep(0.5)
        began = time.monotonic()
        repelled = server.decides(call_id="c-1") and time.monotonic() - began < 1
        assert {reply.result().json()["decision"] for reply in asked} == {"unavailable"}
        fcntl.flock(lock, fcntl.LOCK_UN)
    assert_repelled("locked files of states", 1, repelled)
    assert threading.active_count() < 100


def test_json_of_many_tiny_values_is_not_parsed(serve: Serve, assert_repelled: Count) -> None:
    server = serve(caller=CallerLimits(rows_per_minute=100_000))
    replies = []
    for name in ("response", "zz"):
        body = json.dumps({name: {"x": [[]] * (middleware.MAX_VALUES // 2)}}).encode()
        replies += [server.post(path, content=body, headers=JSON) for path in ("/v1/gate", "/v1/contexts", *GATEWAYS)]
    repelled = sum(reply.status_code == 413 and " values, " in reply.json()["detail"] for reply in replies)
    assert_repelled("bodies of many tiny values", len(replies), repelled)


@pytest.mark.parametrize("sent", ["x" * 12 * BYTES_PER_ROW, [1] * 12 * VALUES_PER_ROW], ids=["bytes", "values"])
def test_large_rejected_bodies_count_as_rows(serve: Serve, sent: object, assert_repelled: Count) -> None:
    server = serve(caller=CallerLimits(rows_per_minute=20))
    content = json.dumps({"zz": sent}).encode()
    replies = [server.post("/v1/gate", content=content, headers=JSON) for _ in range(3)]
    states = [server.post("/v1/gate/states", content=content) for _ in range(3)]
    assert [reply.status_code for reply in replies] == [422, 429, 429] and "retry-after" in replies[1].headers
    assert {reply.status_code for reply in states} == {422}, "states are no JSON"
    assert_repelled("successive large bodies", 2, 2)


def test_hostile_attack_makes_every_attack(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark of docs/security.md."""
    monkeypatch.setattr(hostile, "HOSTILE", len(hostile.KINDS))
    monkeypatch.setattr(hostile, "RETRY_S", 0.2)
    monkeypatch.setattr(hostile, "LONG", {**hostile.LONG, "contexts": ["word"], "max_new_tokens": 300})
    server = serve()

    async def attack() -> None:
        await asyncio.wait_for(hostile.attack(server.address, hostile.KINDS), 2)

    with pytest.raises(TimeoutError):
        asyncio.run(attack())
    counted = server.service.metrics.render().decode()
    assert 'abstain_feedback_total{kind="thumb",outcome="recorded"}' in counted and 'source="answer"' in counted
