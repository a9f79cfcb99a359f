from datetime import UTC, datetime, timedelta

import pytest

from abstain.core import paths
from abstain.ingest.report import IngestReport
from abstain.release.registry import Registry, make_version_tag
from abstain_tasks.data import new_reviews
from abstain_tasks.runs.events import INGESTED, REVIEWS
from abstain_tasks.runs.git_commit import commit
from tests.release.events import promotion
from tests.tasks.conftest import Plain

DAY = datetime(2026, 11, 20, tzinfo=UTC)


def ingest(workspace: Plain, monkeypatch: pytest.MonkeyPatch, day: int, reviews: int) -> IngestReport:
    """Commit a batch of that day ten minutes after it arrived."""
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


def promote(workspace: Plain, version: str, at: datetime) -> None:
    workspace.git("tag", make_version_tag(version))
    (workspace.path / paths.REGISTRY).write_text(Registry(history=(promotion(version, occurred_at=at),)).to_json())


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
    promote(workspace, "v1.0.0", DAY + timedelta(days=2, hours=3))
    assert new_reviews.count_new_reviews(workspace) == ("v1.0.0", 150)
    assert announce(3, 49) == [(INGESTED, "")]
    assert announce(4, 1) == [(INGESTED, ""), (REVIEWS, f"{REVIEWS}.v1.0.0.1")]
    assert announce(5, 250) == [(INGESTED, ""), (REVIEWS, f"{REVIEWS}.v1.0.0.2")]


def test_emit_ingest_events_without_rows_is_silent(workspace: Plain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_reviews, "post_event", lambda *_, **__: pytest.fail("it announced"))
    ingest(workspace, monkeypatch, 0, 500)
    new_reviews.emit_ingest_events(workspace, IngestReport(7, 0, 7, 0, 0, {"interactions": 0, "reviews": 0}))
