"""Retention: what is live, tagged or needed to roll back stays; what is old and needed by nothing goes."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar

import pytest

from abstain.llm.engine.prompts import Segment
from abstain.llm.engine.requests import HiddenStates, Request
from abstain.llm.features.shard_job import ShardJob
from abstain.release.registry import Registry
from abstain_tasks.data.retention.policy import delete_expired_features, delete_expired_reports
from abstain_tasks.data.retention.releases import delete_expired_bundles, delete_expired_objects
from abstain_tasks.runs.progress import register_observer
from abstain_tasks.runs.workspace import Workspace
from tests.release.events import promotion

NOW = datetime(2026, 11, 20, tzinfo=UTC)


def registry(count: int, *blocked: str, live: str | None = None) -> Registry:
    """v1.0.0 and so on, each promoted once; at last a roll-back to `live`."""
    versions = [f"v1.{minor}.0" for minor in range(count)] + ([live] if live else [])
    history = tuple(promotion(version) for version in versions)
    return Registry(history=history, blocked=dict.fromkeys(blocked, "why"))


@pytest.fixture
def releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ABSTAIN_HOME", str(tmp_path))
    folder = tmp_path / "releases"
    for name in (*(f"v1.{minor}.0" for minor in range(6)), "v9.9.9", ".fetching-old", ".fetching-new", "mine"):
        (folder / name).mkdir(parents=True)
        (folder / name / "probe.onnx").write_bytes(b"12345")
    old = (NOW - timedelta(days=2)).timestamp()
    os.utime(folder / ".fetching-old", (old, old))
    return folder


def names(folder: Path) -> set[str]:
    return {one.name for one in folder.iterdir()}


def test_what_a_roll_back_may_choose_stays_and_what_is_blocked_goes(releases: Path) -> None:
    found = registry(6, "v1.1.0", "v1.3.0", "v1.5.0", live="v1.4.0")
    would = delete_expired_bundles(found, 2, NOW, apply=False)
    assert (would.count, would.bytes) == (4, 20) and len(names(releases)) == 10, "nothing is deleted without apply"
    assert delete_expired_bundles(found, 2, NOW, apply=True) == would
    left = names(releases)
    assert left == {"v1.0.0", "v1.2.0", "v1.4.0", "v1.5.0", ".fetching-new", "mine"}
    for version in left & {event.version for event in found.history}:
        assert version == found.production_version or version in found.blocked or found.find_rollback_target(version)


def test_the_live_version_stays_although_it_is_old_and_blocked(releases: Path) -> None:
    delete_expired_bundles(registry(6, "v1.0.0", live="v1.0.0"), 1, NOW, apply=True)
    assert "v1.0.0" in names(releases)


class Commits(Workspace):
    """A history of three commits, of which DVC lets nothing go; its remote is in the home."""

    asked: ClassVar[list[str]] = []

    def dvc(self, *arguments: str) -> str:
        self.asked.append(arguments[0])
        return {"core.remote": "local", "remote.local.url": str(self.path.parent / "dvc-remote")}.get(arguments[-1], "")

    def git(self, *arguments: str) -> str:
        return "3\n"


@pytest.mark.parametrize("folder", ["dvc-cache", "dvc-remote"])
def test_commits_are_read_only_where_dvc_has_files_and_that_is_said_before(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ABSTAIN_HOME", str(tmp_path))
    monkeypatch.setattr(Commits, "asked", [])
    (tmp_path / folder / "files" / "md5" / "ab").mkdir(parents=True)
    workspace, told = Commits(tmp_path / "workspace", lock=0), []
    with register_observer(lambda _, message: told.append((message, "gc" in workspace.asked))):
        assert delete_expired_objects(workspace, 90, NOW, apply=True).count == 0
        assert "gc" not in workspace.asked and told == []
        (tmp_path / folder / "files" / "md5" / "ab" / "cd").touch()
        delete_expired_objects(workspace, 90, NOW, apply=True)
    ((message, too_late),) = told
    assert "gc" in workspace.asked and "3 commits" in message and not too_late


def test_nothing_in_production_keeps_nothing_that_is_not_known(releases: Path) -> None:
    delete_expired_bundles(Registry(), 3, NOW, apply=True)
    assert names(releases) == {".fetching-new", "mine"}


def test_report_pages_go_by_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABSTAIN_HOME", str(tmp_path))
    assert delete_expired_reports(90, NOW, apply=True).count == 0, "none was written"
    for name, days in (("old", 91), ("new", 89)):
        page = tmp_path / "reports" / name
        page.mkdir(parents=True)
        (page / "evaluation.html").write_bytes(b"12345")
        at = (NOW - timedelta(days=days)).timestamp()
        os.utime(page, (at, at))
    would = delete_expired_reports(90, NOW, apply=False)
    assert (would.count, would.bytes) == (1, 5) and names(tmp_path / "reports") == {"old", "new"}
    assert delete_expired_reports(90, NOW, apply=True) == would
    assert names(tmp_path / "reports") == {"new"}


def test_a_cache_that_others_may_fill_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABSTAIN_FEATURES", str(tmp_path / "shared"))
    shard = tmp_path / "shared" / "0123456789abcdef" / ("0" * 32 + ".safetensors")
    shard.parent.mkdir(parents=True)
    shard.write_bytes(b"a shard that nobody can read")
    os.utime(shard, (0, 0))
    said = delete_expired_features(30, apply=True)
    assert (said.count, shard.exists()) == (0, True) and "may be shared" in said.note


def test_the_texts_of_a_killed_run_go_from_a_shared_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABSTAIN_FEATURES", str(tmp_path))
    text = "What does Ann owe?"
    work = ShardJob("m", "m@1", "float32", 24, (Request((Segment("question", text),), HiddenStates(1), "i-1"),))
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    written = time.time() - timedelta(days=7).total_seconds()
    for name, at in (
        (f"{work.name}.job", written - 60),
        (f".{work.name}.job.{'5e' * 8}", written - 60),
        (f"{'7a' * 16}.job", written + 60),
    ):
        (jobs / name).write_text(work.to_json())
        os.utime(jobs / name, (at, at))
    would = delete_expired_features(30, apply=False)
    assert (would.count, would.bytes) == (2, 2 * len(work.to_json())) and len(names(jobs)) == 3
    assert delete_expired_features(30, apply=True) == would
    assert names(jobs) == {f"{'7a' * 16}.job"}, "which may be at work"
