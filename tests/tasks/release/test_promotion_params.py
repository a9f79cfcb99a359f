import json
from collections.abc import Iterator
from datetime import UTC, datetime

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
from abstain_tasks.runs.git_commit import commit, push
from abstain_tasks.runs.run_params import edit_params
from abstain_tasks.runs.workspace import Workspace, open_workspace
from tests.conftest import Project, clone_small, read_lock
from tests.learning.thresholds.builders import make_missing_guarantee
from tests.release.builders import promotion

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def project(
    small_template: Project, prefect_server: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Project]:
    """The stages `dataset`, `choose_scorer` and one after both have run; nothing is frozen or in production."""
    project = clone_small(small_template, prefect_server, tmp_path_factory.mktemp("params") / "small")
    file = project.root / "dvc.yaml"
    dataset = yaml.safe_load(file.read_text())["stages"]["dataset"]
    dataset["deps"].remove("artifacts/validation.json")
    served, table = "artifacts/scorer_choice.json", "artifacts/dataset.json"
    stages = {
        "dataset": dataset,
        "choose_scorer": {"cmd": f"cp {table} {served}", "deps": [table], "params": ["serve"], "outs": [served]},
        "after": {"cmd": f"cp {served} artifacts/copy.json", "deps": [served], "outs": ["artifacts/copy.json"]},
    }
    file.write_text(yaml.safe_dump({"stages": stages}))
    (line,) = [line for line in (project.root / "params.yaml").read_text().splitlines() if "frozen_at: " in line]
    project.edit_params(line, "  holdout_frozen_at: null")
    with pytest.MonkeyPatch.context() as monkeypatch:
        project.enter(monkeypatch)
        with open_workspace() as workspace:
            workspace.dvc("repro", "--quiet")
            commit(workspace, "Run the stages", "dvc.lock")
            push(workspace)
        yield project


@pytest.fixture
def workspace(project: Project) -> Iterator[Workspace]:
    with open_workspace() as workspace:
        yield workspace


def read_stale(workspace: Workspace) -> dict[str, object]:
    return json.loads(workspace.dvc("status", "--json"))


def test_write_promotion_params_guarantee_freezes_rows_stay(workspace: Workspace) -> None:
    before, lock = (workspace.path / paths.DATASET).read_bytes(), read_lock(workspace.path)
    file = workspace.path / "params.yaml"
    assert write_promotion_params(workspace, promotion(guarantee=make_missing_guarantee()))
    params, started_at = load_params(file), datetime.now(UTC)
    assert params.split.holdout_frozen_at is None and params.serve.current_scorer == "probe"
    assert read_stale(workspace) == {}

    assert write_promotion_params(workspace, promotion(scorer="fusion"))
    params = load_params(file)
    frozen_at, frames = params.split.holdout_frozen_at, read_frames(DataStore(workspace.path / paths.DATA))
    assert frozen_at is not None and frozen_at > started_at and params.serve.current_scorer == "fusion"
    assert isinstance(yaml.safe_load(file.read_text())["split"]["holdout_frozen_at"], str)
    for times in (frames.interactions["asked_at"], frames.thumbs["given_at"], frames.reviews["reviewed_at"]):
        assert (times < frozen_at).all()
    assert read_stale(workspace) == {} and (workspace.path / paths.DATASET).read_bytes() == before
    written = read_lock(workspace.path)
    assert written["stages"]["dataset"]["outs"] == lock["stages"]["dataset"]["outs"]
    assert written["stages"]["dataset"]["params"] != lock["stages"]["dataset"]["params"]
    text = file.read_text()
    assert not write_promotion_params(workspace, promotion(scorer="fusion")) and file.read_text() == text

    write_rollback_params(workspace, promotion(action="rollback"))
    assert load_params(file).serve.current_scorer == "probe" and "choose_scorer" in read_stale(workspace)
    file.write_text("serve: {}\n")
    write_rollback_params(workspace, promotion(action="rollback"))
    assert file.read_text() == "serve: {}\n", "of another release: left as it is"


def test_write_promotion_params_stale_stage_stays_stale(workspace: Workspace) -> None:
    lock = read_lock(workspace.path)
    file = sorted((workspace.path / paths.DATA / "feedback").glob("*.jsonl"))[0]
    lines = file.read_text().splitlines(keepends=True)
    file.unlink()  # a link to the cache
    file.write_text("".join(lines[:-1]))
    assert write_promotion_params(workspace, promotion())
    assert read_lock(workspace.path)["stages"]["dataset"] == lock["stages"]["dataset"]
    assert "dataset" in read_stale(workspace)


def test_refill_holdout_takes_answers_since_freeze(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AbstainError, match="--refill-holdout"):
        refill_holdout(workspace)
    edit_params(workspace, {"split": {"holdout_frozen_at": "2026-09-01T00:00:00Z"}})
    with pytest.raises(AbstainError, match="asked since it was frozen"):
        refill_holdout(workspace)
    monkeypatch.setattr(promotion_params, "MIN_GROUPS", 1)
    edit_params(workspace, {"evaluation": {"min_n_eff": 1}})
    refill_holdout(workspace)
    split = load_params(workspace.path / paths.PARAMS).split
    asked_at = read_frames(DataStore(workspace.path / paths.DATA)).interactions.set_index("interaction_id")["asked_at"]
    assert split.holdout_from == datetime(2026, 9, 1, tzinfo=UTC)
    assert split.holdout_frozen_at is not None and split.holdout_frozen_at > asked_at.max()
    assert "Refill the hold-out" in workspace.git("log", "-1", "--format=%s")
    workspace.dvc("repro", "--quiet", "--single-item", "dataset")
    frame = pd.read_parquet(workspace.path / paths.DATASET)
    holdout = frame[frame["split"] == "holdout"]
    assert (asked_at[holdout["interaction_id"]] >= pd.Timestamp("2026-09-01", tz="UTC")).all()
