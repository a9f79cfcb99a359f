import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from abstain.core.errors import AbstainError
from studies.run import app
from tests.conftest import Project, new_project, read_json
from tests.llm.builders import save_speaking_model
from tests.studies.builders import BAD, DECLARED, declared, tiny_models, write_data, write_study

RUN = ("python", "-m", "studies.run")
RUNS = """
import json, sys
from datetime import datetime, UTC
from pathlib import Path
begun = datetime.now(UTC)  # other tests' tasks are on the same server
from abstain_tasks.server import prepare_environment, server_for_run
prepare_environment()
with server_for_run():
    from studies.flow import study
from prefect.artifacts import Artifact
from prefect.client.orchestration import get_client
from abstain.core.errors import AbstainError

def run():
    done = study("small.yaml", "data", out="report")
    return [done.cells, done.computed, *(file.read_text() for file in sorted(Path("report").iterdir()))]

seen = {"rest": run(), "second": run()}
files = (Path(sys.argv[1]) / "studies" / "small").glob("*.json")
one = next(file for file in files if json.loads(file.read_text())["result"]["cell"]["tokens"] == 3)
before = json.loads(one.read_text())
one.unlink()
seen |= {"without_a_file": run(), "before_and_again": [before, json.loads(one.read_text())]}
try:
    study("bad.yaml", "data", out="report")
except AbstainError as error:
    seen["error"] = str(error)
with get_client(sync_client=True) as client:
    tasks = [task for task in client.read_task_runs() if task.start_time and task.start_time >= begun]
seen["tasks"] = [[task.name, task.state.type.value] for task in tasks]
print("seen", json.dumps(seen | {"artifact": Artifact.get("study").data}))
"""


def test_run_study_wrong_arguments_are_one_line(tmp_path: Path) -> None:
    file, data = str(write_study(tmp_path)), str(write_data(tmp_path / "data"))
    for arguments, says in (
        ((str(tmp_path / "none.yaml"), "--data", data), "none.yaml is missing"),
        (("none", "--data", data), "studies/none.yaml is missing"),
        ((file, "--data", str(tmp_path / "nowhere")), "nowhere is no folder: say with --data"),
        ((file, "--data", data, "--table", "3"), "no table '3': there are headline, 2, 12"),
        ((file, "--data", data, "--size", "tiny=5"), "--size tiny=5: give NAME=TRAIN,EVALUATION"),
        ((file, "--data", data, "--size", "huge=5,5"), "no size 'huge': there are tiny"),
        ((file, "--data", data, "--size", "tiny=999,5"), "999 questions with an answer are wanted, and there are 30"),
        ((file, "--data", data, "--out", file), f"--out {file} cannot be a folder: File exists"),
    ):
        error = CliRunner().invoke(app, arguments).exception
        assert isinstance(error, AbstainError) and says in str(error) and "\n" not in str(error)


def make_project(folder: Path, server: str) -> tuple[Project, dict[str, Any]]:
    """A project with the data and the study, and the models of the study."""
    project = replace(new_project(folder), server=server)
    write_data(project.root / "data")
    models = tiny_models(save_speaking_model(project.root / "tiny"))
    write_study(project.root, models=models)
    return project, models


