from pathlib import Path

import pytest

from abstain.config.settings import Settings
from abstain.serving.service.gate_service import GateService
from abstain.serving.service.version_follower import VersionInfo
from tests.serving.status_page.builders import SINCE, FixedReleases, fused_release, make_service


@pytest.fixture(scope="module")
def bundle(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    return fused_release(folder / "bundle", model, Settings(home=folder / "home", device="cpu", dtype="float32"))


@pytest.fixture
def service(bundle: Path, settings: Settings, tmp_path: Path) -> GateService:
    """v1.2.0 is live; its log is in `tmp_path`."""
    version = VersionInfo("v1.2.0", "0", SINCE, ("a notice",))
    service = make_service(tmp_path, FixedReleases(version, bundle), settings)
    service.follower.refresh()
    assert service.follower.current, service.follower.last_error
    return service
