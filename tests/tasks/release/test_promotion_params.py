"""What a promotion decides is written so that nothing runs because of it, with real git and DVC."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest
import yaml

from abstain.config.params import load_params
from abstain.core import paths
from abstain.core.errors import AbstainError
from abstain.data.store.dataframes import read_frames
from abstain.data.store.dataset import DataStore
from abstain_tasks.release import promotion_params
from abstain_tasks.release.promotion_params import refill_holdout, write_promotion_params, write_rollback_params
from abstain_tasks.runs.run_params import edit_params
from abstain_tasks.runs.workspace import Workspace, open_workspace
from tests.conftest import Project, read_lock
from tests.learning.thresholds.builders import make_missing_guarantee
from tests.release.events import promotion

pytestmark = pytest.mark.slow


@pytest.fixture
def project(small_project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose DAG is the stage `dataset`, one for `choose_scorer`, and one after both; its hold-out is not
    frozen, and nothing is in production."""
    file = small_project.root / "dvc.yaml"
    dataset = yaml.safe_load(file.read_text())["stages"]["dataset"]
    dataset["deps"].remove("artifacts/validation.json")
    served, table = "artifacts/scorer_choice.json", "artifacts/dataset.json"
    stages = {
        "dataset": dataset,
        "choose_scorer": {"cmd": f"cp {table} {served}", "deps": [table], "params": ["serve"], "outs": [served]},
        "after": {"cmd": f"cp {served} artifacts/copy.json", "deps": [served], "outs": ["artifacts/copy.json"]},
    }
    file.write_text(yaml.safe_dump({"stages": stages}))
    (line,) = [line for line in (small_project.root / "params.yaml").read_text().splitlines() if "frozen_at: " in line]
    small_project.edit_params(line, "  holdout_frozen_at: null")
    for key, value in small_project.environment.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("PATH", f"{small_project.commands}:{small_project.environment['PATH']}")
    monkeypatch.chdir(small_project.root)
    return small_project


def status(workspace: Workspace) -> object:
    return json.loads(workspace.dvc("status", "--json"))


def table(workspace: Workspace) -> str:
    return hashlib.sha256((workspace.path / paths.DATASET).read_bytes()).hexdigest()


def test_the_first_promotion_freezes_the_holdout_and_moves_no_row(project: Project) -> None:
    with open_workspace() as workspace:
        workspace.dvc("repro", "--quiet")
        before, lock = table(workspace), read_lock(workspace.path)
        started = datetime.now(UTC)
        assert write_promotion_params(workspace, promotion(kind="fusion"))
        date = load_params(workspace.path / "params.yaml").split.holdout_frozen_at
        frames = read_frames(DataStore(workspace.path / paths.DATA))
        assert date is not None and date > started
        assert all(
            (frame[column] < date).all()
            for frame, column in (
                (frames.interactions, "asked_at"),
                (frames.thumbs, "given_at"),
                (frames.reviews, "reviewed_at"),
            )
        )
        assert status(workspace) == {}, "something would run right after the promotion"
        assert table(workspace) == before
        now = read_lock(workspace.path)
        assert now["stages"]["dataset"]["outs"] == lock["stages"]["dataset"]["outs"]
        assert now["stages"]["dataset"]["params"] != lock["stages"]["dataset"]["params"]
        assert load_params(workspace.path / "params.yaml").serve.current_kind == "fusion"
        text = (workspace.path / "params.yaml").read_text()
        assert not write_promotion_params(workspace, promotion(kind="fusion"))
        assert (workspace.path / "params.yaml").read_text() == text


def test_a_version_without_a_guarantee_freezes_nothing(project: Project) -> None:
    with open_workspace() as workspace:
        workspace.dvc("repro", "--quiet")
        assert write_promotion_params(workspace, promotion(guarantee=make_missing_guarantee()))
        params = load_params(workspace.path / "params.yaml")
        assert params.split.holdout_frozen_at is None and params.serve.current_kind == "probe"
        assert status(workspace) == {}


def test_after_a_roll_back_the_next_retrain_chooses_again(project: Project) -> None:
    with open_workspace() as workspace:
        workspace.dvc("repro", "--quiet")
        assert write_promotion_params(workspace, promotion(kind="fusion"))
        write_rollback_params(workspace, promotion(action="rollback"))
        assert load_params(workspace.path / "params.yaml").serve.current_kind == "probe"
        assert "choose_scorer" in status(workspace)  # type: ignore[operator]
        (workspace.path / "params.yaml").write_text("serve: {}\n")
        write_rollback_params(workspace, promotion(action="rollback"))
        assert (workspace.path / "params.yaml").read_text() == "serve: {}\n", "of another release: left as it is"


def test_where_rows_came_in_since_the_next_retrain_runs_the_stage(project: Project) -> None:
    with open_workspace() as workspace:
        workspace.dvc("repro", "--quiet")
        lock = read_lock(workspace.path)
        rows = sorted((workspace.path / paths.DATA / "feedback").glob("*.jsonl"))[0]
        rows.write_text("".join(rows.read_text().splitlines(keepends=True)[:-1]))
        assert write_promotion_params(workspace, promotion())
        assert read_lock(workspace.path)["stages"]["dataset"] == lock["stages"]["dataset"]
        assert "dataset" in status(workspace)  # type: ignore[operator]


def test_the_date_is_written_so_that_yaml_reads_a_text(project: Project) -> None:
    with open_workspace() as workspace:
        assert write_promotion_params(workspace, promotion())
        written = yaml.safe_load((workspace.path / "params.yaml").read_text())["split"]["holdout_frozen_at"]
        assert isinstance(written, str) and Path("params.yaml").read_text().count("\n") > 100


def test_a_refill_moves_the_hold_out_to_what_was_asked_since_the_freeze(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_workspace() as workspace:
        with pytest.raises(AbstainError, match="not frozen yet, .*leave out --refill-holdout"):
            refill_holdout(workspace)
        edit_params(workspace, {"split": {"holdout_frozen_at": "2026-09-01T00:00:00Z"}})
        with pytest.raises(AbstainError, match="reviewed answers about .* documents .* were asked since it was frozen"):
            refill_holdout(workspace)
        monkeypatch.setattr(promotion_params, "MIN_GROUPS", 1)
        edit_params(workspace, {"evaluation": {"min_n_eff": 1}})
        refill_holdout(workspace)
        split = load_params(workspace.path / paths.PARAMS).split
        newest = read_frames(DataStore(workspace.path / paths.DATA)).interactions["asked_at"].max()
        assert split.holdout_from == datetime(2026, 9, 1, tzinfo=UTC)
        assert split.holdout_frozen_at is not None and split.holdout_frozen_at > newest
        assert "Refill the hold-out" in workspace.git("log", "-1", "--format=%s")
        workspace.dvc("repro", "--quiet", "--single-item", "dataset")
        asked = read_frames(DataStore(workspace.path / paths.DATA)).interactions.set_index("interaction_id")["asked_at"]
        frame = pd.read_parquet(workspace.path / paths.DATASET)
        held = frame[frame["split"] == "holdout"]
        assert (asked[held["interaction_id"]] >= pd.Timestamp("2026-09-01", tz="UTC")).all()