@pytest.mark.slow
def test_study_computes_its_cells_and_writes_its_report(tmp_path: Path, prefect_server: str) -> None:
    project, models = make_project(tmp_path, prefect_server)
    done = project.command([*RUN, "small.yaml", "--data", "data", "--out", "report"])
    assert done.returncode == 0, done.stdout + done.stderr
    report = read_json(project.root / "report" / "report.json")
    assert report["missing"] == {} and report["tables"].keys() == DECLARED["tables"].keys()
    results = [read_json(file)["result"] for file in (project.home / "studies" / "small").glob("*.json")]
    by_tokens = {result["cell"]["tokens"]: result for result in results}
    study = declared(models=models)
    assert len(results) == len(study.list_cells()) == 2
    for cell in study.list_cells():
        result = by_tokens[cell.tokens]
        rows = result["by_threshold"]
        assert [row["threshold"] for row in rows] == list(study.get_thresholds(cell))
        assert {row["labelled"] for row in rows} == {6} and result["tuned"] in study.thresholds
        assert [row["positive"] for row in rows] == sorted((row["positive"] for row in rows), reverse=True)
        (mse,) = {row["mse"] for row in rows}
        assert 0 < mse < 1 and all(0 <= row["withheld"] <= 1 for row in rows)
        # The fixed instruction is read first, and B_c has no context: neither can vary.
        dropped = result["dropped_columns"]
        assert "N.instruction.nll_mean" in dropped and dropped["B.context.nll_mean"] is None
        assert result["columns"] > 100 and result["perturbed"]["empty"] == 0
        assert result["computed"]["perturbing"]["forward_tokens"] > 0
    for step in ("answering", "reading"):  # what the cells share is computed once
        assert any(result["computed"][step]["forward_tokens"] > 0 for result in results), step


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, prefect_server: str) -> tuple[Project, dict[str, Any]]:
    """A study killed after its first cell; then the rest, again, without a cell, and with a bad one."""
    project, models = make_project(tmp_path_factory.mktemp("study"), prefect_server)
    command = [sys.executable, "-m", "studies.run", "small.yaml", "--data", "data"]
    process = project.start(command, stderr=subprocess.STDOUT)
    patience = threading.Timer(240, process.kill)
    patience.start()
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if line.startswith("1 of 2: ") and line.endswith(": ran\n"):
            os.kill(process.pid, signal.SIGKILL)
    patience.cancel()
    assert process.wait() == -signal.SIGKILL, "".join(seen)
    killed_at = len(list((project.home / "studies" / "small").glob("*.json")))
    bad = write_study(project.root, models=models, tables={**DECLARED["tables"], "11": BAD})
    bad.rename(project.root / "bad.yaml")
    write_study(project.root, models=models)
    done = project.command(["python", "-c", RUNS, str(project.home)])
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("seen "))
    return project, {"killed_at": killed_at, **json.loads(line.removeprefix("seen "))}


@pytest.mark.slow
@pytest.mark.soak(twin="test_study_computes_its_cells_and_writes_its_report")
def test_study_killed_run_continues_computed_cells_are_cached(ran: tuple[Project, dict[str, Any]]) -> None:
    _, seen = ran
    assert seen["killed_at"] == 1
    assert [seen[run][:2] for run in ("rest", "second", "without_a_file")] == [[2, 1], [2, 0], [2, 1]]
    assert seen["rest"][2:] == seen["second"][2:], "the same report"
    before, after = seen["before_and_again"]
    assert before["result"]["computed"]["perturbing"]["forward_tokens"] > 0
    assert {cost["forward_tokens"] for cost in after["result"]["computed"].values()} == {0}
    assert before["decided_by"] == after["decided_by"]
    assert before["result"] | {"computed": 0} == after["result"] | {"computed": 0}


@pytest.mark.slow
@pytest.mark.soak(twin="test_study_computes_its_cells_and_writes_its_report")
def test_study_failed_cell_leaves_a_named_gap_and_failed_task(ran: tuple[Project, dict[str, Any]]) -> None:
    project, seen = ran
    error = seen["error"]
    assert error.startswith("A508: 1 of 3 cells could not be computed, the first one, embedded by absent, K = 2")
    assert "model 'nobody/no-such-model' cannot be found" in error and "report.md has the others" in error
    report = read_json(project.root / "report" / "report.json")
    tables = report["tables"]
    assert len(report["missing"]) == len(tables["11"]["missing"]) == 1
    missing, done, paper = tables["11"]["rows"]
    assert "auroc" not in missing and "nobody/no-such-model" in missing["missing"]
    assert 0 <= done["withheld"] <= 1 and done["perturbation"] == "embedded" and paper["of"] == "paper"
    assert not tables["2"]["missing"] and not tables["headline"]["missing"]
    baselines = {line["baseline"] for line in tables["headline"]["baselines"][0]["baselines"]}
    assert baselines >= {"sequence_log_prob", "yes_score", "length_only"}
    tasks = [tuple(task) for task in seen["tasks"] if " by " in task[0]]
    good = "embedded by embedded, K = 3, random, single shot, cosine, random forest, 12 + 6"
    assert tasks.count((good, "COMPLETED")) == 4
    assert [state for name, state in tasks if "absent" in name] == ["FAILED"]
    assert seen["artifact"] == (project.root / "report" / "report.md").read_text()
    bad = project.command([*RUN, "bad.yaml", "--data", "data", "--table", "11", "--out", "of-bad"])
    assert bad.returncode == 1 and len(bad.stderr.strip().splitlines()) == 1
    assert bad.stderr.startswith("error A508: 1 of 2 cells") and "of-bad/report.md" in bad.stderr
    assert list(read_json(project.root / "of-bad" / "report.json")["tables"]) == ["11"]
