"""Gate servers whose release shows one answer and withholds another, and the requests that gateways send."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from abstain.config.serve_settings import ServeSettings
from abstain.config.settings import Settings
from abstain.core import paths
from abstain.core.contracts import Context
from abstain.data.decision_log import queries
from abstain.data.decision_log.log import DecisionLog
from abstain.serving.api.app import make_app
from abstain.serving.gate import Gate
from abstain.serving.service.gate_service import GateService, RetrieveChunks
from abstain.serving.service.keys import ApiKeys
from abstain.serving.service.version_follower import VersionFollower
from tests.serving.api.conftest import MadeUpReleases
from tests.serving.builders import GUARANTEE, release

QUESTION = "How long may an account be overdrawn?"
CONTEXTS = ["An account may be overdrawn for thirty days.", "Fees are charged monthly."]
ANSWERS = ("Thirty days.", "For ever, and nobody will ask you anything about it at all.")
WITHHELD = "Ask a colleague."


@pytest.fixture
def gate_folder(tmp_path: Path, model: Path, settings: Settings) -> Path:
    """A release that decides differently about the two `ANSWERS`."""
    folder = tmp_path / "bundle"
    release(folder, model, settings, guarantee=GUARANTEE)
    gate = Gate.open(folder, settings)
    found = [gate.decide(QUESTION, CONTEXTS, answer).confidence for answer in ANSWERS]
    assert None not in found and found[0] != found[1]
    release(folder, model, settings, guarantee=GUARANTEE, threshold=repr((found[0] + found[1]) / 2))
    return folder


@pytest.fixture
def answers(gate_folder: Path, settings: Settings) -> tuple[str, str]:
    """The answer that is shown, and the one that is withheld."""
    gate = Gate.open(gate_folder, settings)
    shown, withheld = sorted(ANSWERS, key=lambda answer: not gate.decide(QUESTION, CONTEXTS, answer).show)
    return shown, withheld


@pytest.fixture
def open_log(tmp_path: Path) -> Iterator[Callable[[], DecisionLog]]:
    """Open the one log again, as another process would."""
    opened = []

    def make() -> DecisionLog:
        url = f"sqlite:///{tmp_path / 'log.sqlite'}"
        opened.append(DecisionLog.open(url, redact=lambda row: row, pseudonym=lambda name: f"u-{name}", key=b"digests"))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.fixture
def make_worker(
    gate_folder: Path, settings: Settings, open_log: Callable[[], DecisionLog]
) -> Callable[..., GateService]:
    """A worker of the server, with these serve settings; all workers share the log."""

    def make(retrieve: RetrieveChunks | None = None, **changes: Any) -> GateService:
        serving = ServeSettings(**{"withheld_text": WITHHELD, **changes})
        releases = MadeUpReleases()
        releases.promote("v1.0.0", gate_folder / paths.RELEASED_ONNX.name)
        follower = VersionFollower(releases, lambda folder: Gate.open(folder, settings, serving.on_unavailable))
        service = GateService(follower, open_log(), serving, retrieve)
        follower.refresh()
        return service

    return make


@pytest.fixture
def connect() -> Iterator[Callable[..., TestClient]]:
    """A client of a worker."""
    opened = []

    def make(worker: GateService, keys: ApiKeys | None = None) -> TestClient:
        opened.append(TestClient(make_app(worker, keys or ApiKeys()), "http://127.0.0.1"))
        opened[-1].__enter__()
        return opened[-1]

    yield make
    for one in opened:
        one.__exit__(None, None, None)


@pytest.fixture
def recorded() -> Callable[..., dict[str, Any]]:
    """A recorded request, with some of its fields replaced."""

    def read(name: str, **changes: Any) -> dict[str, Any]:
        content = json.loads((Path(__file__).parent / "recorded" / f"{name}.json").read_text())
        return {**content, **changes}

    return read


def registered(call_id: str, **changes: Any) -> Mapping[str, Any]:
    """The body of `/v1/contexts`."""
    return {"call_id": call_id, "contexts": CONTEXTS, **changes}


def through(client: TestClient) -> httpx.MockTransport:
    """What brings the requests of an `HttpGate` to a worker."""

    def send(request: httpx.Request) -> httpx.Response:
        given = client.post(request.url.path, content=request.content, headers=dict(request.headers))
        return httpx.Response(given.status_code, content=given.content)

    return httpx.MockTransport(send)


def nearest(question: str, entitlements: tuple[str, ...], k: int) -> list[Context]:
    """What a knowledge base gives to those of the group `bank`, and nothing to others."""
    given = [Context(chunk_id=f"c{at}", text=text) for at, text in enumerate(CONTEXTS)]
    return given if "bank" in entitlements else []


def counted(worker: GateService) -> dict[str, int]:
    """How many decisions of each kind the log holds."""
    return {kind: number for kind, number in queries.count_decisions(worker.log.database).items() if number}
