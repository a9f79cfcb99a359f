import os
from pathlib import Path

import pytest

from abstain.config.settings import load_settings
from abstain_tasks.projects.demo_project import OWN_PLACES, demo_project
from abstain_tasks.projects.new_project import Choices, start_project
from abstain_tasks.runs.shell import git
from tests.checkout import SHIPPED
from tests.tasks.projects.test_new_project import Clone, choices, clone

__all__ = ["choices", "clone"]


def test_demo_project_is_as_shipped_and_separate(
    clone: Clone, choices: Choices, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_project(choices)
    clone.write("Runs", dvc_lock="stages: {}\n", notes_md="ours\n")
    clone.git("tag", "probe@v1.0.0")
    for name in OWN_PLACES:
        monkeypatch.setenv(name, "prefect" if name.endswith("RUNNER") else str(clone.root.parent / "team.git"))
    before, tags, environment = clone.state(), clone.git("tag"), dict(os.environ)
    with demo_project() as project:
        assert Path.cwd() == project == clone.home / "demo"
        settings = load_settings()
        assert settings.home == project / ".abstain" and settings.origin is None and settings.runner == "local"
        assert {name: (project / name).read_text() for name in SHIPPED} == SHIPPED
        assert (project / "notes.md").is_file() and not (project / "dvc.lock").exists()
        assert git(project, "status", "--porcelain") == "" and git(project, "tag") == ""
    assert (clone.state(), clone.git("tag"), dict(os.environ), Path.cwd()) == (before, tags, environment, clone.root)


def test_demo_project_takes_changes_of_clone(clone: Clone) -> None:
    with demo_project() as project:
        first = git(project, "rev-parse", "HEAD")
    with demo_project():
        assert git(project, "rev-parse", "HEAD") == first
    clone.git("rm", "-q", "dvc.yaml")
    (clone.root / "dvc.yaml").write_text("stages: {}  # not committed\n")
    clone.git("add", "dvc.yaml")
    (clone.root / "untracked.jsonl").write_text("{}\n")
    with demo_project():
        assert git(project, "rev-parse", "HEAD^") == first
        assert git(project, "show", "--name-only", "--format=").split() == ["dvc.yaml"]
