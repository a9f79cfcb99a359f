import hashlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from abstain.core import paths
from abstain.core.bundle_format import is_intact, write_digest
from abstain.core.errors import AbstainError
from abstain.release.registry import RegistryEvent
from abstain_tasks.release import bundles
from abstain_tasks.release.bundles import fetch_bundle
from tests.release.builders import promotion
from tests.tasks.conftest import Candidates, Plain

ONNX, PART = paths.RELEASED_ONNX.name, "parts/length.onnx"
FILES = {ONNX: b"promoted", "approval.json": b"{}", PART: b"part"}


def write_bundle(bundle: Path) -> Path:
    for name, content in FILES.items():
        (bundle / name).parent.mkdir(parents=True, exist_ok=True)
        (bundle / name).write_bytes(content)
    write_digest(bundle)
    return bundle


def exchange(bundle: Path) -> None:
    (bundle / "approval.json").write_bytes(FILES[PART])
    (bundle / PART).write_bytes(FILES["approval.json"])


@pytest.fixture
def event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RegistryEvent:
    monkeypatch.setenv("ABSTAIN_HOME", str(tmp_path))
    digest = write_digest(write_bundle(tmp_path / "promoted"))
    return promotion(sha256=hashlib.sha256(FILES[ONNX]).hexdigest(), bundle_sha256=digest)


def serve(patch: pytest.MonkeyPatch, change: Callable[[Path], object]) -> None:
    """Let DVC deliver the promoted bundle with a change."""

    def get(command: Sequence[str], _: Path) -> str:
        change(write_bundle(Path(command[command.index("-o") + 1])))
        return ""

    patch.setattr(bundles, "run", get)


def test_fetch_bundle_replaces_damaged(event: RegistryEvent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = write_bundle(tmp_path / "releases" / "v1.0.0")
    assert fetch_bundle(tmp_path, event) == bundle
    exchange(bundle)
    serve(monkeypatch, exchange)
    with pytest.raises(AbstainError, match=r"the tag probe@v1\.0\.0 or the DVC remote was changed"):
        fetch_bundle(tmp_path, event)
    assert not is_intact(bundle, event.bundle_sha256) and list(bundle.parent.iterdir()) == [bundle]
    shutil.rmtree(bundle)
    with pytest.raises(AbstainError, match="was changed"):
        fetch_bundle(tmp_path, event)
    assert list(bundle.parent.iterdir()) == []
    serve(monkeypatch, lambda _: None)
    exchange(write_bundle(bundle))
    assert fetch_bundle(tmp_path, event) == bundle and is_intact(bundle, event.bundle_sha256)
    assert list(bundle.parent.iterdir()) == [bundle]


def test_promote_event_has_digest_of_bundle(workspace: Plain, first_candidates: Candidates, tmp_path: Path) -> None:
    first_candidates.write()
    assert first_candidates.promote().status == "promoted"
    event = workspace.on_origin().production
    store = tmp_path / "home" / "releases" / "v1.0.0"
    shutil.copytree(workspace.path / paths.RELEASE, store)
    assert fetch_bundle(workspace.path, event) == store
    (store / "params.yaml").write_text("threshold: {}")
    assert not is_intact(store, event.bundle_sha256)
