"""Two writers of one origin, with real git and without DVC."""

import fcntl
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from abstain.core.errors import AbstainError
from abstain_tasks.runs.git_commit import OriginMoved, commit, push
from abstain_tasks.runs.shell import git
from abstain_tasks.runs.workspace import BRANCH, Workspace, hold_lock


@dataclass(frozen=True)
class Bare(Workspace):
    """A workspace without data."""

    def dvc(self, *arguments: str) -> str:
        return ""


@pytest.fixture
def workspaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Bare, Bare]:
    """Two clones of one origin."""
    monkeypatch.setenv("ABSTAIN_HOME", str(tmp_path / "home"))
    git(tmp_path, "init", "-q", "--bare", f"--initial-branch={BRANCH}", "origin.git")
    one, other = (Bare(tmp_path / name, -1) for name in ("one", "other"))
    git(tmp_path, "clone", "-q", "origin.git", "one")
    one.git("checkout", "-q", "-B", BRANCH)
    (one.path / "registry.json").write_text("{}")
    commit(one, "A project", "registry.json")
    push(one)
    git(tmp_path, "clone", "-q", "origin.git", "other")
    return one, other


def test_push_after_other_run_raises_origin_moved(workspaces: tuple[Bare, Bare]) -> None:
    faster, slower = workspaces
    for workspace in workspaces:
        (workspace.path / "registry.json").write_text(workspace.path.name)
        assert commit(workspace, workspace.path.name, "registry.json")
    slower.git("tag", "-a", "probe@v9.0.0", "-m", "t")
    push(faster)
    with pytest.raises(OriginMoved, match="the origin has moved"):
        push(slower, "probe@v9.0.0")
    assert slower.git("tag", "--list") == "" == slower.git("ls-remote", "--tags", "origin")
    slower.git("fetch", "-q", "origin")
    assert slower.git("show", f"origin/{BRANCH}:registry.json") == "one"


def test_push_forbidden_by_origin_raises_other_error(workspaces: tuple[Bare, Bare]) -> None:
    workspace = workspaces[0]
    hook = workspace.path.parent / "origin.git" / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho main is protected\nexit 1\n")
    hook.chmod(0o755)
    (workspace.path / "registry.json").write_text("x")
    commit(workspace, "x", "registry.json")
    with pytest.raises(AbstainError, match=r"hook declined\) main is protected$") as refused:
        push(workspace)
    assert not isinstance(refused.value, OriginMoved)


def test_hold_lock_second_waits(tmp_path: Path) -> None:
    file = tmp_path / "workspace.lock"
    second_has_it, done = threading.Event(), threading.Event()

    def write_second() -> None:
        with hold_lock(file):
            second_has_it.set()
            done.wait(60)

    second = threading.Thread(target=write_second, daemon=True)
    with hold_lock(file):
        second.start()
        assert not second_has_it.wait(0.5)
    assert second_has_it.wait(60)
    with file.open("w") as third, pytest.raises(BlockingIOError):
        fcntl.flock(third, fcntl.LOCK_EX | fcntl.LOCK_NB)
    done.set()
