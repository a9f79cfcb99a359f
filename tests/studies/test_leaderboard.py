from pathlib import Path
from typing import Any

import pytest

from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.data.store.dataset import create_empty_store
from benchmarks.latency import PERTURBATION
from studies.leaderboard import load_study
from studies.leaderboard.comparison import make_workspace
from studies.leaderboard.latency import map_latencies
from studies.leaderboard.sources import draw_topics
from studies.leaderboard.workspace import StageWorkspace
from studies.study import FOLDER, Outcome, StudySource
from tests.checkout import SHIPPED

FILE = FOLDER / "leaderboard.yaml"
COUNTS = {"test": 40, "test_groups": 12, "base_rate": 0.7, "train": 90, "validation": 30, "model": "tiny@1"}


def make_row(scorer: str, kind: str, **values: Any) -> dict[str, Any]:
    metrics = ("auroc", "brier", "error_recall_at_15pct", "error_recall_over_random")
    quality = {f"{name}{end}": 0.5 for name in metrics for end in ("", "_low", "_high")}
    marks = {"is_exported": False, "is_served": False, "unscored": 0, "forward_tokens": 100.0}
    return {"scorer": scorer, "kind": kind, **quality, **marks, **values}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project without answers, as the working directory."""
    create_empty_store(tmp_path / "data")
    (tmp_path / "params.yaml").write_text(SHIPPED["params.yaml"])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_draw_takes_whole_topics_until_there_are_enough() -> None:
    rows = [{"group": f"topic {number % 7}", "row": number} for number in range(21)]
    drawn = draw_topics(rows, 7, seed=1)
    assert len(drawn) == 9 and len({row["group"] for row in drawn}) == 3
    assert [row["row"] for row in drawn] == sorted(row["row"] for row in drawn)
    assert drawn == draw_topics(rows, 7, seed=1) and drawn != draw_topics(rows, 7, seed=2)
    assert draw_topics(rows, 999, seed=1) == rows


def test_latency_of_scorer_includes_perturbation_if_it_is_read() -> None:
    measured = {"probe: here": 10.0, "yes_score": 30.0, "regressors": 40.0, PERTURBATION: 500.0, "fusion": 80.0}
    expected = {
        ("lstm", "probe"): 10.0,
        ("yes_score", "signal"): 30.0,
        ("writer", "signal"): 0.0,
        ("forest_label", "regressor"): 540.0,
        ("fusion", "fusion"): 580.0,
        ("fusion_free", "fusion"): 10.0,
        ("base_rate", "baseline"): 0.0,
    }
    fusions = {"fusion": ["probe", "yes_score", "regressors"], "fusion_free": ["probe", "writer"]}
    found = map_latencies(measured, dict(expected.keys()), fusions, "probe: here")
    assert found == {name: ms for (name, _), ms in expected.items()}


def test_leaderboard_names_methods_and_what_is_unavailable(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = load_study(FILE, StudySource(project=project), {}, Settings(home=project / "home"))
    monkeypatch.setattr(type(study.workspace), "inputs", {"answers": {"data": "0123"}})
    board = {
        "rows": [
            make_row("linear", "probe", is_exported=True, auroc=0.8),
            make_row("familiarity", "signal", auroc=None, auroc_low=None, auroc_high=None),
        ],
        "unavailable": {"entailment": "A601: no model"},
        "counts": COUNTS,
        "figures": {"roc.svg": "<svg/>"},
    }
    outcomes = {"scorers": Outcome(board), "latency": Outcome(None, "the base model is gone")}
    report = study.make_report((), outcomes)
    assert "| linear (exported) | activation probe (Huang et al.) | 0.800 (0.500 to 0.500) |" in report.markdown
    assert "| familiarity | Self-Familiarity (Luo et al.) | not defined |" in report.markdown
    assert "entailment: A601: no model" in report.markdown and "Missing: the base model is gone" in report.markdown
    assert "40 test answers of 12 groups" in report.markdown and "small sample" in report.markdown
    assert report.figures == {"roc.svg": "<svg/>"} and report.document["missing"] == ["the base model is gone"]
    nothing = study.make_report((), dict.fromkeys(("scorers", "latency"), Outcome(None, "too few labels")))
    assert nothing.markdown.count("Missing: too few labels") == 1


@pytest.mark.heavy
def test_leaderboard_bad_input_is_one_line(project: Path) -> None:
    settings, source = Settings(home=project / "home"), StudySource(project=project)
    for sizes, tables, data, says in (
        ({"grid": (9, 9)}, (), None, "no size 'grid': there is reviews"),
        ({}, ("9",), None, "no table '9': there are leaderboard"),
        ({}, (), None, "no interactions in data/"),
        ({}, (), project, "has no file user_feedback.jsonl.gz: say with --data"),
    ):
        with pytest.raises(AbstainError, match=says):
            load_study(FILE, StudySource(data=data) if data else source, sizes, settings).list_parts(tables)


def test_failed_stage_is_the_reason_of_every_part(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = make_workspace(StudySource(project=project), {}, Settings(home=project / "home"))
    calls = []

    def fail(self: StageWorkspace, progress: object) -> None:
        calls.append(1)
        raise AbstainError(Code.TOO_FEW_LABELS, "no labelled rows")

    monkeypatch.setattr(StageWorkspace, "_prepare", lambda self: self.folder.mkdir(parents=True))
    monkeypatch.setattr(StageWorkspace, "_run", fail)
    for _ in range(2):
        with pytest.raises(AbstainError, match="no labelled rows"), workspace.open(lambda done, total: None):
            pass
    assert calls == [1]
