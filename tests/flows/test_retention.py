"""Retention in a project after nights and versions, and a restored copy of its home."""

import hashlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import history
from tests.conftest import ROOT, Project, copy_of

pytestmark = pytest.mark.slow

ABSTAIN = ("-m", "abstain_cli.app")
NIGHTS = """
from datetime import UTC, datetime, timedelta
from benchmarks.simulated_history import simulate
from abstain_tasks.runs.workspace import open_workspace
with open_workspace() as workspace:
    simulate(workspace, nights=6, versions=3, rejected=2, until=datetime.now(UTC) - timedelta(days=200))
"""
OPEN = """
from abstain_tasks.release.version_source import OriginVersionSource
releases = OriginVersionSource()
print(releases.fetch_bundle(releases.get_production()).name)
"""


def run(project: Project, *command: str) -> str:
    done = project.command(["python", *command])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture
def project(trained: tuple[Project, str], prefect_server: str, tmp_path: Path) -> Project:
    """A copy of the demo's project with a DVC cache and remote of its own, after six nights and three versions."""
    copy = replace(copy_of(trained[0], tmp_path / "copy"), server=prefect_server)
    for name in ("dvc-cache", "dvc-remote"):
        (copy.home / name).unlink()
        shutil.copytree(trained[0].home / name, copy.home / name)
    (copy.home / "features").unlink()  # `abstain cache prune` has tests of its own; which are needed, torch has to say
    run(copy, "-c", NIGHTS)
    return copy


def list_objects(folder: Path) -> set[str]:
    files = (folder / "files" / "md5").glob("*/*")
    return {f"{file.parent.name}{file.name}" for file in files}


def hash_output(night: int) -> str:
    return hashlib.md5(json.dumps({"night": night}).encode()).hexdigest()


def test_retention_keeps_live_and_tagged_and_restores(project: Project, tmp_path: Path) -> None:
    before = list_objects(project.home / "dvc-remote")
    assert {hash_output(0), hash_output(5)} <= before
    output = run(project, *ABSTAIN, "retention", "--apply")
    after = list_objects(project.home / "dvc-remote")
    assert "deleted" in output and hash_output(0) not in after, "only a commit of 205 days ago names it"
    assert hash_output(5) in after, "a tag names it"
    shutil.rmtree(project.home / "dvc-cache")
    assert run(project, "-c", OPEN).split() == ["v1.2.0"]
    assert "in production: probe v1.1.0" in run(project, *ABSTAIN, "rollback", "--reason", "a test")

    elsewhere = replace(project, root=tmp_path / "new" / "checkout", home=tmp_path / "new" / "home")
    left_out = re.findall(r"--exclude=\./([\w-]+)", (ROOT / "docs" / "howto" / "backup.md").read_text())
    assert "workspace" in left_out
    shutil.copytree(project.home, elsewhere.home, symlinks=True, ignore=shutil.ignore_patterns(*left_out))
    project.git("clone", "-q", str(elsewhere.home / "origin.git"), str(elsewhere.root))
    assert run(elsewhere, *ABSTAIN, "status") == run(project, *ABSTAIN, "status")
    assert "features          cached" in run(elsewhere, *ABSTAIN, "plan")


@pytest.mark.soak(twin="test_retention_keeps_live_and_tagged_and_restores")
def test_commands_after_year_of_nights_are_fast(
    trained: tuple[Project, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = trained[0]
    for name, value in project.environment.items():
        monkeypatch.setenv(name, value)
    found = {name: (few, many) for name, few, many in history.compare(project.root, dict(history.COMMANDS), rounds=3)}
    assert {
        name: many.median / few.median for name, (few, many) in found.items() if many.median > 1.5 * few.median
    } == {}
    assert found["retrain, nothing new"][1].median <= 20
    differs = {name for name, (few, many) in found.items() if few.calls != many.calls}
    assert differs <= {"erase-user"}, "which looks at every version"
