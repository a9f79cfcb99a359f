from pathlib import Path

import pytest

from abstain.config.settings import Settings
from abstain.serving.service.gate_service import GateService
from abstain.serving.service.version_follower import VersionInfo
from tests.serving.conftest import MadeUpReleases, MakeService
from tests.serving.status_page.builders import SINCE, fused_release


@pytest.fixture(scope="module")
def bundle(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    return fused_release(folder / "bundle", model, Settings(home=folder / "home", device="cpu", dtype="float32"))


@pytest.fixture
def service(bundle: Path, releases: MadeUpReleases, make_service: MakeService) -> GateService:
    """v1.2.0 is live."""
    releases.now = VersionInfo("v1.2.0", str(bundle / "probe.onnx"), SINCE, ("a notice",))
    return make_service()
