"""Corrections: what they touch, with real git and a stub of DVC."""

import logging
from typing import Any

import pytest

from abstain.config.params import load_params
from abstain.core import paths
from abstain.data.store.dataset import DataStore, IngestedBatch, create_empty_store
from abstain.data.store.record_keys import make_interaction_identity
from abstain.data.store.splits import hash_to_unit_interval
from abstain.ingest.report import IngestReport
from abstain.ingest.sources.files import make_explicit_sources
from abstain_tasks.data import ingest
from abstain_tasks.runs.workspace import BRANCH
from tests.factories import NOW, alone, row, thumb, verdict, write_lines
from tests.tasks.conftest import Candidates, Plain, read_approval

pytestmark = pytest.mark.heavy  # git, and whole evaluations: not pure functions

REASON = "the export had the wrong answers"


def correct(workspace: Plain, *rows: dict[str, Any], reason: str | None = REASON) -> IngestReport:
    file = write_lines(workspace.path.parent / "corrected.jsonl", *rows)
    sources = make_explicit_sources([str(file)])
    report: IngestReport = ingest.ingest_sources.fn(workspace, sources, limited=False, replace_reason=reason)
    return report


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "publish_ingest", lambda *_: None)
    monkeypatch.setattr(ingest, "get_run_logger", logging.getLogger)


@pytest.mark.parametrize(
    ("rows", "versions"),
    [
        ([row("i-1", answer="Ten.")], ["v1.0.0", "v1.1.0", "v1.2.0"]),
        ([alone(thumb("down", user="u-ann"), "i-1")], ["v1.1.0", "v1.2.0"]),
        ([row("i-2", answer="Ten.")], []),  # without a label: nothing was trained on it
        ([row("i-3", thumb=thumb("down", user="u-eve"))], ["v1.2.0"]),
    ],
)
def test_correction_marks_versions_in_one_commit(
    history: Plain, rows: list[dict[str, Any]], versions: list[str]
) -> None:
    before = history.git("rev-parse", f"origin/{BRANCH}")
    report = correct(history, *rows)
    assert list(history.on_origin().tainted) == versions
    assert {taint.cause for taint in history.on_origin().tainted.values()} <= {"corrected"}
    assert f"now marked: {', '.join(versions) or 'none'}" in report.effects[-1]
    assert history.git("rev-parse", f"origin/{BRANCH}~1") == before, "rows and marks are one commit"
    assert REASON in history.git("log", "-1", "--format=%b", f"origin/{BRANCH}")


def test_correction_report_names_labels_and_holdout(history: Plain) -> None:
    names = [f"h-{number}" for number in range(9)]
    assert not correct(history, *(row(name, review=verdict()) for name in names), reason=None).effects
    relabelled = [alone(verdict(False), name) for name in names]
    report = correct(history, *relabelled, row("i-1", answer="Ten."), row("new"))
    split = load_params(history.path / paths.PARAMS).split
    holdout_names = [name for name in (*names, "i-1") if hash_to_unit_interval(split.seed, name) < split.holdout]
    assert 0 < len(holdout_names) < 9
    assert report.effects[:3] == (
        f"labels: 9 of 10 changed ({', '.join(names)})",
        "answers that keep a label given for their former content: 1 (i-1)",
        f"answers of the hold-out: {len(holdout_names)} ({', '.join(holdout_names)})",
    )
    assert all(line in report.to_markdown() for line in report.effects)


def test_added_part_marks_no_version(history: Plain) -> None:
    report = correct(history, row("i-1", writer_scores={"judge": 1}))
    assert (report.completed, report.effects, history.on_origin().tainted) == (1, (), {})


def test_promote_on_corrected_holdout_is_new_comparison(workspace: Plain, candidates: Candidates) -> None:
    store = DataStore(workspace.path / paths.DATA)
    create_empty_store(store.folder)
    candidates.write(1.8, flipped=2)
    assert "same hold-out" in str(candidates.promote().reasons)
    corrected = tuple(make_interaction_identity(f"i-{number}").hex() for number in range(2))
    batch = IngestedBatch(batch="000001", arrived_at=NOW, sources=("a",), rows={}, replaced=corrected, reason=REASON)
    (store.folder / "batches.jsonl").write_text(batch.to_json_line() + "\n")
    workspace.taint("v1.0.0")
    assert candidates.promote(recheck=True).version == "v1.1.0"
    (check,) = (c for c in read_approval(workspace, "v1.1.0")["checks"] if c["name"] == "same hold-out")
    assert "2 answers were corrected, so this counts as a new comparison" in check["message"]
    assert read_approval(workspace, "v1.1.0")["comparison"] == 2
