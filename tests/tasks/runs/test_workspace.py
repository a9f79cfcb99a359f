import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from abstain.core.errors import AbstainError
from abstain_tasks.runs.git_commit import commit, push
from abstain_tasks.runs.workspace import open_workspace
from tests.conftest import Project

pytestmark = pytest.mark.slow


@pytest.fixture
def project(small_project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    small_project.enter(monkeypatch)
    return small_project


def test_open_workspace_after_killed_run_is_clean(project: Project) -> None:
    with open_workspace() as workspace:
        rows = workspace.path / "data" / "interactions" / "000001.jsonl"
        before = rows.read_bytes()
        assert len(before) > 1000
        left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], pass_fds=[workspace.lock])
        rows.write_bytes(b"half a row")
        (workspace.path / "params.yaml").write_text("broken: [")
        (workspace.path / ".git" / "index.lock").touch()  # as a killed git leaves it
    with (project.home / "workspace.lock").open("w") as other:
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)  # what a killed run left behind holds the lock
        left.kill()
        left.wait()
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    project.edit_params("  hidden: 64", "  hidden: 32")
    with open_workspace() as workspace:
        assert rows.read_bytes() == before
        assert "hidden: 32" in (workspace.path / "params.yaml").read_text()
        assert workspace.git("status", "--porcelain") == ""
        head = workspace.git("rev-parse", "HEAD")
        assert not commit(workspace, "nothing", "data.dvc")
        assert workspace.git("rev-parse", "HEAD") == head
        (workspace.path / "dvc.lock").write_text("half a run")
        assert not commit(workspace, "ingest", "data.dvc"), "a commit is of its own files only"
        (workspace.path / "registry.json").write_text("{}")
        assert commit(workspace, "pointer", "registry.json", "not-there.json")
        assert workspace.git("show", "--name-only", "--format=").split() == ["registry.json"]


def test_open_workspace_remote_must_have_data(project: Project) -> None:
    config = project.root / ".dvc" / "config"
    text = config.read_text()
    config.write_text(text.replace("remote = tests", "remote = local"))
    project.git("commit", "-qam", "A remote that lacks them")
    with pytest.raises(AbstainError, match=r"data\.dvc"), open_workspace():
        pytest.fail("a workspace without its data was handed out")
    assert not (project.home / "workspace" / "data").exists()
    config.write_text(text)
    project.git("commit", "-qam", "The one that has them")
    with open_workspace() as workspace:
        assert str(project.home) in workspace.dvc("config", "remote.local.url")
    config.write_text(text.replace("../.abstain/dvc-remote", "s3://bank/abstain"))
    project.git("commit", "-qam", "Our bucket")
    with open_workspace() as workspace:
        assert workspace.dvc("config", "remote.local.url").strip() == "s3://bank/abstain"


def test_open_workspace_bad_origin_leaves_nothing(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABSTAIN_ORIGIN", str(project.home / "nowhere.git"))
    before = {path.name for path in project.home.iterdir()} | {"workspace.lock"}
    with pytest.raises(AbstainError, match=r"^[^\n]*nowhere.git[^\n]*$"), open_workspace():
        pytest.fail("a workspace without an origin was handed out")
    assert {path.name for path in project.home.iterdir()} == before


def test_open_workspace_from_shallow_clone(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
