"""The plan after a changed base model and a changed label policy (docs/howto)."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from abstain.data.labels.training_table import read_training_table
from abstain.data.store.dataset import DataStore
from tests.checkout import shipped_params
from tests.conftest import Project, copy_of
from tests.llm.builders import save_speaking_model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def project(trained: tuple[Project, str], tmp_path_factory: pytest.TempPathFactory) -> Project:
    return copy_of(trained[0], tmp_path_factory.mktemp("changed"))


@pytest.fixture
def plan(project: Project) -> Callable[[], dict[str, list[str]]]:
    def planned() -> dict[str, list[str]]:
        """What the plan says of each stage: runs or cached, why, tokens."""
        done = project.abstain("plan")
        assert done.returncode == 0, done.stderr
        return {line.split()[0]: re.split(r"\s{2,}", line)[1:] for line in done.stdout.splitlines()}

    return planned


def test_plan_other_base_model_reads_every_answer(
    project: Project, plan: Callable[[], dict[str, list[str]]], tmp_path: Path
) -> None:
    model = save_speaking_model(tmp_path / "model", max_position_embeddings=8192)
    project.edit_params("model: smollm2-135m-instruct ", f"model: {model} ")
    project.edit_params("  layer: 4 ", "  layer: auto ")
    stages = plan()
    assert stages["validate"][0] == stages["dataset"][0] == "cached"
    assert stages["features"][0] == "runs" and int(stages["features"][2].split()[0].replace(",", "")) > 1000
    project.git("revert", "--no-edit", "HEAD", "HEAD~1")
    assert {would for would, *_ in plan().values()} == {"cached"}


def test_plan_other_label_policy_reads_nothing(project: Project, plan: Callable[[], dict[str, list[str]]]) -> None:
    project.edit_params("correct_if: [correct, truthful, complete]", "correct_if: [correct]")
    stages = plan()
    assert stages["validate"][0] == "cached"
    assert stages["dataset"][:2] == ["runs", "parameter labels changed"]
    assert stages["features"][0] == "runs" and stages["features"][2] == "0 tokens"
    params, store = shipped_params(), DataStore(project.workspace / "data")
    policies = [params.labels, params.labels.model_copy(update={"correct_if": ("correct",)})]
    before, after = (read_training_table(store, labels, params.split)[0] for labels in policies)
    assert before[["interaction_id", "split"]].equals(after[["interaction_id", "split"]])
    assert before["correct"].sum() < after["correct"].sum()
