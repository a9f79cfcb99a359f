import json
import os
import pty
import select
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import yaml

from abstain.core.codes import Code
from abstain.sample.files import HANDBOOK, HISTORY
from tests.abstain_cli.conftest import assert_fails
from tests.conftest import Project, new_project
from tests.llm.builders import save_speaking_model

pytestmark = pytest.mark.slow

QUESTION = b"]: "
"""The end of a question, after its default."""
INTERRUPT, END_OF_INPUT = b"\x03", b"\x04"
"""Ctrl-C and Ctrl-D."""


def init_on_terminal(project: Project, *typed: bytes) -> tuple[int, str]:
    """Run `abstain init` on a terminal, at which each of `typed` answers a question or is a control character.

    Returns:
        Its exit status, and what the terminal showed.
    """
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "abstain_cli.app", "init", "--layout", "rag-plain-v1"]
    log_in = partial(os.login_tty, theirs)
    process = subprocess.Popen(command, cwd=project.root, env=project.environment, preexec_fn=log_in)
    os.close(theirs)
    shown, answers = b"", iter(typed)
    with suppress(OSError):  # as a terminal's end is reported where its last process is gone
        while part := read_part(ours, shown):
            shown += part
            if shown.endswith(QUESTION):
                os.write(ours, next(answers))
    os.close(ours)
    return process.wait(60), shown.decode().replace("\r\n", "\n")


def read_part(terminal: int, shown: bytes) -> bytes:
    """Read what the terminal shows next; b"" at its end.

    Ctrl-C is pressed again where it had no effect: Python does not see one between a question and the wait for its
    answer.
    """
    while not select.select([terminal], [], [], 2)[0]:
        if shown.endswith(b"^C"):
            os.write(terminal, INTERRUPT)
    return os.read(terminal, 4096)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, and with feedback."""
    folder = tmp_path_factory.mktemp("started")
    save_speaking_model(folder / "model", max_position_embeddings=8192)
    shutil.copytree(HANDBOOK, folder / "feedback" / "handbook")
    lines = HISTORY.read_text().splitlines(keepends=True)[::6]
    (folder / "feedback" / "history.jsonl").write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def fresh(folder: Path, prefect_server: str) -> Project:
    return replace(new_project(folder), server=prefect_server)


@pytest.fixture(scope="module")
def initialised(folder: Path, fresh: Project) -> tuple[int, str]:
    """Status and text of an `abstain init` in `fresh` whose questions are answered at a terminal."""
    answers = (str(folder / "model"), "0.11", "", "", str(folder / "remote"))
    return init_on_terminal(fresh, *(f"{answer}\n".encode() for answer in answers))


@pytest.fixture(scope="module")
def started(folder: Path, fresh: Project, initialised: tuple[int, str]) -> dict[str, str]:
    """What `ingest` and `retrain` print in the project; the edited parameters make it fast."""
    fresh.edit_params("architectures: [linear, lstm, attention]", "architectures: [linear]")
    fresh.edit_params("kinds: [gradient_boosting]", "kinds: []")
    fresh.compare_with("mean_log_prob")
    ingested = fresh.run("abstain", "ingest", str(folder / "feedback"))
    return {"ingest": ingested, "retrain": fresh.run("abstain", "retrain")}


def read_state(project: Project) -> list[str]:
    """The commit, what is changed since, and what other work trees there are."""
    worktrees = [str(path) for path in (project.root / ".git").glob("worktrees/*")]
    return [project.git("rev-parse", "HEAD"), project.git("status", "--porcelain"), *worktrees]


@pytest.mark.parametrize(
    "key", [INTERRUPT, pytest.param(END_OF_INPUT, marks=pytest.mark.soak(twin="test_init_left_changes_nothing"))]
)
def test_init_left_changes_nothing(fresh: Project, key: bytes) -> None:
    before = read_state(fresh)
    status, text = init_on_terminal(fresh, b"\n", key)
    questions, end = text.replace("^C", "").rsplit(QUESTION.decode(), 1)
    assert status == 130 and "Largest share" in questions.splitlines()[-1], text
    assert end.startswith("stopped") and end.count("\n") == 1 and read_state(fresh) == before


def test_init_on_a_terminal_writes_the_answers(fresh: Project, folder: Path, initialised: tuple[int, str]) -> None:
    status, shown = initialised
    assert status == 0 and "DVC remote" in shown and "Prompt layout" not in shown, shown
    root = fresh.root
    params = yaml.safe_load((root / "params.yaml").read_text())
    assert params["llm"]["model"] == str(folder / "model") and params["llm"]["layout"] == "rag-plain-v1"
    assert params["threshold"]["target"] == 0.11
    assert f"url = {folder / 'remote'}\n" in (root / ".dvc" / "config").read_text()


def test_empty_project_fails_with_a_remedy(fresh: Project, initialised: tuple[int, str]) -> None:
    repro, plan = fresh.command(["dvc", "repro"]), fresh.abstain("plan")
    lines = (repro.stdout + repro.stderr).splitlines()
    assert repro.returncode != 0 and not [line for line in lines if line.startswith(("WARNING", "Traceback"))]
    assert any(line.startswith("error A109: ") and "`abstain ingest FILE...`" in line for line in lines)
    assert plan.stdout.startswith("blocked: A109: "), plan.stdout + plan.stderr


def test_five_commands_promote_a_version(fresh: Project, started: dict[str, str]) -> None:
    assert "| 0 | quarantined |" in started["ingest"]
    assert "promoted: probe v1.0.0 is in production" in started["retrain"]
    assert "in production: probe v1.0.0, without a guarantee" in fresh.abstain("status").stdout
    history = fresh.git("log", "--format=%s", "main", cwd=fresh.home / "origin.git").splitlines()
    assert {"Start a project in place of the sample's", "Promote probe v1.0.0"} <= set(history)
    assert json.loads((fresh.root / "registry.json").read_text())["history"] == []
    assert fresh.git("status", "--porcelain") == ""


@pytest.mark.soak(twin="test_five_commands_promote_a_version")
def test_retrain_stage_error_is_one_line_without_promotion(folder: Path, prefect_server: str, tmp_path: Path) -> None:
    project = replace(new_project(tmp_path), server=prefect_server)
    project.run("abstain", "init", "--model", str(folder / "model"))
    project.edit_params("layer: auto ", "layer: 99 ")
    project.run("abstain", "ingest", str(folder / "feedback"))
    assert_fails(project.abstain("retrain"), Code.MODEL_UNSUITABLE, "layer 99", "layers 1 to ", "llm.layer")
    assert "Promote" not in project.git("log", "--oneline", "main", cwd=project.home / "origin.git")
