import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import yaml

from abstain.core.codes import Code
from abstain.sample.files import HANDBOOK, HISTORY
from abstain_tasks.server.addresses import post
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
    process = subprocess.Popen(
        command, cwd=project.root, env=project.environment, preexec_fn=partial(os.login_tty, theirs)
    )
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


@dataclass(frozen=True)
class Assistant:
    """A project with the results of commands in it."""

    project: Project
    results: dict[str, subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model."""
    folder = tmp_path_factory.mktemp("started")
    save_speaking_model(folder / "model", max_position_embeddings=8192)
    return folder


@pytest.fixture(scope="module")
def fresh(folder: Path, prefect_server: str) -> Project:
    """A checkout of the sample's project."""
    return replace(new_project(folder), server=prefect_server)


@pytest.fixture(scope="module")
def initialised(folder: Path, fresh: Project) -> tuple[int, str]:
    """Status and text of an `abstain init` in `fresh` whose questions are answered at a terminal."""
    answers = (str(folder / "model"), "0.11", "", "", str(folder / "remote"))
    return init_on_terminal(fresh, *(f"{answer}\n".encode() for answer in answers))


@pytest.fixture(scope="module")
def started(folder: Path, fresh: Project, initialised: tuple[int, str]) -> Assistant:
    """The project after `ingest` and `retrain`; the edited parameters make it fast."""
    project = fresh
    project.edit_params("architectures: [linear, lstm, attention]", "architectures: [linear]")
    project.edit_params("kinds: [gradient_boosting]", "kinds: []")
    project.compare_with("mean_log_prob")
    shutil.copytree(HANDBOOK, folder / "feedback" / "handbook")
    lines = HISTORY.read_text().splitlines(keepends=True)[::6]
    (folder / "feedback" / "history.jsonl").write_text("".join(lines))
    results = {"ingest": project.abstain("ingest", str(folder / "feedback")), "retrain": project.abstain("retrain")}
    return Assistant(project, results)


def read_state(project: Project) -> list[str]:
    """The commit, what is changed since, and what other work trees there are."""
    worktrees = [str(path) for path in (project.root / ".git").glob("worktrees/*")]
    return [project.git("rev-parse", "HEAD"), project.git("status", "--porcelain"), *worktrees]


@pytest.mark.parametrize(
    "key",
    [
        INTERRUPT,
        pytest.param(END_OF_INPUT, marks=pytest.mark.soak(twin="test_init_left_at_a_terminal_changes_nothing")),
    ],
)
def test_init_left_at_a_terminal_changes_nothing(fresh: Project, key: bytes) -> None:
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


def test_five_commands_promote_a_version(started: Assistant) -> None:
    project, results = started.project, started.results
    for name in ("ingest", "retrain"):
        assert results[name].returncode == 0, results[name].stdout + results[name].stderr
    assert "| 0 | quarantined |" in results["ingest"].stdout
    assert "promoted: probe v1.0.0 is in production" in results["retrain"].stdout
    assert "in production: probe v1.0.0, without a guarantee" in project.abstain("status").stdout
    history = project.git("log", "--format=%s", "main", cwd=project.home / "origin.git").splitlines()
    assert {"Start a project in place of the sample's", "Promote probe v1.0.0"} <= set(history)
    assert json.loads((project.root / "registry.json").read_text())["history"] == []
    assert project.git("status", "--porcelain") == ""


@pytest.fixture(scope="module")
def second(started: Assistant, tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, int]:
    """A second assistant beside the first, as docs/howto/two-assistants.md has it, and how many runs it has begun."""
    first, folder = started.project, started.project.root.parent
    runs = count_runs(first)
    project = replace(new_project(tmp_path_factory.mktemp("second")), server=first.server)
    project.run("abstain", "init", "--model", str(folder / "model"))
    site = yaml.safe_load(first.git("show", "main:params.yaml", cwd=first.home / "origin.git"))["llm"]
    params = project.root / "params.yaml"
    params.write_text(params.read_text().replace("site: residual ", f"site: {site['site']} "))
    project.edit_params("layer: auto ", f"layer: {site['layer']} ")
    project.edit_params("kinds: [gradient_boosting]", "kinds: []")
    project.compare_with("mean_log_prob")
    project.run("abstain", "ingest", str(folder / "feedback"))
    return project, count_runs(first) - runs


@pytest.mark.soak(twin="test_five_commands_promote_a_version")
def test_second_assistant_shares_only_cache_and_server(started: Assistant, second: tuple[Project, int]) -> None:
    project, runs = second
    shared = ["env", f"ABSTAIN_FEATURES={started.project.home / 'features'}", "python", "-m", "abstain_cli.app"]
    assert re.search(r"features +runs .* 0 tokens", project.command([*shared, "plan"]).stdout)
    assert re.search(r"features +runs .* [1-9][\d,]+ tokens", project.abstain("plan").stdout)
    assert "nothing is in production" in project.abstain("status").stdout and runs == 1


@pytest.mark.soak(twin="test_five_commands_promote_a_version")
def test_retrain_stage_error_is_one_line_without_promotion(second: tuple[Project, int]) -> None:
    project, _ = second
    layer = yaml.safe_load((project.root / "params.yaml").read_text())["llm"]["layer"]
    project.edit_params(f"layer: {layer} ", "layer: 99 ")
    assert_fails(project.abstain("retrain"), Code.MODEL_UNSUITABLE, "layer 99", "layers 1 to ", "llm.layer")
    assert "Promote" not in project.git("log", "--oneline", "main", cwd=project.home / "origin.git")


def count_runs(project: Project) -> int:
    return int(post(f"{project.server}/flow_runs/count", {}))
