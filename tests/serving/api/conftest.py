"""A gate server of a tiny release: its service, its app and clients of it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from abstain.config.serve_settings import ServeSettings
from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.data.decision_log.log import DecisionLog
from abstain.serving.gate import Gate
from abstain.serving.service.gate_service import GateService
from abstain.serving.service.keys import ApiKeys
from abstain.serving.service.version_follower import VersionFollower, VersionInfo
from tests.data.decision_log.builders import open_log
from tests.serving.builders import GUARANTEE, release
from tests.serving.clients import BASE, GateClient

__all__ = ["BASE"]
Connect = Callable[..., GateClient]
MakeRelease = Callable[..., Path]
MakeService = Callable[..., GateService]


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

    def fetch_bundle(self, version_info: VersionInfo) -> Path:
        return self.get_folder(version_info)


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
def log(tmp_path: Path) -> Iterator[DecisionLog]:
    opened = open_log(f"sqlite:///{tmp_path / 'log.sqlite'}")
    yield opened
    opened.close()


@pytest.fixture
def make_service(releases: MadeUpReleases, settings: Settings, log: DecisionLog) -> MakeService:
    """A service over `releases`, with these serve settings."""

    def make(**changes: object) -> GateService:
        serving = ServeSettings(**changes)  # type: ignore[arg-type]
        follower = VersionFollower(releases, lambda bundle: Gate.open(bundle, settings, serving.on_unavailable))
        service = GateService(follower, log, serving)
        service.follower.refresh()
        return service

    return make


@pytest.fixture
def service(make_service: MakeService, releases: MadeUpReleases, make_release: MakeRelease) -> GateService:
    releases.promote("v1.0.0", make_release())
    return make_service()


@pytest.fixture
def connect(make_service: MakeService, releases: MadeUpReleases, make_release: MakeRelease) -> Iterator[Connect]:
    """Open a client of a server with these keys and serve settings, where v1.0.0 is live, with `metadata`."""
    with ExitStack() as stack:

        def open_client(
            keys: ApiKeys | None = None, metadata: Mapping[str, str] | None = None, **settings: object
        ) -> GateClient:
            releases.promote("v1.0.0", make_release(**(metadata or {})))
            return stack.enter_context(GateClient(make_service(**settings), keys))

        yield open_client


@pytest.fixture
def client(service: GateService) -> Iterator[GateClient]:
    with GateClient(service) as opened:
        yield opened
