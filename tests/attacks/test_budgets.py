"""What one caller may take of the gate server: its base model, memory, connections and threads."""

from __future__ import annotations

import fcntl
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from abstain.config.serve_settings import CallerLimits
from abstain.llm.engine.incremental_decoder import KVCacheDecoder, SharedPromptDecoder
from abstain.serving.api import middleware, server
from abstain.serving.api.app import BYTES_PER_ROW, MAX_FORM_BYTES, VALUES_PER_ROW
from abstain.serving.service.gate_service import GateService
from abstain.serving.service.keys import ApiKeys, create_key
from tests.attacks.conftest import Count
from tests.serving.api.conftest import MadeUpReleases
from tests.serving.api.test_gate_route import ASKED
from tests.serving.status_page.builders import listening, make_server

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions

STEP_S = 0.03
LONG = {"question": "Tell me everything.", "contexts": ["word"], "max_new_tokens": 300, "temperature": 2.0, "seed": 1}
UNKNOWN = {"instruction": " ".join(f"Zorblax{n} of Quintar{n}." for n in range(9))}
GATEWAYS = ("/beta/litellm_basic_guardrail_api", "/gateways/kgateway/response", "/gateways/portkey")
OTHER = "127.0.0.2"
"""Another address of this machine."""


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When each token was read, which takes `STEP_S`."""
    seen: list[float] = []

    def slow(read: Callable[..., Any]) -> Callable[..., Any]:
        def slowly(*given: Any) -> Any:
            seen.append(time.monotonic())
            time.sleep(STEP_S)
            return read(*given)

        return slowly

    monkeypatch.setattr(KVCacheDecoder, "read", slow(KVCacheDecoder.read))
    monkeypatch.setattr(SharedPromptDecoder, "read_final", slow(SharedPromptDecoder.read_final))
    return seen


@pytest.fixture
def make(
    make_service: Callable[..., GateService], releases: MadeUpReleases, make_release: Callable[..., Path]
) -> Callable[..., GateService]:
    releases.promote("v1.0.0", make_release(includes_eos="false"))
    return make_service


@contextmanager
def posted(address: str, path: str, body: dict[str, Any]) -> Iterator[socket.socket]:
    """A request that was sent, whose caller leaves at the end of the block."""
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    )
    with connected(address) as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + content)
        yield connection


def connected(address: str, source: str = "127.0.0.1") -> socket.socket:
    parts = urlsplit(address)
    return socket.create_connection((parts.hostname, parts.port), 20, (source, 0))


def unfinished(address: str, path: str, size: int, source: str = "127.0.0.1", more: str = "") -> socket.socket:
    """A connection with a request whose body lacks its last byte."""
    connection = connected(address, source)
    connection.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{more}Content-Length: {size + 1}\r\n\r\n".encode())
    with suppress(OSError):  # it may be refused meanwhile
        connection.sendall(b"x" * size)
    return connection


def answer_on(connection: socket.socket, wait_s: float = 5) -> bytes:
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


def happens(what: Callable[[], bool], within_s: float = 10) -> bool:
    until = time.monotonic() + within_s
    while not what() and time.monotonic() < until:
        time.sleep(0.01)
    return what()


def decides(address: str, source: str = "127.0.0.1", **changes: Any) -> bool:
    """Whether somebody else is answered, and with a decision."""
    with httpx.Client(transport=httpx.HTTPTransport(local_address=source), timeout=20) as client:
        reply = client.post(f"{address}/v1/gate", json={**ASKED, **changes})
    return reply.status_code == 200 and reply.json()["decision"] in ("show", "abstain")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/answer", LONG),
        ("/v1/answer", {**LONG, "stream": "buffered"}),
        ("/v1/answer", {**LONG, "stream": "optimistic"}),
        ("/v1/familiarity", UNKNOWN),
    ],
    ids=["answer", "buffered", "optimistic", "familiarity"],
)
@pytest.mark.parametrize("seconds", [0.5, 60.0], ids=["time-out", "left"])
def test_long_work_ends_with_its_time_and_its_caller(
    make: Callable[..., GateService],
    steps: list[float],
    path: str,
    body: dict[str, Any],
    seconds: float,
    assert_repelled: Count,
) -> None:
    service = make(answer_timeout_s=seconds)
    with listening(make_server(service, ApiKeys())) as address:
        if path == "/v1/familiarity":
            pytest.importorskip("wordfreq", reason="the extra `familiarity` is not installed")
            httpx.post(address + path, json={"instruction": "What is the fee?"}, timeout=20)
            assert happens(lambda: service._batcher.is_idle), "its packages are loaded"
        with posted(address, path, body) as connection:
            assert happens(lambda: bool(steps))
            if seconds < 1:
                assert answer_on(connection)
                time.sleep(seconds)
        repelled = happens(lambda: service._batcher.is_idle, 1) and decides(address)
    assert_repelled("abandoned work", 1, repelled)


def test_decisions_do_not_wait_for_answers(
    make: Callable[..., GateService], steps: list[float], assert_repelled: Count
) -> None:
    service = make()
    with listening(make_server(service, ApiKeys())) as address, ExitStack() as stack:
        for seed in range(3):  # of different kinds, so that two of them wait
            stack.enter_context(posted(address, "/v1/answer", {**LONG, "seed": seed}))
        assert happens(lambda: bool(steps))
        began = time.monotonic()
        repelled = sum(decides(address) and time.monotonic() - began < 5 for _ in range(3))
        assert not service._batcher.is_idle, "the answers are still being written"
    assert_repelled("long answers before decisions", 3, repelled)


def test_one_caller_does_not_fill_the_queue(
    make: Callable[..., GateService], steps: list[float], assert_repelled: Count
) -> None:
    service = make(max_queued=8, caller=CallerLimits(max_queued=4))
    with listening(make_server(service, ApiKeys())) as address, ExitStack() as stack:
        sent = [stack.enter_context(posted(address, "/v1/answer", {**LONG, "seed": seed})) for seed in range(12)]
        refused = sum(b" 429 " in answer_on(connection, 0.3) for connection in sent)
        assert refused >= 12 - 1 - 4, "one runs, four wait"
        repelled = decides(address, OTHER)
    assert_repelled("queue filled by one caller", 1, repelled)


def test_what_needs_no_key_takes_no_memory(make: Callable[..., GateService], assert_repelled: Count) -> None:
    service = make(body_limit=8 * 1024 * 1024)
    _, line = create_key("ann", ["ask"])
    with listening(make_server(service, ApiKeys(line))) as address, ExitStack() as stack:
        repelled, tried = 0, [("/nothing", b" 404 "), ("/login", b" 413 "), ("/try", b" 413 "), ("/v1/gate", b" 401 ")]
        for path, status in tried:
            connection = stack.enter_context(unfinished(address, path, MAX_FORM_BYTES + 1))
            repelled += status in answer_on(connection)
        chunked = stack.enter_context(connected(address))
        chunk = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
        chunked.sendall(b"POST /login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk * 5)
        repelled += b" 413 " in answer_on(chunked)
    assert_repelled("unfinished bodies without a key", len(tried) + 1, repelled)


def test_all_bodies_have_one_budget(
    make: Callable[..., GateService], monkeypatch: pytest.MonkeyPatch, assert_repelled: Count
) -> None:
    monkeypatch.setattr(middleware, "MAX_TOTAL_BODY_BYTES", 400_000)
    service = make(caller=CallerLimits(max_body_bytes=250_000))
    with listening(make_server(service, ApiKeys())) as address:
        with ExitStack() as stack:
            held = [stack.enter_context(unfinished(address, "/v1/gate", 100_000)) for _ in range(2)]
            refused = answer_on(stack.enter_context(unfinished(address, "/v1/gate", 100_000)))
            repelled = b" 429 " in refused and b"retry-after" in refused
            repelled += decides(address, OTHER)
            held.append(stack.enter_context(unfinished(address, "/v1/gate", 150_000, OTHER)))
            refused = answer_on(stack.enter_context(unfinished(address, "/v1/gate", 100_000, "127.0.0.3")))
            repelled += b" 503 " in refused and b"retry-after" in refused
            assert not any(answer_on(connection, 0.1) for connection in held), "those before go on"
        time.sleep(0.2)
        repelled += decides(address)
    assert_repelled("bodies beyond their memory", 4, repelled)


def test_one_address_does_not_take_all_connections(
    make: Callable[..., GateService], monkeypatch: pytest.MonkeyPatch, assert_repelled: Count
) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 24)
    service = make(caller=CallerLimits(max_connections=16))
    with listening(make_server(service, ApiKeys())) as address, ExitStack() as stack:
        idle = [stack.enter_context(connected(address)) for _ in range(40)]
        repelled = decides(address, OTHER)
        assert sum(map(is_closed, idle)) == 24
        for _ in range(20):
            stack.enter_context(connected(address, OTHER))
        repelled += decides(address, "127.0.0.3")
    assert_repelled("connections of one or two addresses", 2, repelled)


def test_slow_heads_and_bodies_are_ended(
    make: Callable[..., GateService], monkeypatch: pytest.MonkeyPatch, assert_repelled: Count
) -> None:
    monkeypatch.setattr(server, "HEADER_TIMEOUT_S", 0.5)
    monkeypatch.setattr(middleware, "BODY_TIMEOUT_S", 0.5)
    with listening(make_server(make(), ApiKeys())) as address, ExitStack() as stack:
        heads = [stack.enter_context(connected(address)) for _ in range(40)]
        bodies = [stack.enter_context(unfinished(address, "/v1/gate", 1)) for _ in range(40)]
        for connection in heads:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127")
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            for connection in heads:
                with suppress(OSError):
                    connection.sendall(b"a")
            time.sleep(0.1)
        repelled = sum(map(is_closed, heads))
        repelled += sum(b" 408 " in answer_on(connection, 0.1) for connection in bodies)
        assert decides(address)
    assert_repelled("slow heads and bodies", len(heads + bodies), repelled)


def test_files_that_are_locked_hold_up_nobody(
    make: Callable[..., GateService], tmp_path: Path, assert_repelled: Count
) -> None:
    folder = tmp_path / "states"
    folder.mkdir()
    (folder / "held.safetensors").write_bytes(b"x")
    service = make(states_folder=folder, timeout_s=2)
    described = {"engine": "vllm", "layers": [2], "prompt_tokens": 1, "path": "held.safetensors"}
    with (
        (folder / "held.safetensors.lock").open("w") as lock,
        listening(make_server(service, ApiKeys())) as address,
        ThreadPoolExecutor(40) as pool,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        asked = [
            pool.submit(httpx.post, f"{address}/v1/gate", json={"states": described}, timeout=20) for _ in range(40)
        ]
        time.sleep(0.5)
        began = time.monotonic()
        repelled = decides(address, call_id="c-1") and time.monotonic() - began < 1
        assert {one.result().json()["decision"] for one in asked} == {"unavailable"}
        fcntl.flock(lock, fcntl.LOCK_UN)
    assert_repelled("locked files of states", 1, repelled)
    assert threading.active_count() < 100


@pytest.mark.parametrize("name", ["response", "zz"])
def test_json_of_many_tiny_values_is_not_parsed(
    make: Callable[..., GateService], name: str, assert_repelled: Count
) -> None:
    content = json.dumps({name: {"x": [[]] * (middleware.MAX_VALUES // 2)}}).encode()
    kind = {"Content-Type": "application/json"}
    service = make(caller=CallerLimits(rows_per_minute=100_000))
    with listening(make_server(service, ApiKeys())) as address:
        paths = ["/v1/gate", "/v1/contexts", *GATEWAYS]
        refused = [httpx.post(address + path, content=content, headers=kind, timeout=20) for path in paths]
        repelled = sum(one.status_code == 413 and " values, " in one.json()["detail"] for one in refused)
    assert_repelled("bodies of many tiny values", len(paths), repelled)


@pytest.mark.parametrize("sent", ["x" * 12 * BYTES_PER_ROW, [1] * 12 * VALUES_PER_ROW], ids=["bytes", "values"])
def test_large_bodies_count_as_rows_also_those_refused(
    make: Callable[..., GateService], sent: object, assert_repelled: Count
) -> None:
    service = make(caller=CallerLimits(rows_per_minute=20))
    content = json.dumps({"zz": sent}).encode()
    kind = {"Content-Type": "application/json"}
    with listening(make_server(service, ApiKeys())) as address:
        replies = [httpx.post(f"{address}/v1/gate", content=content, headers=kind) for _ in range(3)]
        states = [httpx.post(f"{address}/v1/gate/states", content=content) for _ in range(3)]
    assert [one.status_code for one in replies] == [422, 429, 429] and "retry-after" in replies[1].headers
    assert {one.status_code for one in states} == {422}, "states are no JSON"
    assert_repelled("successive large bodies", 2, 2)
