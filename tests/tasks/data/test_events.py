"""The events of new reviews and of contradictions, by which automations retrain and alert."""

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from abstain.core import paths
from abstain.core.codes import Code
from abstain.ingest.report import IngestReport
from abstain.release.registry import Registry, make_version_tag
from abstain_tasks.data import contradictions, new_reviews
from abstain_tasks.runs.events import ALARM, INGESTED, REVIEWS
from abstain_tasks.runs.git_commit import commit
from abstain_tasks.runs.workspace import Workspace
from tests.release.builders import promotion
from tests.reports.builders import make_contradiction, read_results
from tests.tasks.conftest import DAY, Plain

Emitted = list[tuple[str, str, dict[str, Any]]]


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


@pytest.fixture
def emitted(monkeypatch: pytest.MonkeyPatch) -> Emitted:
    events: Emitted = []
    monkeypatch.setattr(contradictions, "post_event", lambda *names, **fields: events.append((*names, fields)))
    return events


def emit(folder: Path, *named: tuple[str, str | None, str]) -> None:
    """Of persons, batches and messages."""
    card = json.loads(read_results())["dataset"]
    card["contradicting"]["named"] = [
        make_contradiction(message) | {"person": person, "batch": batch} for person, batch, message in named
    ]
    file = folder / paths.DATASET_SUMMARY
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(card))
    contradictions.emit_contradiction_alarms(Workspace(folder, lock=0))


def test_contradiction_alarm_hides_names(tmp_path: Path, emitted: Emitted) -> None:
    emit(tmp_path)
    assert emitted == []
    pseudonym = f"r-{'5e' * 10}"
    for person in (pseudonym, "Ada Ames"):
        emit(tmp_path, (person, "000007", f"{person} in batch 000007: 30 of 31 answers"))
    assert {(name, fields["code"]) for name, _, fields in emitted} == {(ALARM, Code.CONTRADICTS_OTHERS.value)}
    by_pseudonym, by_name = (fields["text"] for _, _, fields in emitted)
    assert pseudonym[:10] in by_pseudonym and pseudonym not in by_pseudonym
    assert "Ada" not in by_name and "000007" in by_name


def test_contradiction_alarm_is_deduplicated_by_person(tmp_path: Path, emitted: Emitted) -> None:
    emit(tmp_path, ("r-1", None, "30 of 31 answers"), ("r-1", "000007", "9 of 9 answers"), ("u-2", None, "8 of 8"))
    emit(tmp_path, ("r-1", None, "31 of 33 answers"))
    first, *others, again = [resource for _, resource, _ in emitted]
    assert first == again and len({first, *others}) == 3
    assert not any("r-1" in resource or "u-2" in resource for resource in (first, *others))
