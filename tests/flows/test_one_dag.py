"""`dvc repro` and the flow make the same lock; a run, an ingest or a correction may be killed anywhere."""

import json
import re
import signal
import sqlite3
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import yaml

from abstain.config.settings import Settings
from abstain.core.contracts import Interaction, Thumb
from abstain.data.store.dataset import DataStore
from abstain.llm.engine.loading import find_model, load_model
from tests.conftest import MODELS, Project, read_lock

pytestmark = pytest.mark.slow

# Each waits for the one before, so none of them can be done when the run is killed at the one before it.
EVERY_STAGE = ["validate", "dataset", "features", "train_probe", "tune_threshold", "export_onnx", "evaluate", "report"]

AMID_FEATURES = r"stage \d+ of \d+: features [1-9]"
"""How the command line says that some of the features are computed."""


def list_shards(project: Project) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in (project.home / "features").rglob("*.safetensors")}


def require_half_planned(project: Project) -> None:
    plan = project.run("abstain", "plan", "-v")
    needed = r"need (\d+) results of the base model, (\d+) of which are not in the cache"
    counts = re.search(needed, " ".join(plan.split()))
    assert counts and 0 < int(counts[2]) < int(counts[1]), plan


def complete_retrain_after_kills(project: Project) -> None:
    """Kill a retrain with SIGKILL at each stage and complete it; what was finished is kept."""
    command = ["-m", "abstain_cli.app", "retrain"]
    shards: dict[Path, int] = {}
    for stage in EVERY_STAGE:
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
            require_half_planned(project)
    completed = project.run("python", *command)
    for stage in EVERY_STAGE[:-1]:  # what had finished before a kill is not done again
        assert re.search(rf"^{stage} +cached", completed, re.MULTILINE), (stage, completed)
    now = list_shards(project)
    assert all(now[file] == when for file, when in shards.items()), "a whole shard was computed again"
    assert not list((project.home / "features").rglob(".*")), "something half-written was left"
    assert "Retrain" in project.git("log", "--oneline", "main", cwd=project.home / "origin.git")


def clone_origin(project: Project, folder: Path) -> Project:
    """A clone of the origin on another machine, which has the models and finds what was pushed."""
    laptop = Project(folder / "laptop", folder / "laptop-home")
    project.git("clone", "-q", str(project.home / "origin.git"), str(laptop.root))
    laptop.home.mkdir()
    (laptop.home / "models").symlink_to(project.home / "models")
    (folder / "empty").mkdir(exist_ok=True)
    remote = laptop.command(["dvc", "config", "core.remote"]).stdout.strip()
    pushed_to = laptop.command(["dvc", "config", f"remote.{remote}.url"], cwd=project.workspace).stdout.strip()
    laptop.command(["dvc", "remote", "modify", "--local", remote, "url", pushed_to])
    return laptop


def repro_in_clone(project: Project, folder: Path) -> dict:
    """Return the lock that `dvc repro` makes in a clone of the origin, without cached features."""
    laptop = clone_origin(project, folder)
    (laptop.root / "dvc.lock").unlink()
    laptop.run("dvc", "pull", "--quiet", "data.dvc")
    laptop.run("dvc", "repro")
    return read_lock(laptop.root)


def test_dvc_finds_the_stages_of_the_flow_done(trained: tuple[Project, str], tmp_path: Path) -> None:
    laptop = clone_origin(trained[0], tmp_path)
    laptop.run("dvc", "pull", "--quiet")
    assert laptop.run("dvc", "status") == "Data and pipelines are up to date.\n"
    laptop.edit_params("  confidence: 0.9 ", "  confidence: 0.8 ")
    assert "tune_threshold:" in laptop.run("dvc", "status")


