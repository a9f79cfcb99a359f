"""The workspace: origin, merge, lock and compare-and-swap, with real git and DVC."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from abstain.core.errors import AbstainError
from tasks.git_commit import commit, push
from tasks.workspace import Workspace, open_workspace
from tests.conftest import Project

pytestmark = pytest.mark.slow


@pytest.fixture
def project(small_project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    for key, value in small_project.environment.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(
        sys, "executable", str(small_project.commands / "python")
    )  # beside it is the `dvc` that is found
    monkeypatch.chdir(small_project.root)
    return small_project


def test_holds_the_data_and_the_checkout_s_commits(project: Project) -> None:
    with open_workspace() as workspace:
        assert (workspace.path / "data" / "interactions" / "000001.jsonl").stat().st_size > 1000
    project.edit_params("  hidden: 64", "  hidden: 32")
    with open_workspace() as workspace:
        assert "hidden: 32" in (workspace.path / "params.yaml").read_text()
        assert (workspace.path / "data" / "interactions" / "000001.jsonl").is_file()


def test_a_half_done_change_is_gone_at_the_next_run(project: Project) -> None:
    with open_workspace() as workspace:
        before = (workspace.path / "data" / "interactions" / "000001.jsonl").read_bytes()
        (workspace.path / "data" / "interactions" / "000001.jsonl").write_bytes(b"half a row")
        (workspace.path / "params.yaml").write_text("broken: [")
    with open_workspace() as workspace:
        assert (workspace.path / "data" / "interactions" / "000001.jsonl").read_bytes() == before
        assert workspace.git("status", "--porcelain") == ""


def test_the_lock_is_held_by_what_a_killed_run_left_behind(project: Project) -> None:
    with open_workspace() as workspace:
        left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], pass_fds=[workspace.lock])
    try:
        with (project.home / "workspace.lock").open("w") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        left.kill()
        left.wait()
    with (project.home / "workspace.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_of_two_pushes_the_second_is_refused_and_leaves_nothing(project: Project) -> None:
    with open_workspace() as workspace:
        rival = project.home / "rival"
        project.git("clone", "-q", str(project.home / "origin.git"), str(rival))
        (rival / "faster.txt").write_text("first")
        project.git("add", "faster.txt", cwd=rival)
        project.git("commit", "-qm", "faster", cwd=rival)
        project.git("push", "-q", "origin", "HEAD:main", cwd=rival)
        (workspace.path / "slower.txt").write_text("second")
        assert commit(workspace, "slower", "slower.txt")
        workspace.git("tag", "-a", "probe@v9.0.0", "-m", "t")
        with pytest.raises(AbstainError, match=r"the origin has moved .* run the command again"):
            push(workspace, "probe@v9.0.0")
        assert "probe@v9.0.0" not in workspace.git("tag", "--list")
    origin = project.home / "origin.git"
    assert project.git("tag", "--list", cwd=origin) == ""
    assert "slower" not in project.git("log", "--format=%s", "main", cwd=origin)


def test_data_that_are_nowhere_are_said_to_be(project: Project, tmp_path: Path) -> None:
    config = project.root / ".dvc" / "config"
    config.write_text(config.read_text().replace("remote = tests", "remote = local"))
    project.git("commit", "-qam", "A remote that lacks them")
    unreachable = r"data.dvc records is neither in the cache nor in the DVC remote"
    with pytest.raises(AbstainError, match=unreachable), open_workspace():
        pytest.fail("a workspace without its data was handed out")
    assert not (project.home / "workspace" / "data").exists()


def test_nothing_to_commit_is_no_commit(project: Project) -> None:
    with open_workspace() as workspace:
        assert isinstance(workspace, Workspace)
        head = workspace.git("rev-parse", "HEAD")
        assert not commit(workspace, "nothing", "data.dvc")
        assert workspace.git("rev-parse", "HEAD") == head


def test_a_commit_speaks_for_its_own_files_only(project: Project) -> None:
    with open_workspace() as workspace:
        (workspace.path / "dvc.lock").write_text("half a run")
        assert not commit(workspace, "ingest", "data.dvc")
        (workspace.path / "registry.json").write_text("{}")
        assert commit(workspace, "pointer", "registry.json", "not-there.json")
        assert workspace.git("show", "--name-only", "--format=").split() == ["registry.json"]


def test_what_a_killed_git_left_locked_is_opened(project: Project) -> None:
    with open_workspace() as workspace:
        (workspace.path / ".git" / "index.lock").touch()
        (workspace.path / "README.md").write_text("half a change")
    with open_workspace() as workspace:
        assert workspace.git("status", "--porcelain") == ""


def test_a_team_s_own_remote_is_left_where_it_is(project: Project) -> None:
    config = project.root / ".dvc" / "config"
    own = config.read_text().replace("../.abstain/dvc-remote", "s3://bank/abstain")
    with open_workspace() as workspace:
        assert str(project.home) in workspace.dvc("config", "remote.local.url")
    config.write_text(own)
    project.git("commit", "-qam", "Our bucket")
    with open_workspace() as workspace:
        assert workspace.dvc("config", "remote.local.url").strip() == "s3://bank/abstain"


def test_a_shallow_clone_will_do(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project.edit_params("  hidden: 64", "  hidden: 32")
    shallow = Project(tmp_path / "shallow", tmp_path / "shallow-home")
    project.git("clone", "-q", "--depth", "1", project.root.as_uri(), str(shallow.root))
    monkeypatch.setenv("ABSTAIN_HOME", str(shallow.home))
    monkeypatch.chdir(shallow.root)
    with open_workspace() as workspace:
        assert "hidden: 32" in (workspace.path / "params.yaml").read_text()
    shallow.edit_params("  hidden: 32", "  hidden: 16")
    with open_workspace() as workspace:
        assert "hidden: 16" in (workspace.path / "params.yaml").read_text()
        (workspace.path / "faster.txt").write_text("x")
        assert commit(workspace, "more", "faster.txt")
        push(workspace)
