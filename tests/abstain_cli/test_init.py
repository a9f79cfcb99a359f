"""`abstain init` as a user meets it: five commands to a version, questions on a terminal, bad input in one line."""

from __future__ import annotations

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

import onnx
import pytest
import yaml

from abstain.sample.files import HANDBOOK, HISTORY
from abstain_tasks.server.addresses import post
from tests.conftest import Project, copy_of, new_project, read_json
from tests.llm.builders import save_speaking_model

pytestmark = pytest.mark.slow

QUESTION = b"]: "
"""The end of a question, after its default."""
INTERRUPT, END_OF_INPUT = b"\x03", b"\x04"
"""Ctrl-C and Ctrl-D."""


@pytest.fixture
def project(tmp_path: Path, prefect_server: str) -> Project:
    return replace(new_project(tmp_path), server=prefect_server)


def on_a_terminal(project: Project, *typed: bytes) -> tuple[int, str]:
    """`abstain init` with a terminal of its own, at which each of `typed` answers a question; a control character does
    what it does at a terminal. Its status, and what the terminal showed."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "abstain_cli.app", "init", "--layout", "rag-plain-v1"]
    process = subprocess.Popen(
        command, cwd=project.root, env=project.environment, preexec_fn=partial(os.login_tty, theirs)
    )
    os.close(theirs)
    shown, answers = b"", iter(typed)
    with suppress(OSError):  # as a terminal's end is reported where its last process is gone
        while part := next_part(ours, shown):
            shown += part
            if shown.endswith(QUESTION):
                os.write(ours, next(answers))
    os.close(ours)
    return process.wait(60), shown.decode().replace("\r\n", "\n")


def next_part(terminal: int, shown: bytes) -> bytes:
    """What the terminal shows next; b"" at its end. Ctrl-C is pressed again where it had no effect.

    Python does not see one that comes after it has shown a question, and before it waits for the answer.
    """
    while not select.select([terminal], [], [], 2)[0]:
        if shown.endswith(b"^C"):
            os.write(terminal, INTERRUPT)
    return os.read(terminal, 4096)


def test_questions_on_a_terminal_have_defaults_and_can_be_left(project: Project, tmp_path: Path) -> None:
    before = project.git("rev-parse", "HEAD")
    for control in (END_OF_INPUT, INTERRUPT):
        status, shown = on_a_terminal(project, b"\n", control)
        asked, said = shown.replace("^C", "").rsplit(QUESTION.decode(), 1)
        assert status == 130 and "Largest share" in asked.splitlines()[-1], shown
        assert said.startswith("stopped") and said.count("\n") == 1
        assert project.git("rev-parse", "HEAD") == before and project.git("status", "--porcelain") == ""
        assert not (project.root / ".git" / "worktrees").exists()
    model = save_speaking_model(tmp_path / "model", max_position_embeddings=8192)
    answers = (str(model), "0.2", "", "", str(tmp_path / "remote"))
    status, shown = on_a_terminal(project, *(f"{answer}\n".encode() for answer in answers))
    assert status == 0 and "DVC remote" in shown and "Prompt layout" not in shown, shown
    params = yaml.safe_load((project.root / "params.yaml").read_text())
    assert params["llm"]["model"] == str(model) and params["llm"]["layout"] == "rag-plain-v1"
    assert params["threshold"]["target"] == 0.2
    assert f"url = {tmp_path / 'remote'}\n" in (project.root / ".dvc" / "config").read_text()
    assert project.git("rev-parse", "HEAD^") == before


def test_outside_a_clone_is_one_line(project: Project, tmp_path: Path) -> None:
    done = project.abstain("init", cwd=tmp_path)
    assert done.returncode == 1 and done.stderr.startswith("error A506: ") and done.stderr.count("\n") == 1


@dataclass(frozen=True)
class Assistant:
    """A project after `abstain init`, `ingest` and `retrain`, with what each command said."""

    project: Project
    said: dict[str, subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory, prefect_server: str) -> Assistant:
    """After the five commands, of which clone and `make setup` are those of all projects of the tests.

    The few lines that are edited make it fast.
    """
    folder = tmp_path_factory.mktemp("started")
    model = save_speaking_model(folder / "model", max_position_embeddings=8192)
    project = replace(new_project(folder), server=prefect_server)
    said = {"init": project.abstain("init", "--model", str(model), "--remote", str(folder / "remote"))}
    said |= {"repro": project.command(["dvc", "repro"]), "plan": project.abstain("plan")}
    project.edit_params("architectures: [linear, lstm, attention]", "architectures: [linear]")
    project.edit_params("kinds: [gradient_boosting]", "kinds: []")
    project.compare_with("mean_log_prob")
    shutil.copytree(HANDBOOK, folder / "feedback" / "handbook")
    lines = HISTORY.read_text().splitlines(keepends=True)[::3]
    (folder / "feedback" / "history.jsonl").write_text("".join(lines))
    said |= {"ingest": project.abstain("ingest", str(folder / "feedback")), "retrain": project.abstain("retrain")}
    return Assistant(project, said)


def test_five_commands_lead_to_a_version(started: Assistant) -> None:
    project, said = started.project, started.said
    for name in ("init", "ingest", "retrain"):
        assert said[name].returncode == 0, said[name].stdout + said[name].stderr
    assert "| 0 | quarantined |" in said["ingest"].stdout
    assert "promoted: probe v1.0.0 is in production" in said["retrain"].stdout
    assert "in production: probe v1.0.0, without a guarantee" in project.abstain("status").stdout
    history = project.git("log", "--format=%s", "main", cwd=project.home / "origin.git").splitlines()
    assert {"Start a project in place of the sample's", "Promote probe v1.0.0"} <= set(history)
    assert json.loads((project.root / "registry.json").read_text())["history"] == []
    assert project.git("status", "--porcelain") == ""


def test_empty_project_says_in_one_line_what_to_do(started: Assistant) -> None:
    repro, plan = started.said["repro"], started.said["plan"]
    lines = (repro.stdout + repro.stderr).splitlines()
    assert repro.returncode != 0 and not [line for line in lines if line.startswith(("WARNING", "Traceback"))]
    assert "error A109: no interactions in data/: run `abstain ingest FILE...` first" in lines
    assert plan.stdout.startswith("blocked: A109: no interactions in data/"), plan.stdout + plan.stderr


def test_second_assistant_shares_the_cache_and_the_server_alone(started: Assistant, tmp_path: Path) -> None:
    """As docs/howto/two-assistants.md has it."""
    first, folder = started.project, started.project.root.parent
    second = replace(new_project(tmp_path), server=first.server)
    abstain = ["env", f"ABSTAIN_FEATURES={first.home / 'features'}", "python", "-m", "abstain_cli.app"]
    runs = flow_runs(first)
    assert second.abstain("init", "--model", str(folder / "model")).returncode == 0
    site = yaml.safe_load(first.git("show", "main:params.yaml", cwd=first.home / "origin.git"))["llm"]
    second.edit_params("layer: auto ", f"layer: {site['layer']} ")
    second.edit_params("site: residual ", f"site: {site['site']} ")
    second.edit_params("kinds: [gradient_boosting]", "kinds: []")
    second.compare_with("mean_log_prob")
    taken = second.command([*abstain, "ingest", str(folder / "feedback")])
    assert taken.returncode == 0, taken.stdout + taken.stderr
    assert re.search(r"features +runs .* 0 tokens", second.command([*abstain, "plan"]).stdout)
    assert re.search(r"features +runs .* [1-9][\d,]+ tokens", second.abstain("plan").stdout)
    assert "nothing is in production" in second.abstain("status").stdout
    assert flow_runs(first) == runs + 1


def test_a_guarantee_that_too_few_answers_can_check_goes_live_without_it(started: Assistant, tmp_path: Path) -> None:
    project = replace(copy_of(started.project, tmp_path), server=started.project.server)
    project.edit_params("  target: 0.1 ", "  target: 0.9 ")  # which the validation split guarantees
    project.edit_params("  min_n_eff: 20 ", "  min_n_eff: 1000 ")
    done = project.abstain("retrain")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "promoted: probe v1.1.0 is in production\n  guarantee: not checked yet: the hold-out shows" in done.stdout
    root = project.workspace
    live, record = read_json(root / "registry.json")["history"][-1], read_json(root / "approvals" / "v1.1.0.json")
    guarantee = live["guarantee"]
    missing = guarantee["additional_reviews"]
    assert record["approved"] and (guarantee["status"], guarantee["metric"]) == ("unchecked", "error_rate")
    assert missing > 0 and record["guarantee"] == guarantee
    mark = f"without a guarantee, an estimated {missing:,} more reviews are needed"
    assert f"in production: probe v1.1.0, {mark}, by promote" in project.abstain("status").stdout
    assert mark in project.git("log", "-1", "--format=%b", cwd=root)
    (text,) = (one.value for one in onnx.load(root / "release" / "probe.onnx").metadata_props if one.key == "guarantee")
    assert json.loads(text) == guarantee
    assert "not checked on the hold-out yet" in (root / "release" / "report.md").read_text()
    assert yaml.safe_load((root / "params.yaml").read_text())["split"]["holdout_frozen_at"] is None


def flow_runs(project: Project) -> int:
    """The number of runs on the server that the project reports to."""
    return int(post(f"{project.server}/flow_runs/count", {}))
