import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from abstain.core import paths
from abstain.core.codes import Code
from abstain.ingest.report import IngestReport
from abstain.release.registry import Registry, make_version_tag
from abstain_tasks.data import contradictions, new_reviews
from abstain_tasks.data.retention.policy import delete_expired_features, delete_expired_reports
from abstain_tasks.data.retention.releases import delete_expired_bundles, delete_expired_objects
from abstain_tasks.runs.events import ALARM, INGESTED, REVIEWS
from abstain_tasks.runs.git_commit import commit
from abstain_tasks.runs.progress import register_observer
from abstain_tasks.runs.workspace import Workspace
from tests.release.builders import promotion
from tests.reports.builders import make_contradiction, read_results
from tests.tasks.conftest import DAY, Plain


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
    old = (DAY - timedelta(days=2)).timestamp()
    os.utime(folder / ".fetching-old", (old, old))
    return folder


def list_names(folder: Path) -> set[str]:
    return {one.name for one in folder.iterdir()}


def test_delete_expired_bundles_keeps_rollback_targets(releases: Path) -> None:
    found = make_registry(6, "v1.1.0", "v1.3.0", "v1.5.0", live="v1.4.0")
    would = delete_expired_bundles(found, 2, DAY, apply=False)
    assert (would.count, would.bytes) == (4, 20) and len(list_names(releases)) == 10
    assert delete_expired_bundles(found, 2, DAY, apply=True) == would
    left = list_names(releases)
    assert left == {"v1.0.0", "v1.2.0", "v1.4.0", "v1.5.0", ".fetching-new", "mine"}
    for version in left & {event.version for event in found.history}:
        assert version == found.production_version or version in found.blocked or found.find_rollback_target(version)


def test_delete_expired_bundles_keeps_production_and_unknown(releases: Path) -> None:
    delete_expired_bundles(make_registry(6, "v1.0.0", live="v1.0.0"), 1, DAY, apply=True)
    assert "v1.0.0" in list_names(releases)
    delete_expired_bundles(Registry(), 3, DAY, apply=True)
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
def test_delete_expired_objects_announces_commits(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Commits, "asked", [])
    (tmp_path / folder / "files" / "md5" / "ab").mkdir(parents=True)
    workspace, messages = Commits(tmp_path / "workspace", lock=0), []
    with register_observer(lambda _, message: messages.append((message, "gc" in workspace.asked))):
        assert delete_expired_objects(workspace, 90, DAY, apply=True).count == 0
        assert "gc" not in workspace.asked and messages == []
        (tmp_path / folder / "files" / "md5" / "ab" / "cd").touch()
        delete_expired_objects(workspace, 90, DAY, apply=True)
    ((message, too_late),) = messages
    assert "gc" in workspace.asked and "3 commits" in message and not too_late


def test_delete_expired_reports_by_age(tmp_path: Path) -> None:
    assert delete_expired_reports(90, DAY, apply=True).count == 0
    for name, days in (("old", 91), ("new", 89)):
        page = tmp_path / "reports" / name
        page.mkdir(parents=True)
        (page / "evaluation.html").write_bytes(b"12345")
        at = (DAY - timedelta(days=days)).timestamp()
        os.utime(page, (at, at))
    would = delete_expired_reports(90, DAY, apply=False)
    assert (would.count, would.bytes) == (1, 5) and list_names(tmp_path / "reports") == {"old", "new"}
    assert delete_expired_reports(90, DAY, apply=True) == would
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


def ingest(workspace: Plain, monkeypatch: pytest.MonkeyPatch, day: int, reviews: int) -> IngestReport:
    at = DAY + timedelta(days=day)
    line = f'{{"batch": "{day:06d}", "arrived_at": "{at.isoformat()}", "sources": ["x"], "rows": {{"reviews": {reviews}}}}}'
    file = workspace.path / paths.DATA / "batches.jsonl"
    file.parent.mkdir(exist_ok=True)
    file.write_text((file.read_text() if file.exists() else "") + line + "\n")
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_DATE", (at + timedelta(minutes=10)).isoformat())
    workspace.dvc("add", "--quiet", "data")
    assert commit(workspace, "Ingest", "data.dvc")
    return IngestReport(reviews, reviews, 0, 0, 0, {"interactions": 0, "reviews": reviews})


