import subprocess
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer import Typer
from typer.testing import CliRunner

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain_cli import app as cli
from abstain_cli.terminal import console


def invoke(*arguments: str, app: Typer = cli.app, status: int = 0) -> str:
    """Run a command in this process, and return what it prints."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == status, (result.output, result.exception)
    return result.output


def fail(*arguments: str, app: Typer = cli.app) -> Code:
    """Run a command that fails, and return the code of its error."""
    error = CliRunner().invoke(app, arguments).exception
    assert isinstance(error, AbstainError)
    return error.code


def assert_fails(done: subprocess.CompletedProcess[str], code: Code, *words: str) -> None:
    """Assert that a command printed one line, an error with this code and these words."""
    assert done.returncode == 1, done.stdout + done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith(f"error {code}: ") and all(word in line for word in words), line


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that commands open as the workspace; the home is in it."""
    monkeypatch.setenv("ABSTAIN_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ABSTAIN_INDEX", raising=False)
    opened = nullcontext(SimpleNamespace(path=tmp_path))
    monkeypatch.setattr("abstain_tasks.runs.workspace.open_workspace", lambda: opened)
    monkeypatch.setattr(console, "width", 160)
    return tmp_path
