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
from tests.studies.builders import BAD, DECLARED, tiny_models, write_data, write_study

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

def run(file):
    try:
        done = study(str(file), "data", out="report")
        print("done", done.cells, done.computed, done.report, flush=True)
    except AbstainError as error:
        print("error:", error, flush=True)

run("small.yaml")
first = Path("report/report.md").read_bytes(), Path("report/report.json").read_bytes()
run("small.yaml")
print("same", first == (Path("report/report.md").read_bytes(), Path("report/report.json").read_bytes()))
folder = Path(sys.argv[1]) / "studies" / "small"
one = next(file for file in folder.glob("*.json") if json.loads(file.read_text())["result"]["cell"]["tokens"] == 3)
before = json.loads(one.read_text())
one.unlink()
run("small.yaml")
print("again", json.dumps([before, json.loads(one.read_text())]))
run("bad.yaml")
with get_client(sync_client=True) as client:
    tasks = [task for task in client.read_task_runs() if task.start_time and task.start_time >= begun]
    print("tasks", json.dumps([[task.name, task.state.type.value] for task in tasks]))
print("artifact", json.dumps(Artifact.get("study").data))
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
    project, _ = make_project(tmp_path, prefect_server)
    done = project.command([*RUN, "small.yaml", "--data", "data", "--out", "report"])
    assert done.returncode == 0, done.stdout + done.stderr
    report = read_json(project.root / "report" / "report.json")
    assert report["missing"] == {} and report["tables"].keys() == DECLARED["tables"].keys()
    cells = [read_json(file)["result"] for file in (project.home / "studies" / "small").glob("*.json")]
    assert len(cells) == 2
    for cell in cells:
        assert cell["computed"]["perturbing"]["forward_tokens"] > 0 and cell["columns"] > 100
        assert all(0 < row["mse"] < 1 and row["labelled"] == 6 for row in cell["by_threshold"])


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, prefect_server: str) -> tuple[Project, dict[str, list[str]]]:
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
    printed: dict[str, list[str]] = {"killed": [str(killed_at)]}
    for line in done.stdout.splitlines():
        word, _, rest = line.partition(" ")
        printed.setdefault(word, []).append(rest)
    return project, printed


@pytest.mark.slow
@pytest.mark.soak(twin="test_study_computes_its_cells_and_writes_its_report")
def test_study_killed_run_continues_and_finished_run_is_cached(ran: tuple[Project, dict[str, list[str]]]) -> None:
    _, printed = ran
    assert printed["killed"] == ["1"]
    rest, second, without_a_file = printed["done"]
    assert rest.startswith("2 1 ") and second.startswith("2 0 ") and without_a_file.startswith("2 1 ")
    assert printed["same"] == ["True"]


@pytest.mark.slow
@pytest.mark.soak(twin="test_study_computes_its_cells_and_writes_its_report")
def test_study_cell_without_file_is_read_from_the_cache(ran: tuple[Project, dict[str, list[str]]]) -> None:
    (text,) = ran[1]["again"]
    before, after = json.loads(text)
    assert before["result"]["computed"]["perturbing"]["forward_tokens"] > 0
    assert {cost["forward_tokens"] for cost in after["result"]["computed"].values()} == {0}
    assert before["decided_by"] == after["decided_by"]
    assert before["result"] | {"computed": 0} == after["result"] | {"computed": 0}


@pytest.mark.slow
@pytest.mark.soak(twin="test_study_computes_its_cells_and_writes_its_report")
def test_study_failed_cell_leaves_a_named_gap(ran: tuple[Project, dict[str, list[str]]]) -> None:
    project, printed = ran
    (error,) = printed["error:"]
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


@pytest.mark.slow
@pytest.mark.soak(twin="test_study_computes_its_cells_and_writes_its_report")
def test_study_cells_are_tasks_and_the_report_an_artifact(ran: tuple[Project, dict[str, list[str]]]) -> None:
    project, printed = ran
    (text,) = printed["tasks"]
    tasks = [tuple(task) for task in json.loads(text) if " by " in task[0]]
    good = "embedded by embedded, K = 3, random, single shot, cosine, random forest, 12 + 6"
    assert tasks.count((good, "COMPLETED")) == 4
    assert [state for name, state in tasks if "absent" in name] == ["FAILED"]
    (artifact,) = printed["artifact"]
    assert json.loads(artifact) == (project.root / "report" / "report.md").read_text()


@pytest.mark.slow
@pytest.mark.soak(twin="test_study_computes_its_cells_and_writes_its_report")
def test_run_study_failed_cell_names_the_report(ran: tuple[Project, dict[str, list[str]]]) -> None:
    project, _ = ran
    bad = project.command([*RUN, "bad.yaml", "--data", "data", "--table", "11", "--out", "of-bad"])
    assert bad.returncode == 1 and len(bad.stderr.strip().splitlines()) == 1
    assert bad.stderr.startswith("error A508: 1 of 2 cells") and "of-bad/report.md" in bad.stderr
    assert list(read_json(project.root / "of-bad" / "report.json")["tables"]) == ["11"]