def test_emit_ingest_events_once_per_portion_of_reviews(workspace: Plain, monkeypatch: pytest.MonkeyPatch) -> None:
    emitted: list[tuple[str, str]] = []
    monkeypatch.setattr(new_reviews, "post_event", lambda name, resource="", **_: emitted.append((name, resource)))

    def announce(day: int, reviews: int) -> list[tuple[str, str]]:
        emitted.clear()
        new_reviews.emit_ingest_events(workspace, ingest(workspace, monkeypatch, day, reviews))
        return emitted

    assert announce(0, 199) == [(INGESTED, "")]
    assert announce(1, 1) == [(INGESTED, ""), (REVIEWS, f"{REVIEWS}.none.1")]
    workspace.git("tag", "trained-here")
    ingest(workspace, monkeypatch, 2, 150)  # while it is trained: these are new
    workspace.git("checkout", "-q", "trained-here")
    workspace.git("tag", make_version_tag("v1.0.0"))
    promoted = Registry(history=(promotion(occurred_at=DAY + timedelta(days=2, hours=3)),))
    (workspace.path / paths.REGISTRY).write_text(promoted.to_json())
    assert new_reviews.count_new_reviews(workspace) == ("v1.0.0", 150)
    assert announce(3, 49) == [(INGESTED, "")]
    assert announce(4, 1) == [(INGESTED, ""), (REVIEWS, f"{REVIEWS}.v1.0.0.1")]
    assert announce(5, 250) == [(INGESTED, ""), (REVIEWS, f"{REVIEWS}.v1.0.0.2")]
    emitted.clear()
    new_reviews.emit_ingest_events(workspace, IngestReport(7, 0, 7, 0, 0, {"interactions": 0, "reviews": 0}))
    assert emitted == [], "nothing came"


@pytest.fixture
def emitted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    events: list[tuple[Any, ...]] = []
    monkeypatch.setattr(contradictions, "post_event", lambda *names, **fields: events.append((*names, fields)))
    return events


def emit(folder: Path, *named: tuple[str, str | None, str]) -> None:
    """Of persons, batches and messages."""
    card = json.loads(read_results())["dataset"]
    listed = [make_contradiction(message) | {"person": person, "batch": batch} for person, batch, message in named]
    card["contradicting"]["named"] = listed
    file = folder / paths.DATASET_SUMMARY
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(card))
    contradictions.emit_contradiction_alarms(Workspace(folder, lock=0))


def test_contradiction_alarm_hides_names(tmp_path: Path, emitted: list[Any]) -> None:
    emit(tmp_path)
    assert emitted == []
    pseudonym = f"r-{'5e' * 10}"
    for person in (pseudonym, "Ada Ames"):
        emit(tmp_path, (person, "000007", f"{person} in batch 000007: 30 of 31 answers"))
    assert {(name, fields["code"]) for name, _, fields in emitted} == {(ALARM, Code.CONTRADICTS_OTHERS.value)}
    by_pseudonym, by_name = (fields["text"] for _, _, fields in emitted)
    assert pseudonym[:10] in by_pseudonym and pseudonym not in by_pseudonym
    assert "Ada" not in by_name and "000007" in by_name


def test_contradiction_alarm_is_deduplicated_by_person(tmp_path: Path, emitted: list[Any]) -> None:
    emit(tmp_path, ("r-1", None, "30 of 31 answers"), ("r-1", "000007", "9 of 9 answers"), ("u-2", None, "8 of 8"))
    emit(tmp_path, ("r-1", None, "31 of 33 answers"))
    first, *others, again = [resource for _, resource, _ in emitted]
    assert first == again and len({first, *others}) == 3
    assert not any("r-1" in resource or "u-2" in resource for resource in (first, *others))