@pytest.mark.soak(twin="test_dvc_finds_the_stages_of_the_flow_done")
def test_dvc_repro_makes_same_lock_as_flow(trained: tuple[Project, str], tmp_path: Path) -> None:
    project = trained[0]
    flow = yaml.safe_load(project.git("show", "main:dvc.lock", cwd=project.home / "origin.git"))
    assert repro_in_clone(project, tmp_path) == flow


def write_first_layers(folder: Path, layers: int) -> None:
    """Write the first `layers` decoder blocks of the embedded model: its arithmetic for a fraction of the work."""
    settings = Settings(home=MODELS.parent)
    whole = load_model(find_model("smollm2-135m-instruct", settings), torch.device("cpu"), torch.float32)
    whole.model.model.layers = whole.model.model.layers[:layers]
    whole.model.config.num_hidden_layers = layers
    whole.model.save_pretrained(folder)
    whole.tokenizer.save_pretrained(folder)


@pytest.mark.soak(twin="test_retrain_stopped_leaves_no_stage_and_resumes")
def test_retrain_killed_at_every_stage_same_lock(small_project: Project, tmp_path: Path) -> None:
    params = yaml.safe_load((small_project.root / "params.yaml").read_text())
    write_first_layers(tmp_path / "model", 4)
    small_project.edit_params(params["llm"]["model"], str(tmp_path / "model"))
    complete_retrain_after_kills(small_project)
    assert repro_in_clone(small_project, tmp_path) == read_lock(small_project.workspace)


STEPS = ("move 3", "dvc add", "git commit", "dvc push", "git push", "end")
"""Of "move 3", some of the batch's files are in data/, the others are not."""

# The task without a server, which kills itself before the given step.
INGEST = """
import logging, os, signal, sys
from pathlib import Path
import abstain_tasks.data.ingest, abstain_tasks.runs.shell, abstain_tasks.runs.workspace
from abstain.ingest.sources.config import load_sources
from abstain.ingest.sources.files import make_explicit_sources
from abstain.config.settings import load_settings

abstain_tasks.data.ingest.publish_ingest = lambda *a, **k: None
abstain_tasks.data.ingest.get_run_logger = logging.getLogger
last, moved = sys.argv[1], 0

def die_at(step):
    if step == last:
        print("killed before", step, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

run, replace = abstain_tasks.runs.shell.run, Path.replace

def counted(command, *arguments, **more):
    die_at(" ".join(command[:2]))
    return run(command, *arguments, **more)

def moving(self, target):
    global moved
    if "-" in self.parts[-3] and "data" in str(target):
        moved += 1
        die_at(f"move {moved}")
    return replace(self, target)

with abstain_tasks.runs.workspace.open_workspace() as workspace:
    abstain_tasks.runs.shell.run = abstain_tasks.runs.workspace.run = counted
    Path.replace = moving
    if sys.argv[2:]:
        options = {"sources": make_explicit_sources(sys.argv[2:]), "replace_reason": "a wrong export"}
    else:
        options = {"sources": load_sources(workspace.path / "sources.yaml", load_settings().home), "remember": True}
    abstain_tasks.data.ingest.ingest_sources.fn(workspace, **options)
    die_at("end")
"""

DATABASE = "sources: [{name: app, kind: sql}]\n"
TABLES = """
CREATE TABLE IF NOT EXISTS interactions (
  interaction_id TEXT PRIMARY KEY, asked_at TEXT, question TEXT, answer TEXT, contexts TEXT, model TEXT);
CREATE TABLE IF NOT EXISTS feedback (interaction_id TEXT PRIMARY KEY, given_at TEXT, thumb TEXT, user TEXT);
"""


@pytest.fixture
def project(small_project: Project) -> Project:
    (small_project.root / "sources.yaml").write_text(DATABASE)
    small_project.git("commit", "-qam", "Our database")
    return small_project


