import os
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from abstain.config.settings import load_settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain_tasks.runs.shell import environment, git, run, succeeds


def test_run_streams_and_returns_output(tmp_path: Path) -> None:
    seen: list[str] = []
    assert run(["sh", "-c", "echo one; echo two >&2"], tmp_path, seen.append) == "one\ntwo"
    assert seen == ["one", "two"]


def test_run_failure_has_reason_and_code(tmp_path: Path) -> None:
    own = f"error {AbstainError(Code.NO_ROWS, 'data/ is empty').message_with_code}"
    for line, code, reason in (
        (own, Code.NO_ROWS, "data/ is empty"),
        ("fatal: x", Code.FAILED_STEP, "x"),
        ("error: the disk is full", Code.FAILED_STEP, "the disk is full"),
    ):
        with pytest.raises(AbstainError, match=f"^`sh -c .*` failed: {reason}$") as error:
            run(["sh", "-c", f"echo noise; echo '{line}'; echo fatal: noise; exit 3"], tmp_path)
        assert error.value.code is code
    for command, message in (("false", "`false` failed"), ("no-such-command", "`no-such-command` is not installed")):
        with pytest.raises(AbstainError, match=message):
            run([command], tmp_path)


def test_git_refused_push_has_reason(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--bare", "origin.git")
    git(tmp_path, "clone", "-q", "origin.git", "one")
    git(tmp_path / "one", "commit", "-q", "--allow-empty", "-m", "one")
    git(tmp_path / "one", "push", "-q", "origin", "HEAD:refs/heads/main", "HEAD:refs/tags/v1")
    hook = tmp_path / "origin.git" / "hooks" / "update"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\ncase $1 in *heads*) exit 0;; esac\necho ask the owner\nexit 1\n")
    hook.chmod(0o755)
    git(tmp_path / "one", "commit", "-q", "--allow-empty", "-m", "other")
    with pytest.raises(AbstainError, match=r"v1 \(hook declined\) ask the owner$"):
        git(tmp_path / "one", "push", "-q", "--atomic", "origin", "HEAD:refs/heads/main", ":refs/tags/v1")


def test_run_inherits_file_descriptors(tmp_path: Path) -> None:
    read, write = os.pipe()
    try:
        run([sys.executable, "-c", f"import os; os.write({write}, b'here\\n')"], tmp_path, inherit=[write])
        assert os.read(read, 5) == b"here\n"
    finally:
        os.close(read)
        os.close(write)


def test_environment_has_no_telemetry_nor_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = environment(tmp_path)
    assert env["DO_NOT_TRACK"] == "1" and env["DVC_NO_ANALYTICS"] == "1"
    assert env["PYTHONPATH"].split(os.pathsep)[0] == str(tmp_path / "src")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ABSTAIN_FEATURES", "shared")
    assert environment(tmp_path)["ABSTAIN_FEATURES"] == str(tmp_path / "shared")
    monkeypatch.setenv("ABSTAIN_FEATURES", "s3://bucket/prefix")
    assert environment(tmp_path)["ABSTAIN_FEATURES"] == "s3://bucket/prefix"


def test_environment_has_git_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    assert environment(tmp_path)["GIT_AUTHOR_EMAIL"]
    assert succeeds(tmp_path, "git", "init", "-q", "r")
    assert succeeds(tmp_path / "r", "git", "commit", "--allow-empty", "-qm", "first")


TOKEN = "TOKEN%2F123"


class Origin(ThreadingHTTPServer):
    """A bare repository over HTTP that requires the token, and keeps the command lines of its callers."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), partial(_Handler, directory=str(folder)))
        self.commands: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://ci:{TOKEN}@127.0.0.1:{self.server_port}/origin.git"


class _Handler(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        lines = (" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))
        self.server.commands += [line for line in lines if "git" in line]
        if self.headers["Authorization"] == f"Basic {b64encode(b'ci:TOKEN/123').decode()}":
            super().do_GET()
        else:
            self.send_error(403)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def origin(tmp_path: Path) -> Iterator[Origin]:
    git(tmp_path, "init", "-q", "work")
    git(tmp_path / "work", "commit", "-q", "--allow-empty", "-m", "One")
    git(tmp_path, "clone", "-q", "--bare", "work", "origin.git")
    git(tmp_path / "origin.git", "update-server-info")
    with Origin(tmp_path) as serving:
        yield serving
        serving.shutdown()


@pytest.mark.heavy
def test_git_origin_token_is_sent_and_hidden(origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABSTAIN_ORIGIN", origin.url)
    url = load_settings().origin
    assert url == f"http://127.0.0.1:{origin.server_port}/origin.git"
    git(tmp_path, "clone", "-q", url, "clone")
    git(tmp_path / "clone", "fetch", "-q", "origin")
    assert "One" in git(tmp_path / "clone", "log", "-1", "--format=%s")
    assert any("remote-http" in command for command in origin.commands)
    assert not [command for command in origin.commands if "TOKEN" in command]
    assert "TOKEN" not in (tmp_path / "clone" / ".git" / "config").read_text()
    assert "TOKEN" not in repr(load_settings())
    monkeypatch.delenv("ABSTAIN_ORIGIN")
    with pytest.raises(AbstainError) as error:
        git(tmp_path, "clone", "-q", origin.url.replace("TOKEN", "OTHER"), "refused")
    assert "127.0.0.1" in error.value.message and "OTHER" not in error.value.message
