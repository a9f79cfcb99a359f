import fcntl
import threading
from pathlib import Path

import pytest

from abstain.core.errors import AbstainError
from abstain_tasks.runs.git_commit import OriginMoved, commit, push
from abstain_tasks.runs.shell import git
from abstain_tasks.runs.workspace import BRANCH, hold_lock
from tests.tasks.conftest import Plain


@pytest.fixture
def other(workspace: Plain, tmp_path: Path) -> Plain:
    git(tmp_path, "clone", "-q", "origin.git", "other")
    return Plain(tmp_path / "other", -1)


def test_push_after_other_run_raises_origin_moved(workspace: Plain, other: Plain) -> None:
    for writer in (workspace, other):
        (writer.path / "registry.json").write_text(writer.path.name)
        assert commit(writer, writer.path.name, "registry.json")
    other.git("tag", "-a", "probe@v9.0.0", "-m", "t")
    push(workspace)
    with pytest.raises(OriginMoved, match="the origin has moved"):
        push(other, "probe@v9.0.0")
    assert other.git("tag", "--list") == "" == other.git("ls-remote", "--tags", "origin")
    other.git("fetch", "-q", "origin")
    assert other.git("show", f"origin/{BRANCH}:registry.json") == "workspace"


def test_push_forbidden_by_origin_raises_other_error(workspace: Plain) -> None:
    hook = workspace.path.parent / "origin.git" / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho main is protected\nexit 1\n")
    hook.chmod(0o755)
    (workspace.path / "registry.json").write_text("x")
    commit(workspace, "x", "registry.json")
    with pytest.raises(AbstainError, match=r"\(pre-receive hook declined\) main is protected$") as refused:
        push(workspace)
    assert not isinstance(refused.value, OriginMoved)


@pytest.mark.heavy
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
