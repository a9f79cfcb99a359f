"""What is fetched is what was promoted."""

from __future__ import annotations

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
from abstain_tasks.release.promotion import PromotionResult
from tests.release.events import promotion
from tests.tasks.conftest import Candidates, Plain

ONNX = paths.RELEASED_ONNX.name
FILES = {ONNX: b"promoted", "approval.json": b"{}", "parts/length.onnx": b"part"}
PROMOTED = promotion(sha256=hashlib.sha256(FILES[ONNX]).hexdigest())


def write(bundle: Path) -> Path:
    for name, content in FILES.items():
        (bundle / name).parent.mkdir(parents=True, exist_ok=True)
        (bundle / name).write_bytes(content)
    write_digest(bundle)
    return bundle


def add(bundle: Path) -> None:
    (bundle / "parts" / "more.onnx").write_bytes(b"more")


def remove(bundle: Path) -> None:
    (bundle / "approval.json").unlink()


def change(bundle: Path) -> None:
    (bundle / "approval.json").write_bytes(b"{ }")


def rename(bundle: Path) -> None:
    (bundle / "approval.json").rename(bundle / "metrics.json")


def exchange(bundle: Path) -> None:
    """The same contents under each other's names."""
    (bundle / "approval.json").write_bytes(FILES["parts/length.onnx"])
    (bundle / "parts" / "length.onnx").write_bytes(FILES["approval.json"])


CHANGES = [add, remove, change, rename, exchange]


@pytest.fixture
def event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RegistryEvent:
    """Of the bundle with `FILES`; the home is `tmp_path`."""
    monkeypatch.setenv("ABSTAIN_HOME", str(tmp_path))
    digest = write_digest(write(tmp_path / "promoted"))
    return PROMOTED.model_copy(update={"bundle_sha256": digest})


def on_tag(monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]) -> None:
    """What DVC gets from now on: the promoted bundle, with a change."""

    def get(command: Sequence[str], _: Path) -> str:
        change(write(Path(command[command.index("-o") + 1])))
        return ""

    monkeypatch.setattr(bundles, "run", get)


@pytest.mark.parametrize("change", CHANGES)
def test_a_damaged_local_copy_is_replaced_by_what_was_promoted(
    event: RegistryEvent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    bundle = write(tmp_path / "releases" / "v1.0.0")
    assert fetch_bundle(tmp_path, event) == bundle
    change(bundle)
    on_tag(monkeypatch, change)
    with pytest.raises(AbstainError, match=r"v1\.0\.0 are not those that were promoted: the tag"):
        fetch_bundle(tmp_path, event)
    assert not is_intact(bundle, event.bundle_sha256), "it stays as it is"
    on_tag(monkeypatch, lambda _: None)
    assert fetch_bundle(tmp_path, event) == bundle and is_intact(bundle, event.bundle_sha256)
    assert list(bundle.parent.iterdir()) == [bundle]


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_at_the_origin_never_reaches_the_store(
    event: RegistryEvent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    on_tag(monkeypatch, change)
    with pytest.raises(AbstainError, match=r"promoted: the tag probe@v1\.0\.0 or the DVC remote was changed"):
        fetch_bundle(tmp_path, event)
    assert list((tmp_path / "releases").iterdir()) == []
    on_tag(monkeypatch, lambda _: None)
    assert fetch_bundle(tmp_path, event) == tmp_path / "releases" / "v1.0.0"


def test_the_event_of_a_promotion_has_the_digest_of_the_whole_bundle(
    workspace: Plain, first_candidates: Candidates, tmp_path: Path
) -> None:
    first_candidates.write()
    assert first_candidates.promote() == PromotionResult("promoted", "v1.0.0", [])
    live = workspace.on_origin().production
    assert live is not None and is_intact(workspace.path / paths.RELEASE, live.bundle_sha256)
    store = tmp_path / "home" / "releases" / "v1.0.0"
    shutil.copytree(workspace.path / paths.RELEASE, store)
    assert fetch_bundle(workspace.path, live) == store
    (store / "params.yaml").write_text("threshold: {}")
    assert not is_intact(store, live.bundle_sha256)
