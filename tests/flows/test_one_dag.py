"""`dvc repro` and the Prefect flow make the same lock, and a run may be killed anywhere."""

import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from abstain.config.settings import Settings
from abstain.llm.engine.loading import find_model, load_model
from tests.conftest import MODELS, Project, read_lock
from tests.tasks.runs.test_stopping import RETRAIN_DAG

pytestmark = pytest.mark.slow

# Each waits for the one before, so none of them can be done when the run is killed at the one before it.
EVERY_STAGE = ["validate", "dataset", "features", "train_probe", "tune_threshold", "export_onnx", "evaluate", "report"]

AMID_FEATURES = r"features: progress [1-9]|stage \d+ of \d+: features [1-9]"
"""How an observer and the command line say that some of the features are computed."""


def list_shards(project: Project) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in (project.home / "features").rglob("*.safetensors")}


def require_half_planned(project: Project) -> None:
    plan = project.run("abstain", "plan", "-v")
    counts = re.search(
        r"need (\d+) results of the base model, (\d+) of which are not in the cache", " ".join(plan.split())
    )
    assert counts and 0 < int(counts[2]) < int(counts[1]), plan


def complete_after_kills(
    project: Project, command: list[str], stages: list[str], amid_features: Callable[[Project], None] = lambda _: None
) -> None:
    """Kill Python's `command` with SIGKILL at each of `stages` and complete it; what was finished is kept."""
    shards: dict[Path, int] = {}
    for stage in stages:
        process = project.start(["python", *command], stderr=subprocess.STDOUT)
        sign, printed = AMID_FEATURES if stage == "features" else f"{stage}: Running stage", list[str]()
        for line in process.stdout or ():
            printed.append(line)
            if re.match(sign, line):
                process.kill()
                break
        assert process.wait() == -signal.SIGKILL, f"{stage} never ran:\n{''.join(printed[-40:])}"
        if stage == "features":
            shards = list_shards(project)
            assert shards, "no shard was finished when it was killed"
            amid_features(project)
    completed = project.run("python", *command)
    for stage in stages[:-1]:  # what had finished before a kill is not done again
        assert re.search(rf"^{stage} +cached", completed, re.MULTILINE), (stage, completed)
    now = list_shards(project)
    assert all(now[file] == when for file, when in shards.items()), "a whole shard was computed again"
    assert not list((project.home / "features").rglob(".*")), "something half-written was left"
    assert "Retrain" in project.git("log", "--oneline", "main", cwd=project.home / "origin.git")


def repro_in_clone(project: Project, folder: Path, shared: tuple[str, ...]) -> dict:
    """Return the lock that `dvc repro` makes in a clone of the origin, from nothing but `shared` parts of the home."""
    laptop = Project(folder / "laptop", folder / "laptop-home")
    project.git("clone", "-q", str(project.home / "origin.git"), str(laptop.root))
    laptop.home.mkdir()
    for name in shared:
        (laptop.home / name).symlink_to(project.home / name)
    (folder / "empty").mkdir(exist_ok=True)
    (laptop.root / "dvc.lock").unlink()
    remote = laptop.command(["dvc", "config", "core.remote"]).stdout.strip()
    pushed_to = laptop.command(["dvc", "config", f"remote.{remote}.url"], cwd=project.workspace).stdout.strip()
    laptop.command(["dvc", "remote", "modify", "--local", remote, "url", pushed_to])
    laptop.run("dvc", "pull", "--quiet", "data.dvc")
    laptop.run("dvc", "repro")
    return read_lock(laptop.root)


def test_dvc_repro_makes_same_lock_as_flow(trained: tuple[Project, str], tmp_path: Path) -> None:
    project = trained[0]
    flow = yaml.safe_load(project.git("show", "main:dvc.lock", cwd=project.home / "origin.git"))
    assert repro_in_clone(project, tmp_path, ("models", "features")) == flow


def test_retrain_killed_amid_features_completes(small_project: Project) -> None:
    file = small_project.root / "dvc.yaml"
    whole = yaml.safe_load(file.read_text())["stages"]
    whole["dataset"]["deps"].remove("artifacts/validation.json")
    file.write_text(yaml.safe_dump({"stages": {name: whole[name] for name in ("dataset", "features")}}))
    small_project.git("commit", "-qam", "A DAG from the labels to the features")
    small_project.compare_with("sequence_log_prob")  # enough for several shards
    complete_after_kills(small_project, ["-c", RETRAIN_DAG], ["features"])


def write_first_layers(folder: Path, layers: int) -> None:
    """Write the first `layers` decoder blocks of the embedded model: its arithmetic for a fraction of the work."""
    settings = Settings(home=MODELS.parent)
    whole = load_model(find_model("smollm2-135m-instruct", settings), torch.device("cpu"), torch.float32)
    whole.model.model.layers = whole.model.model.layers[:layers]
    whole.model.config.num_hidden_layers = layers
    whole.model.save_pretrained(folder)
    whole.tokenizer.save_pretrained(folder)


@pytest.mark.soak(twin="test_retrain_killed_amid_features_completes")
def test_retrain_killed_at_every_stage_same_lock(small_project: Project, tmp_path: Path) -> None:
    params = yaml.safe_load((small_project.root / "params.yaml").read_text())
    write_first_layers(tmp_path / "model", 4)
    small_project.edit_params(params["llm"]["model"], str(tmp_path / "model"))
    complete_after_kills(small_project, ["-m", "abstain_cli.app", "retrain"], EVERY_STAGE, require_half_planned)
    assert repro_in_clone(small_project, tmp_path, ("models",)) == read_lock(small_project.workspace)
