import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from abstain.core.errors import AbstainError
from abstain_tasks.server.addresses import post
from studies import run
from tests.conftest import Project, new_project, read_json
from tests.llm.builders import save_speaking_model
from tests.studies.builders import BAD, DECLARED, declared, tiny_models, write_data, write_study

RUN = ("python", "-m", "studies.run")


def test_run_study_wrong_arguments_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "prepare_run", lambda: None)
    monkeypatch.setenv("ABSTAIN_HOME", str(tmp_path / "home"))
    file, data = str(write_study(tmp_path)), str(write_data(tmp_path / "data"))
    (tmp_path / "odd.yaml").write_text("kind: odd")
    for arguments, says in (
        ((str(tmp_path / "none.yaml"), "--data", data), "none.yaml is missing"),
        (("none", "--data", data), "studies/none.yaml is missing"),
        ((file, "--data", str(tmp_path / "nowhere")), "nowhere is no folder: say with --data"),
        ((file, "--data", str(tmp_path)), "has no file train.jsonl"),
        ((file, "--data", data, "--table", "3"), "no table '3': there are headline, 2, 12"),
        ((file, "--data", data, "--size", "tiny=5"), "--size tiny=5: give NAME=TRAIN,EVALUATION"),
        ((file, "--data", data, "--size", "huge=5,5"), "no size 'huge': there are tiny"),
        ((file,), "give --data or --project"),
        ((file, "--data", data, "--project", data), "give --data or --project"),
        (("all", "--data", data, "--table", "2"), "--table and --size are those of a study"),
        ((file, "--project", str(tmp_path / "nowhere")), "nowhere is no folder"),
        ((file, "--project", data), "is in no git repository with a commit"),
        ((str(tmp_path / "odd.yaml"), "--data", data), "odd.yaml: kind: no kind of study 'odd': there are "),
        ((file, "--data", data, "--out", file), f"--out {file} cannot be a folder: File exists"),
    ):
        error = CliRunner().invoke(run.app, arguments).exception
        assert isinstance(error, AbstainError) and says in str(error)


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
    project.run(*RUN, "small.yaml", "--data", "data", "--out", "report")
    report = read_json(project.root / "report" / "report.json")
    assert report["missing"] == {} and report["tables"].keys() == DECLARED["tables"].keys()
    results = [read_json(file)["result"] for file in (project.home / "studies" / "small").glob("*.json")]
    by_tokens = {result["cell"]["tokens"]: result for result in results}
    study = declared(models=models)
    assert len(results) == len(study.list_cells()) == 2
    for cell in study.list_cells():
        result = by_tokens[cell.tokens]
        rows = result["by_threshold"]
        assert [row["threshold"] for row in rows] == sorted({result["tuned"], *study.get_thresholds(cell)})
        assert {row["labelled"] for row in rows} == {6} and 0 < result["tuned"] < 1
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

    folder = project.root / "studies"
    for declared_study in folder.glob("*.yaml"):
        declared_study.unlink()
    write_study(folder, models=models, tables={**DECLARED["tables"], "11": BAD})
    (folder / "odd.yaml").write_text("kind: odd")
    done = project.command([*RUN, "all", "--data", "data", "--out", "index"])
    assert done.returncode == 1 and "2 of 2 studies have gaps: " in done.stderr and "index.md says why" in done.stderr
    missing, odd, link = sorted((project.root / "index" / "index.md").read_text().splitlines()[2:], reverse=True)
    assert "[A small study](small/report.md): 3 parts, 1 missing" in link
    assert "small: missing: embedded by absent" in missing and "no-such-model" in missing
    assert "odd: no report: " in odd and "no kind of study 'odd'" in odd
    assert (project.root / "index" / "small" / "report.json").is_file()


@pytest.mark.slow
@pytest.mark.soak(twin="test_study_computes_its_cells_and_writes_its_report")
def test_study_killed_run_continues_and_bad_cell_is_a_gap(tmp_path: Path, prefect_server: str) -> None:
    project, models = make_project(tmp_path, prefect_server)
    killed = project.start([*RUN, "small.yaml", "--data", "data"], stderr=subprocess.STDOUT)
    for line in killed.stdout or ():
        if line.startswith("1 of 2: ") and line.endswith(": ran\n"):
            killed.kill()
    assert killed.wait() == -signal.SIGKILL
    cells, report = project.home / "studies" / "small", project.root / "report"
    assert len(list(cells.glob("*.json"))) == 1
    reports = []
    for computed in (1, 0):
        done = project.command([*RUN, "small.yaml", "--data", "data", "--out", "report"])
        assert f"2 parts, {computed} of them computed now" in done.stdout, done.stdout + done.stderr
        reports.append((report / "report.md").read_text())
    assert reports[0] == reports[1]

    write_study(project.root, models=models, tables={**DECLARED["tables"], "11": BAD})
    failed = project.command([*RUN, "small.yaml", "--data", "data", "--out", "report"])
    (error,) = failed.stderr.strip().splitlines()
    assert failed.returncode == 1 and error.startswith(
        "error A508: 1 of 3 parts could not be computed, the first one, "
    )
    assert "model 'nobody/no-such-model' cannot be found" in error and "report.md has the others" in error
    tasks = post(f"{prefect_server}/task_runs/filter", {"task_runs": {"name": {"like_": "embedded by absent"}}})
    assert [task["state_type"] for task in tasks] == ["FAILED"]
    tables = read_json(report / "report.json")["tables"]
    assert tables["11"]["missing"] and not tables["2"]["missing"] and not tables["headline"]["missing"]
    baselines = {line["baseline"] for line in tables["headline"]["baselines"][0]["baselines"]}
    assert baselines >= {"sequence_log_prob", "yes_score", "length_only"}
