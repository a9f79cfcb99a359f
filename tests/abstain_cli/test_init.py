"""`abstain init` as a user meets it: five commands to a version, questions on a terminal, bad input in one line."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from abstain.sample.write import write_sample
from tests.conftest import Project, new_project
from tests.llm.builders import save_speaking_model

pytestmark = pytest.mark.slow


@pytest.fixture
def project(tmp_path: Path, prefect_server: str) -> Project:
    return replace(new_project(tmp_path), server=prefect_server)


def on_a_terminal(project: Project, typed: bytes) -> tuple[int, str]:
    """`abstain init` with a terminal at which `typed` is typed; its status and what the terminal showed."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "abstain_cli.app", "init", "--layout", "rag-plain-v1"]
    process = subprocess.Popen(
        command,
        cwd=project.root,
        env=project.environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    os.write(ours, typed)
    shown = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # as a terminal's end is reported where its last process is gone
            break
        if not part:
            break
        shown += part
    os.close(ours)
    return process.wait(60), shown.decode().replace("\r\n", "\n")


def test_questions_on_a_terminal_have_defaults_and_can_be_left(project: Project, tmp_path: Path) -> None:
    before = project.git("rev-parse", "HEAD")
    status, shown = on_a_terminal(project, b"\n\x04")  # end of input at the second question
    assert status == 130 and "stopped" in shown.splitlines()[-1] and "Traceback" not in shown
    assert project.git("rev-parse", "HEAD") == before and project.git("status", "--porcelain") == ""
    model = save_speaking_model(tmp_path / "model", max_position_embeddings=8192)
    status, shown = on_a_terminal(project, f"{model}\n0.2\n\n\n{tmp_path / 'remote'}\n".encode())
    assert status == 0 and "DVC remote" in shown and "Prompt layout" not in shown, shown
    params = yaml.safe_load((project.root / "params.yaml").read_text())
    assert params["llm"]["model"] == str(model) and params["llm"]["layout"] == "rag-plain-v1"
    assert params["threshold"]["target"] == 0.2
    assert f"url = {tmp_path / 'remote'}\n" in (project.root / ".dvc" / "config").read_text()
    assert project.git("rev-parse", "HEAD^") == before


def test_outside_a_clone_is_one_line(project: Project, tmp_path: Path) -> None:
    done = project.abstain("init", cwd=tmp_path)
    assert done.returncode == 1 and done.stderr.startswith("error A506: ") and done.stderr.count("\n") == 1


def test_five_commands_lead_to_a_version(project: Project, tmp_path: Path) -> None:
    """Of the five, clone and `make setup` are the fixture's."""
    model = save_speaking_model(tmp_path / "model", max_position_embeddings=8192)
    started = project.abstain("init", "--model", str(model), "--remote", str(tmp_path / "remote"))
    assert started.returncode == 0, started.stdout + started.stderr
    assert project.git("status", "--porcelain") == ""

    repro = project.command(["dvc", "repro"])
    lines = (repro.stdout + repro.stderr).splitlines()
    assert repro.returncode != 0 and not [line for line in lines if line.startswith(("WARNING", "Traceback"))]
    assert "error A109: no interactions in data/: run `abstain ingest FILE...` first" in lines
    blocked = project.abstain("plan")
    assert blocked.stdout.startswith("blocked: no interactions in data/"), blocked.stdout + blocked.stderr

    project.edit_params("zoo: [linear, lstm, attention]", "zoo: [linear]")
    project.edit_params("kinds: [gradient_boosting]", "kinds: []")
    project.edit_params("bootstrap: 1000", "bootstrap: 100")
    project.compare_with("mean_log_prob")
    file = tmp_path / "feedback"
    write_sample(file)
    (file / "incoming.jsonl").unlink()
    history = file / "history.jsonl"
    history.write_text("".join(history.read_text().splitlines(keepends=True)[::3]))
    taken = project.abstain("ingest", str(file))
    assert taken.returncode == 0 and "| 0 | quarantined |" in taken.stdout, taken.stdout + taken.stderr
    trained = project.abstain("retrain")
    assert trained.returncode == 0, trained.stdout + trained.stderr
    assert "promoted: probe v1.0.0 is in production" in trained.stdout
    status = project.abstain("status").stdout
    assert "in production: probe v1.0.0, without a guarantee" in status

    history = project.git("log", "--format=%s", "main", cwd=project.home / "origin.git").splitlines()
    assert {"Start a project in place of the sample's", "Promote probe v1.0.0"} <= set(history)
    assert json.loads((project.root / "registry.json").read_text())["history"] == []
    assert project.git("status", "--porcelain") == ""
