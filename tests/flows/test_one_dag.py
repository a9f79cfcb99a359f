"""The law: plain `dvc repro` and the Prefect flow make the same lock; and a run may be killed anywhere."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Project, read_lock

pytestmark = pytest.mark.slow

# Each waits for the one before, so none of them can be done when the run is killed at the one before it.
STAGES = ["validate", "dataset", "features", "train_probe", "tune_threshold", "export_onnx", "evaluate", "report"]


def retrain_until(project: Project, stage: str, signs: str) -> None:
    """Start `abstain retrain` and kill it with SIGKILL when `stage` prints a line that matches `signs`."""
    process = project.start([sys.executable, "-m", "flows.cli", "retrain"], stderr=subprocess.STDOUT)
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if re.match(f"{stage}: {signs}", line):
            os.kill(process.pid, signal.SIGKILL)
            break
    process.wait()
    assert process.returncode == -signal.SIGKILL, f"{stage} was never seen:\n{''.join(seen[-40:])}"


def shards_of(project: Project) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in (project.home / "features").rglob("*.safetensors")}


def test_killed_at_every_stage_it_completes_and_the_lock_is_that_of_dvc_repro(
    small_project: Project, tmp_path: Path
) -> None:
    shards: dict[Path, int] = {}
    for stage in STAGES:
        retrain_until(small_project, stage, r"progress [1-9]" if stage == "features" else "Running stage")
        if stage == "features":
            shards = shards_of(small_project)
            plan = small_project.abstain("plan").stdout
            counts = re.search(r"asked (\d+) things, (\d+) of which the cache does not have", " ".join(plan.split()))
            assert counts and 0 < int(counts[2]) < int(counts[1]), plan
    completed = small_project.abstain("retrain")
    assert completed.returncode == 0, completed.stdout[-3000:] + completed.stderr
    for stage in STAGES[:-1]:  # what had finished before a kill is not done again
        assert re.search(rf"^{stage} +cached", completed.stdout, re.MULTILINE), (stage, completed.stdout)
    now = shards_of(small_project)
    assert shards and all(now[file] == when for file, when in shards.items()), "a whole shard was computed again"
    assert not list((small_project.home / "features").rglob(".*")), "something half-written was left"
    origin = small_project.home / "origin.git"
    assert "Retrain" in small_project.git("log", "--oneline", "main", cwd=origin)

    laptop = Project(tmp_path / "laptop", tmp_path / "laptop-home")
    small_project.git("clone", "-q", str(small_project.root), str(laptop.root))
    (laptop.home).mkdir()
    (laptop.home / "models").symlink_to(small_project.home / "models")
    (tmp_path / "empty").mkdir(exist_ok=True)
    assert laptop.command(["dvc", "pull", "--quiet", "data.dvc"]).returncode == 0
    repro = laptop.command(["dvc", "repro"])
    assert repro.returncode == 0, repro.stdout[-2000:] + repro.stderr[-2000:]
    assert read_lock(laptop.root) == read_lock(small_project.workspace)
