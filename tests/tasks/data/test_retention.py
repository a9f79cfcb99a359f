import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar

import pytest

from abstain.release.registry import Registry
from abstain_tasks.data.retention.policy import delete_expired_features, delete_expired_reports
from abstain_tasks.data.retention.releases import delete_expired_bundles, delete_expired_objects
from abstain_tasks.runs.progress import register_observer
from abstain_tasks.runs.workspace import Workspace
from tests.release.builders import promotion

NOW = datetime(2026, 11, 20, tzinfo=UTC)


def make_registry(count: int, *blocked: str, live: str | None = None) -> Registry:
    versions = [f"v1.{minor}.0" for minor in range(count)] + ([live] if live else [])
    history = tuple(promotion(version) for version in versions)
    return Registry(history=history, blocked=dict.fromkeys(blocked, "why"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABSTAIN_HOME", str(tmp_path))


@pytest.fixture
def releases(tmp_path: Path) -> Path:
    folder = tmp_path / "releases"
    for name in (*(f"v1.{minor}.0" for minor in range(6)), "v9.9.9", ".fetching-old", ".fetching-new", "mine"):
        (folder / name).mkdir(parents=True)
        (folder / name / "probe.onnx").write_bytes(b"12345")
    old = (NOW - timedelta(days=2)).timestamp()
    os.utime(folder / ".fetching-old", (old, old))
    return folder


def list_names(folder: Path) -> set[str]:
    return {one.name for one in folder.iterdir()}


def test_delete_expired_bundles_keeps_rollback_targets(releases: Path) -> None:
    found = make_registry(6, "v1.1.0", "v1.3.0", "v1.5.0", live="v1.4.0")
    would = delete_expired_bundles(found, 2, NOW, apply=False)
    assert (would.count, would.bytes) == (4, 20) and len(list_names(releases)) == 10
    assert delete_expired_bundles(found, 2, NOW, apply=True) == would
    left = list_names(releases)
    assert left == {"v1.0.0", "v1.2.0", "v1.4.0", "v1.5.0", ".fetching-new", "mine"}
    for version in left & {event.version for event in found.history}:
        assert version == found.production_version or version in found.blocked or found.find_rollback_target(version)


def test_delete_expired_bundles_keeps_production_and_unknown(releases: Path) -> None:
    delete_expired_bundles(make_registry(6, "v1.0.0", live="v1.0.0"), 1, NOW, apply=True)
    assert "v1.0.0" in list_names(releases)
    delete_expired_bundles(Registry(), 3, NOW, apply=True)
    assert list_names(releases) == {".fetching-new", "mine"}


class Commits(Workspace):
    """A stub with three commits, whose remote is in the home."""

    asked: ClassVar[list[str]] = []

    def dvc(self, *arguments: str) -> str:
        self.asked.append(arguments[0])
        return {"core.remote": "local", "remote.local.url": str(self.path.parent / "dvc-remote")}.get(arguments[-1], "")

    def git(self, *arguments: str) -> str:
        return "3\n"


@pytest.mark.parametrize("folder", ["dvc-cache", "dvc-remote"])
def test_delete_expired_objects_announces_reading_commits(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Commits, "asked", [])
    (tmp_path / folder / "files" / "md5" / "ab").mkdir(parents=True)
    workspace, messages = Commits(tmp_path / "workspace", lock=0), []
    with register_observer(lambda _, message: messages.append((message, "gc" in workspace.asked))):
        assert delete_expired_objects(workspace, 90, NOW, apply=True).count == 0
        assert "gc" not in workspace.asked and messages == []
        (tmp_path / folder / "files" / "md5" / "ab" / "cd").touch()
        delete_expired_objects(workspace, 90, NOW, apply=True)
    ((message, too_late),) = messages
    assert "gc" in workspace.asked and "3 commits" in message and not too_late


def test_delete_expired_reports_by_age(tmp_path: Path) -> None:
    assert delete_expired_reports(90, NOW, apply=True).count == 0
    for name, days in (("old", 91), ("new", 89)):
        page = tmp_path / "reports" / name
        page.mkdir(parents=True)
        (page / "evaluation.html").write_bytes(b"12345")
        at = (NOW - timedelta(days=days)).timestamp()
        os.utime(page, (at, at))
    would = delete_expired_reports(90, NOW, apply=False)
    assert (would.count, would.bytes) == (1, 5) and list_names(tmp_path / "reports") == {"old", "new"}
    assert delete_expired_reports(90, NOW, apply=True) == would
    assert list_names(tmp_path / "reports") == {"new"}


def test_delete_expired_features_shared_deletes_only_old_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABSTAIN_FEATURES", str(tmp_path / "shared"))
    shard = tmp_path / "shared" / "0123456789abcdef" / ("0" * 32 + ".safetensors")
    job, young = (tmp_path / "shared" / "jobs" / f"{digest * 16}.job" for digest in ("5e", "7a"))
    for file in (shard, job, young):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"12345")
        if file != young:
            os.utime(file, (0, 0))
    would = delete_expired_features(30, apply=False)
    assert (would.count, would.bytes) == (1, 5) and "shared" in would.note
    assert delete_expired_features(30, apply=True) == would
    assert (shard.exists(), job.exists(), young.exists()) == (True, False, True)
