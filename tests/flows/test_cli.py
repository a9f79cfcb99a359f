"""Bad input to the command line: one clear line that names the thing and the remedy, and nothing changed."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import Project, new_project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return new_project(tmp_path)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, prefect_server: str) -> Project:
    """One for all that need a server: they leave its parameters as they were."""
    return replace(new_project(tmp_path_factory.mktemp("served")), server=prefect_server)


def fails(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    for word in words:
        assert word in lines[0], lines[0]


def test_help_reads_well_and_is_instant(project: Project) -> None:
    done = project.abstain("--help")
    assert done.returncode == 0
    for command in ("demo", "ingest", "retrain", "plan", "status", "score", "promote", "rollback"):
        assert command in done.stdout
        assert project.abstain(command, "--help").returncode == 0


def test_no_git_at_all(project: Project, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    done = subprocess.run(
        [str(Path(project.environment["PATH"].split(":")[0]) / "python"), "-m", "flows.cli", "retrain"],
        cwd=project.root,
        env=project.environment | {"PATH": str(tmp_path / "bin")},
        capture_output=True,
        text=True,
        check=False,
    )
    fails(done, "git is not installed")


def test_outside_a_repository(project: Project, tmp_path: Path) -> None:
    fails(project.abstain("status", cwd=tmp_path), "is in no git repository", "clone of the project")


def test_a_dirty_tree_is_refused_at_once(project: Project) -> None:
    (project.root / "params.yaml").open("a").write("# mine\n")
    fails(project.abstain("retrain"), "uncommitted changes", "params.yaml", "commit or stash")
    assert not (project.home / "origin.git").exists()


def test_before_the_first_run(project: Project) -> None:
    for command in (["status"], ["score", "-q", "a", "-a", "b"]):
        fails(project.abstain(*command), "no run has been made", "abstain retrain")


def test_score_wants_one_kind_of_input(project: Project) -> None:
    fails(project.abstain("score"), "either a FILE, or --question and --answer")


@pytest.mark.slow
def test_files_that_are_not_there_and_empty_ones(served: Project, tmp_path: Path) -> None:
    fails(served.abstain("ingest", str(tmp_path / "nowhere.jsonl")), "nowhere.jsonl")
    (tmp_path / "empty.jsonl").touch()
    fails(served.abstain("ingest", str(tmp_path / "empty.jsonl")), "empty.jsonl")


@pytest.mark.slow
def test_unknown_parameter_and_unknown_model_stop_a_run_before_anything_is_promoted(served: Project) -> None:
    served.edit_params("  hidden: 64", "  hiden: 64")
    fails(served.abstain("retrain"), "unknown key 'probe.hiden'", "did you mean 'hidden'?")
    served.edit_params("  hiden: 64", "  hidden: 64")
    served.edit_params("smollm2-135m-instruct", "nobody/no-such-model")
    fails(served.abstain("retrain"), "nobody/no-such-model", "params.yaml: llm.model")
    assert "Promote" not in served.git("log", "--oneline", "main", cwd=served.home / "origin.git")
    served.edit_params("nobody/no-such-model", "smollm2-135m-instruct")


@pytest.mark.slow
def test_a_layer_that_is_not_there_says_which_are(served: Project) -> None:
    served.edit_params("layer: 16", "layer: 99")
    fails(served.abstain("retrain"), "layer 99", "layers 1 to 30", "llm.layer")
    served.edit_params("layer: 99", "layer: 16")
