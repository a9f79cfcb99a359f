"""Gate servers whose release shows one answer and withholds another, and the requests that gateways send."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from abstain.config.settings import Settings
from abstain.core import paths
from abstain.core.contracts import Context
from abstain.serving.gate import Gate
from abstain.serving.service.gate_service import GateService
from tests.data.decision_log.builders import open_log
from tests.serving.builders import GUARANTEE, release
from tests.serving.clients import GateClient
from tests.serving.conftest import Connect, MadeUpReleases, MakeService, open_service

QUESTION = "How long may an account be overdrawn?"
CONTEXTS = ["An account may be overdrawn for thirty days.", "Fees are charged monthly."]
ANSWERS = ("Thirty days.", "For ever, and nobody will ask you anything about it at all.")
WITHHELD = "Ask a colleague."
Answers = tuple[str, str]


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory, model: Path) -> tuple[Path, Answers]:
    """A release, and of the `ANSWERS` the one that it shows and the one that it withholds."""
    folder = tmp_path_factory.mktemp("bundle")
    settings = Settings(home=folder / "home", device="cpu", dtype="float32")
    bundle = release(folder / "bundle", model, settings, guarantee=GUARANTEE).parent
    gate = Gate.open(bundle, settings)
    confidences = {gate.decide(QUESTION, CONTEXTS, answer).confidence or 0: answer for answer in ANSWERS}
    low, high = sorted(confidences)
    assert 0 < low < high
    release(bundle, model, settings, guarantee=GUARANTEE, threshold=repr((low + high) / 2))
    return bundle, (confidences[high], confidences[low])


@pytest.fixture
def answers(decided: tuple[Path, Answers]) -> Answers:
    """The answer that is shown, and the one that is withheld."""
    return decided[1]


@pytest.fixture
def log_options() -> dict[str, Any]:
    return {}


@pytest.fixture
def make_worker(
    decided: tuple[Path, Answers], settings: Settings, tmp_path: Path, log_options: dict[str, Any]
) -> Iterator[MakeService]:
    """A worker of the server, with these serve settings; each opens the one log, as another process would."""
    releases = MadeUpReleases()
    releases.promote("v1.0.0", decided[0] / paths.RELEASED_ONNX.name)
    with ExitStack() as stack:

        def make(**changes: Any) -> GateService:
            log = stack.enter_context(closing(open_log(f"sqlite:///{tmp_path / 'log.sqlite'}", **log_options)))
            return open_service(releases, log, settings, **{"withheld_text": WITHHELD, **changes})

        yield make


@pytest.fixture
def connect(make_worker: MakeService) -> Iterator[Connect]:
    with ExitStack() as stack:
        yield lambda keys=None, **settings: stack.enter_context(GateClient(make_worker(**settings), keys))


def read_recorded(name: str, **changes: Any) -> dict[str, Any]:
    content = json.loads((Path(__file__).parent / "recorded" / f"{name}.json").read_text())
    return {**content, **changes}


def make_registration(call_id: str = "call-1", **changes: Any) -> Mapping[str, Any]:
    """The body of `/v1/contexts`."""
    return {"call_id": call_id, "contexts": CONTEXTS, **changes}


def make_transport(client: GateClient) -> httpx.MockTransport:
    """What brings the requests of an `HttpGate` to a worker."""

    def send(request: httpx.Request) -> httpx.Response:
        response = client.post(request.url.path, content=request.content, headers=dict(request.headers))
        return httpx.Response(response.status_code, content=response.content)

    return httpx.MockTransport(send)


def retrieve_for_bank(question: str, entitlements: tuple[str, ...], k: int) -> list[Context]:
    """What a knowledge base gives to those of the group `bank`, and nothing to others."""
    chunks = [Context(chunk_id=f"c{number}", text=text) for number, text in enumerate(CONTEXTS)]
    return chunks if "bank" in entitlements else []
