"""The studies that make their tables of a retrain's stages: here of stages that have run before."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import to_json

from abstain.config.params import Params
from abstain.config.settings import load_settings
from abstain.config.yaml_model import load_yaml_model
from abstain.core import paths
from abstain.stages.shared import artifacts
from studies.activation_probe import ProbeStudy
from studies.activation_probe.declared import DeclaredProbeStudy
from studies.leaderboard import DeclaredLeaderboard, LeaderboardStudy
from studies.leaderboard.sources import ProjectData
from studies.leaderboard.workspace import StageWorkspace
from studies.study import FOLDER, REMEDY, Outcome, Study
from tests.stages.conftest import Finished

pytestmark = pytest.mark.slow


class FinishedStages(StageWorkspace):
    """Stages that have run, in the working directory."""

    bank: Params
    inputs: dict[str, Any] = {"answers": {"drawn": "none"}}  # noqa: RUF012

    @contextmanager
    def open(self, progress: object) -> Iterator[Params]:
        yield self.bank


def compute(study: Study) -> dict[str, Outcome]:
    def check_progress(done: int, total: int) -> None:
        assert 0 <= done <= total

    return {
        part.title: Outcome(json.loads(to_json(part.compute(check_progress), inf_nan_mode="null")))
        for part in study.list_parts(())
    }


def test_studies_make_their_tables_of_finished_stages(finished: Finished, bank: Params, tmp_path: Path) -> None:
    stages = FinishedStages(ProjectData(tmp_path), "", load_settings())
    stages.bank = bank.model_copy(update={"probe": bank.probe.model_copy(update={"max_epochs": 2, "folds": 2})})
    board = load_yaml_model(FOLDER / "leaderboard.yaml", DeclaredLeaderboard, REMEDY).model_copy(update={"timed": 1})
    outcomes = compute(LeaderboardStudy(board, stages))
    scorers = {row["scorer"] for row in outcomes["scorers"].result["rows"]}
    expected = artifacts.read_json(paths.METRICS)["holdout"]["scorers"].keys()
    exported = artifacts.read_json(paths.PROBE_CHOICE)["exported"]
    assert scorers == {exported if name == "probe" else name for name in expected}
    ms = outcomes["latency"].result["ms"]
    assert ms.keys() == scorers and ms[exported] > 0 == ms["length_only"]
    markdown = LeaderboardStudy(board, stages).make_report((), outcomes).markdown
    assert all(f"| {name} " in markdown for name in scorers) and "Missing" not in markdown
    assert "entailment: A601" in markdown

    declared = load_yaml_model(FOLDER / "activation_probe.yaml", DeclaredProbeStudy, REMEDY)
    small = {
        "layers": (2,),
        "sites": ("residual",),
        "chunks": (1, 99, None),
        "architecture": "linear",
        "timed": 1,
        "runs": 2,
        "seeds": (1, 2),
    }
    study = ProbeStudy(declared.model_copy(update={**small, "huber": {"huber_lambda": (1.0,)}}), stages, None)
    outcomes = compute(study)
    assert outcomes["layers, k = 99"].result == {"rows": []}  # no answer has as many chunks
    assert outcomes["thresholds"].result["tables"].keys() == scorers
    assert len(outcomes["latency"].result["rows"][0]["mean"]) == 2
    (all_chunks,) = outcomes["layers, k = all"].result["rows"]
    assert all_chunks["thresholds"][0]["mark"] in ("0.5", "tuned") and 0 < all_chunks["auroc"] <= 1
    report = study.make_report((), outcomes)
    assert report.document["tables"].keys() == declared.tables.keys() and report.document["missing"] == {}
    assert report.figures.keys() == {"roc.svg", "precision.svg"} and "Missing" not in report.markdown
