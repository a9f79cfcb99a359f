from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from tasks.shell import environment, git, run, succeeds


def test_output_is_streamed_and_returned(tmp_path: Path) -> None:
    seen: list[str] = []
    assert run(["sh", "-c", "echo one; echo two >&2"], tmp_path, seen.append) == "one\ntwo"
    assert seen == ["one", "two"]


def test_a_failure_is_the_line_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(AbstainError, match=r"^`sh -c .*` failed: the disk is full$"):
        run(["sh", "-c", "echo noise; echo 'error: the disk is full'; echo more; exit 3"], tmp_path)
    with pytest.raises(AbstainError, match="failed: it printed nothing"):
        run(["false"], tmp_path)


def test_failed_command_passes_on_the_code_of_its_error(tmp_path: Path) -> None:
    printed = f"error {AbstainError(Code.NO_ROWS, 'data/ is empty').coded}"
    for line, code, reason in ((printed, Code.NO_ROWS, "data/ is empty"), ("fatal: x", Code.FAILED_STEP, "x")):
        with pytest.raises(AbstainError, match=f"failed: {reason}$") as raised:
            run(["sh", "-c", f"echo '{line}'; echo fatal: noise; exit 1"], tmp_path)
        assert raised.value.code is code


@pytest.mark.parametrize("refuses", ["pre-receive", "update", "nothing"])
def test_refused_push_says_why(tmp_path: Path, refuses: str) -> None:
    git(tmp_path, "init", "-q", "--bare", "origin.git")
    for name in ("one", "other"):
        git(tmp_path, "clone", "-q", "origin.git", name)
        git(tmp_path / name, "commit", "-q", "--allow-empty", "-m", name)
    git(tmp_path / "one", "push", "-q", "origin", "HEAD:refs/heads/main", "HEAD:refs/tags/v1")
    if refuses != "nothing":
        git(tmp_path / "other", "pull", "-q", "--rebase", "origin", "main")
        hook = tmp_path / "origin.git" / "hooks" / refuses
        hook.parent.mkdir(exist_ok=True)
        hook.write_text("#!/bin/sh\ncase $1 in *heads*) exit 0;; esac\necho ask the owner\nexit 1\n")
        hook.chmod(0o755)
    why = {
        "pre-receive": r"\(pre-receive hook declined\) ask the owner$",
        "update": r"v1 \(hook declined\) ask the owner$",
        "nothing": r"main \(fetch first\)$",
    }
    with pytest.raises(AbstainError, match=why[refuses]):
        git(tmp_path / "other", "push", "-q", "--atomic", "origin", "HEAD:refs/heads/main", ":refs/tags/v1")


def test_a_command_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(AbstainError, match="`no-such-command` is not installed"):
        run(["no-such-command"], tmp_path)


def test_file_descriptors_are_inherited_when_asked(tmp_path: Path) -> None:
    read, write = os.pipe()
    try:
        run([sys.executable, "-c", f"import os; os.write({write}, b'here\\n')"], tmp_path, inherit=[write])
        assert os.read(read, 5) == b"here\n"
    finally:
        os.close(read)
        os.close(write)


def test_no_telemetry_and_the_workspace_s_own_code_first(tmp_path: Path) -> None:
    env = environment(tmp_path)
    assert env["DO_NOT_TRACK"] == "1" and env["DVC_NO_ANALYTICS"] == "1"
    assert env["PYTHONPATH"].split(os.pathsep)[0] == str(tmp_path / "src")


def test_a_relative_feature_cache_is_the_same_folder_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ABSTAIN_FEATURES", "shared")
    assert environment(tmp_path)["ABSTAIN_FEATURES"] == str(tmp_path / "shared")
    monkeypatch.setenv("ABSTAIN_FEATURES", "s3://bucket/prefix")
    assert environment(tmp_path)["ABSTAIN_FEATURES"] == "s3://bucket/prefix"


def test_somebody_commits_where_git_knows_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    assert environment(tmp_path)["GIT_AUTHOR_EMAIL"]
    assert succeeds(tmp_path, "git", "init", "-q", "r")
    assert succeeds(tmp_path / "r", "git", "commit", "--allow-empty", "-qm", "first")
