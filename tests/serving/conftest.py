"""Releases of a tiny model, and a gate server of one: its service, its app and clients of it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from abstain.config.serve_settings import OnUnavailable, ServeSettings
from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.data.decision_log.log import DecisionLog
from abstain.llm.engine.engine import Engine
from abstain.serving.gate import Gate
from abstain.serving.generate import add_familiarity_check
from abstain.serving.predictor import Predictor
from abstain.serving.service.gate_service import GateService, RetrieveChunks
from abstain.serving.service.keys import ApiKeys
from abstain.serving.service.version_follower import VersionFollower, VersionInfo
from tests.data.decision_log.conftest import log
from tests.llm.builders import save_tiny_model
from tests.llm.conftest import settings
from tests.serving.builders import GUARANTEE, release
from tests.serving.clients import GateClient
from tests.serving.engine_files import PlainModel

__all__ = ["log", "settings"]

Open = Callable[..., Predictor]
OpenGate = Callable[..., Gate]
Connect = Callable[..., GateClient]
MakeRelease = Callable[..., Path]
MakeService = Callable[..., GateService]
Promote = Callable[..., None]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny-bank")


@pytest.fixture(scope="module")
def plain(model: Path) -> PlainModel:
    return PlainModel.load(model)


@pytest.fixture
def states_folder(tmp_path: Path) -> Path:
    (tmp_path / "states").mkdir()
    return tmp_path / "states"


@pytest.fixture
def opened(model: Path, settings: Settings, tmp_path: Path) -> Open:
    """Open a release of `model` with these changes of its metadata; None leaves a key out."""
    return lambda **changes: Predictor.open(release(tmp_path / "bundle", model, settings, **changes), settings)


@pytest.fixture
def open_gate(model: Path, settings: Settings, tmp_path: Path) -> OpenGate:
    """The same as a gate; with a guarantee, unless changed."""

    def open_(on_unavailable: OnUnavailable = "abstain", **changes: str | None) -> Gate:
        file = release(tmp_path / "bundle", model, settings, **{"guarantee": GUARANTEE, **changes})
        return Gate.open(file.parent, settings, on_unavailable)

    return open_


@pytest.fixture
def gate(open_gate: OpenGate) -> Gate:
    return open_gate()


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], dict[str, Any]], str], None]:
    """Have the engine give the answer to the question at this index with other fields."""
    run = Engine.run

    def change_answers(change: Callable[[Any], dict[str, Any]], index: str = "0") -> None:
        def run_and_change(self: Engine, requests: Any, tell: Any = None) -> Any:
            for key, result in run(self, requests):
                is_changed = isinstance(result, list) and key == index
                yield key, [replace(result[0], **change(result[0]))] if is_changed else result

        monkeypatch.setattr(Engine, "run", run_and_change)

    return change_answers


class MadeUpReleases:
    """Releases in folders, one of which is live."""

    def __init__(self) -> None:
        self.now: VersionInfo | None = None

    def promote(self, version: str, file: Path) -> None:
        self.now = VersionInfo(version, str(file), datetime(2026, 11, 1, tzinfo=UTC))

    def get_production(self) -> VersionInfo:
        if self.now is None:
            raise AbstainError(Code.NO_VERSION, "nothing is in production yet")
        return self.now

    def get_folder(self, version_info: VersionInfo) -> Path:
        return Path(version_info.digest).parent

    fetch_bundle = get_folder


@pytest.fixture
def make_release(tmp_path: Path, model: Path, settings: Settings) -> MakeRelease:
    """A release in a folder of its own, with a guarantee, unless changed."""

    def make(version: str = "v1.0.0", **changes: str | None) -> Path:
        folder = tmp_path / "releases" / version
        return release(folder, model, settings, **{"version": version, "guarantee": GUARANTEE, **changes})

    return make


@pytest.fixture
def releases() -> MadeUpReleases:
    return MadeUpReleases()


@pytest.fixture
def promote(releases: MadeUpReleases, make_release: MakeRelease) -> Promote:
    """Put a release of this version, with these changes of its metadata, into production."""
    return lambda version="v1.0.0", **changes: releases.promote(version, make_release(version, **changes))


def open_service(
    releases: MadeUpReleases,
    log: DecisionLog,
    settings: Settings,
    retrieve: RetrieveChunks | None = None,
    candidates: MadeUpReleases | None = None,
    **changes: Any,
) -> GateService:
    """A service over `releases`, with these serve settings, and `candidates` for its shadow."""
    serving = ServeSettings(**changes)

    def open_(bundle: Path) -> Gate:
        gate = Gate.open(bundle, settings, serving.on_unavailable)
        return add_familiarity_check(gate, serving.familiarity, retrieve)

    follower, shadow = (source and VersionFollower(source, open_) for source in (releases, candidates))
    service = GateService(follower, log, serving, retrieve, shadow_follower=shadow)
    service.refresh()
    return service


@pytest.fixture
def make_service(releases: MadeUpReleases, settings: Settings, log: DecisionLog) -> MakeService:
    return partial(open_service, releases, log, settings)


@pytest.fixture
def service(make_service: MakeService, promote: Promote) -> GateService:
    promote()
    return make_service()


@pytest.fixture
def connect(make_service: MakeService, promote: Promote) -> Iterator[Connect]:
    """Open a client of a server with these keys and serve settings, where v1.0.0 is live, with `metadata`."""
    with ExitStack() as stack:

        def open_client(
            keys: ApiKeys | None = None, metadata: Mapping[str, str] | None = None, **settings: Any
        ) -> GateClient:
            promote(**(metadata or {}))
            return stack.enter_context(GateClient(make_service(**settings), keys))

        yield open_client


@pytest.fixture
def client(service: GateService) -> Iterator[GateClient]:
    with GateClient(service) as opened:
        yield opened