def write_row(project: Project, number: int) -> None:
    with sqlite3.connect(project.home / "feedback.db") as database:
        database.executescript(TABLES)
        row = (f"x-{number}", f"2026-11-10T12:{number:02d}:00Z")
        database.execute("INSERT INTO interactions VALUES (?, ?, 'What?', 'That.', '[]', 'm@1')", row)
        database.execute("INSERT INTO feedback VALUES (?, ?, 'up', 'u-1')", row)


def list_ids(project: Project, contract: type[Interaction | Thumb]) -> list[str]:
    ids = (row.interaction_id for row in DataStore(project.workspace / "data").iter_rows(contract))
    return sorted(key for key in ids if key.startswith("x-"))


@pytest.mark.parametrize(
    "steps", [("git push",), pytest.param(STEPS, marks=pytest.mark.soak(twin="test_ingest_killed_is_exactly_once"))]
)
def test_ingest_killed_is_exactly_once(project: Project, steps: Sequence[str]) -> None:
    """One more row for each step, killed there and again."""
    for number, step in enumerate(steps):
        write_row(project, number)
        killed = project.command(["python", "-c", INGEST, step])
        assert killed.returncode != 0 and killed.stdout.endswith(f"killed before {step}\n"), killed.stderr
        project.run("python", "-c", INGEST, "")
        expected = sorted(f"x-{n}" for n in range(number + 1))
        assert list_ids(project, Interaction) == list_ids(project, Thumb) == expected, step
        assert not list(project.workspace.glob(".data-*")), "something half-written was left"
    batches = [json.loads(line) for line in (project.workspace / "data" / "batches.jsonl").open()]
    assert [batch["sources"] for batch in batches[1:]] == [["app"]] * len(steps), "a batch was recorded twice, or never"
    state = json.loads((project.workspace / "data" / "sources" / "app.json").read_text())
    assert state["tables"].keys() == {"interactions", "feedback"}


@pytest.mark.soak(twin="test_ingest_killed_is_exactly_once")
def test_correction_killed_is_all_or_nothing(project: Project, tmp_path: Path) -> None:
    """A marked version's answer and thumb for each step, killed there and again."""
    write_row(project, 0)
    project.run("python", "-c", INGEST, "")
    file = tmp_path / "corrected.jsonl"
    for number, step in enumerate(STEPS):
        version = f"probe@v1.{number}.0"
        project.git("tag", "--annotate", version, "-m", "t", cwd=project.workspace)
        project.git("push", "-q", "origin", version, cwd=project.workspace)
        head = project.git("ls-remote", "origin", "main", cwd=project.workspace)
        moment = {"asked_at": "2026-11-10T12:00:00Z"}
        answer = {"question": "What?", "answer": f"No. {number}", "contexts": [], "model": "m@1"}
        thumb = {"given_at": moment["asked_at"], "thumb": ("down", "up")[number % 2], "user": "u-1"}
        rows = [{"interaction_id": "x-0", **moment, **answer, "thumb": thumb}]
        rows.append({"interaction_id": f"x-new-{number}", **moment, **answer})
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        killed = project.command(["python", "-c", INGEST, step, str(file)])
        assert killed.returncode != 0 and killed.stdout.endswith(f"killed before {step}\n"), killed.stderr
        assert (project.git("ls-remote", "origin", "main", cwd=project.workspace) == head) == (step != "end")
        project.run("python", "-c", INGEST, "", str(file))
        store = DataStore(project.workspace / "data")
        assert [row.answer for row in store.iter_rows(Interaction) if row.interaction_id == "x-0"] == [f"No. {number}"]
        assert [row.thumb for row in store.iter_rows(Thumb) if row.interaction_id == "x-0"] == [thumb["thumb"]]
        registry = json.loads(project.git("show", "origin/main:registry.json", cwd=project.workspace))
        assert list(registry["tainted"]) == [f"v1.{minor}.0" for minor in range(number + 1)], step
    replaced = [batch.replaced for batch in store.read_batches() if batch.replaced]
    assert len(replaced) == len(STEPS), "a correction was recorded twice, or never"
