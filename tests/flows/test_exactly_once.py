"""Killed between any two steps, an ingest has happened once or not at all, and the next one makes it once."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from abstain.core.contracts import Interaction, Thumb
from abstain.data.store.dataset import DataStore
from tests.conftest import Project

pytestmark = pytest.mark.slow

STEPS = (
    "move 3",  # some of the batch's files are in data/, the others are not
    "dvc add",
    "git commit",
    "dvc push",
    "git push",
    "end",  # everything is done, and nobody has been told
)

# The task as it is, without a server to report to; it ends itself, unasked, before the step that it is given.
INGEST = """
import logging, os, signal, sys
from pathlib import Path
import abstain.ingest.exports.export_rows as exports, abstain_tasks.data.ingest, abstain_tasks.runs.shell, abstain_tasks.runs.workspace
from abstain.ingest.sources.config import load_sources
from abstain.config.settings import load_settings

abstain_tasks.data.ingest.publish_ingest = lambda *a, **k: None
abstain_tasks.data.ingest.get_run_logger = logging.getLogger
last, moved, parsed = sys.argv[1], 0, 0

def die_at(step):
    if step == last:
        print("killed before", step, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

run, replace, parse = abstain_tasks.runs.shell.run, Path.replace, exports.parse_object

def counted(command, *arguments, **more):
    die_at(" ".join(command[:2]))
    return run(command, *arguments, **more)

def moving(self, target):
    global moved
    if "-" in self.parts[-3] and "data" in str(target):
        moved += 1
        die_at(f"move {moved}")
    return replace(self, target)

def parsing(*arguments):
    global parsed
    parsed += 1
    die_at(f"row {parsed} of an export")
    return parse(*arguments)

with abstain_tasks.runs.workspace.open_workspace() as workspace:
    abstain_tasks.runs.shell.run = abstain_tasks.runs.workspace.run = counted
    Path.replace = moving
    exports.parse_object = parsing
    sources = load_sources(workspace.path / "sources.yaml", load_settings().home)
    abstain_tasks.data.ingest.ingest_sources.fn(workspace, sources, remember=True)
    die_at("end")
"""

DATABASE = """
sources:
  - name: app
    kind: sql
"""
EXPORT = """
sources:
  - name: app
    kind: export
    url: exports
    mapping: mapping.yaml
"""
MAPPING = """
format: table
interaction_id: id
answers: {asked_at: at, question: question, answer: answer, model: model}
thumbs: {given_at: at, user: user, scores: {smiley: {":-)": up}}}
"""


@pytest.fixture
def project(small_project: Project) -> Project:
    (small_project.root / "sources.yaml").write_text(DATABASE)
    small_project.git("commit", "-qam", "Our database")
    return small_project


def write_row(project: Project, number: int) -> None:
    """The application answers one more question, and its user likes it."""
    with sqlite3.connect(project.home / "feedback.db") as database:
        database.execute(
            "CREATE TABLE IF NOT EXISTS interactions (interaction_id TEXT PRIMARY KEY, asked_at TEXT, question TEXT, "
            "answer TEXT, contexts TEXT, model TEXT)"
        )
        database.execute(
            "CREATE TABLE IF NOT EXISTS feedback (interaction_id TEXT PRIMARY KEY, given_at TEXT, thumb TEXT, user TEXT)"
        )
        moment = f"2026-11-10T12:{number:02d}:00Z"
        database.execute(
            "INSERT INTO interactions VALUES (?, ?, 'What?', 'That.', '[]', 'm@1')", (f"x-{number}", moment)
        )
        database.execute("INSERT INTO feedback VALUES (?, ?, 'up', 'u-1')", (f"x-{number}", moment))


def export_row(project: Project, number: int) -> None:
    """`write_row`, of which the application exports a table."""
    file = project.home / "exports" / "answers.csv"
    if not file.exists():
        file.parent.mkdir()
        file.write_text("id,at,question,answer,model,user,smiley\n")
    with file.open("a") as table:
        table.write(f"x-{number},2026-11-10T12:{number:02d}:00Z,What?,That.,m@1,u-1,:-)\n")


def from_app(folder: Path) -> tuple[list[str], list[str]]:
    store = DataStore(folder)
    ids = [row.interaction_id for row in store.iter_rows(Interaction) if row.interaction_id.startswith("x-")]
    return sorted(ids), sorted(
        row.interaction_id for row in store.iter_rows(Thumb) if row.interaction_id.startswith("x-")
    )


def is_there_once_where_killed(
    project: Project, steps: Sequence[str], write: Callable[[Project, int], None] = write_row
) -> dict[str, Any]:
    """Ingest one more row for each of `steps`, killed there and again; returns what the source remembers then."""
    for number, step in enumerate(steps):
        write(project, number)
        killed = project.command(["python", "-c", INGEST, step])
        assert killed.returncode != 0 and killed.stdout.endswith(f"killed before {step}\n"), killed.stderr
        again = project.command(["python", "-c", INGEST, ""])
        assert again.returncode == 0, again.stdout + again.stderr
        expected = sorted(f"x-{n}" for n in range(number + 1))
        assert from_app(project.workspace / "data") == (expected, expected), step
        assert not list(project.workspace.glob(".data-*")), "something half-written was left"
    batches = [json.loads(line) for line in (project.workspace / "data" / "batches.jsonl").open()]
    assert [batch["sources"] for batch in batches[1:]] == [["app"]] * len(steps), "a batch was recorded twice, or never"
    state: dict[str, Any] = json.loads((project.workspace / "data" / "sources" / "app.json").read_text())
    return state


def test_rows_are_there_once_killed_before_the_add_and_the_push(project: Project) -> None:
    state = is_there_once_where_killed(project, ("dvc add", "git push"))
    assert state["tables"].keys() == {"interactions", "feedback"}


def test_rows_of_an_export_are_there_once_killed_among_its_rows_and_among_the_batch_s_files(project: Project) -> None:
    (project.root / "sources.yaml").write_text(EXPORT)
    (project.root / "mapping.yaml").write_text(MAPPING)
    project.git("add", "mapping.yaml")
    project.git("commit", "-qam", "Its exports instead")
    state = is_there_once_where_killed(project, ("row 2 of an export", "move 3"), export_row)
    assert list(state["files"]) == ["answers.csv"]


@pytest.mark.soak(twin="test_rows_are_there_once_killed_before_the_add_and_the_push")
def test_rows_are_there_once_wherever_an_ingest_was_killed(project: Project) -> None:
    is_there_once_where_killed(project, STEPS)


@pytest.mark.soak(twin="test_a_push_after_that_of_another_run_is_refused_and_leaves_nothing")
def test_the_same_file_by_two_machines_at_once_is_there_once(small_project: Project, tmp_path: Path) -> None:
    row = {"asked_at": "2026-11-10T12:00:00Z", "question": "What?", "answer": "That.", "contexts": [], "model": "m@1"}
    lines = [json.dumps({"interaction_id": f"x-{number}", **row}) for number in range(5)]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(lines))
    assert small_project.abstain("ingest", str(file)).returncode == 0  # makes the origin that both then share
    file.write_text("\n".join([*lines, json.dumps({"interaction_id": "x-9", **row})]))
    shared = [
        f"ABSTAIN_ORIGIN={small_project.home / 'origin.git'}",
        f"ABSTAIN_USER_KEY={'k' * 40}",
    ]
    command = [sys.executable, "-m", "abstain_cli.app", "ingest", str(file)]
    machines = [Project(small_project.root, tmp_path / f"home-{n}", small_project.server) for n in (1, 2)]
    for machine in machines:  # what a real one would have pulled: the data is in the first one's cache and remote
        machine.home.mkdir()
        for name in ("models", "dvc-cache", "dvc-remote"):
            (machine.home / name).symlink_to(small_project.home / name)
    runs = [machine.start(["env", *shared, *command], stderr=subprocess.STDOUT) for machine in machines]
    said = [run.communicate(timeout=300)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], said
    counted = [re.findall(r"\| (\d+) \| (read|accepted|duplicate) \|", text) for text in said]
    assert sorted(counted) == [
        [("6", "read"), ("0", "accepted"), ("6", "duplicate")],
        [("6", "read"), ("1", "accepted"), ("5", "duplicate")],
    ], said
    assert small_project.abstain("ingest", str(file)).returncode == 0
    assert from_app(small_project.workspace / "data")[0] == [f"x-{n}" for n in (0, 1, 2, 3, 4, 9)]
