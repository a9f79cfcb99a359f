"""A cell for real, with the embedded model, on a few of SQuAD's questions: the shipped study, only smaller."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from abstain.config.settings import Settings
from studies.cell import ExperimentRunner
from studies.declared import ExperimentCell, load_experiment
from tests.conftest import ROOT
from tests.llm.conftest import real_settings

__all__ = ["real_settings"]

SQUAD = ROOT.parent / "shared" / "data" / "squad"
pytestmark = pytest.mark.skipif(not SQUAD.is_dir(), reason="../shared/data/squad is not here")


@pytest.fixture(scope="module")
def ran(
    real_settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> tuple[ExperimentRunner, ExperimentCell, dict[str, Any]]:
    """A study of 8 + 4 answers, and what its cell at K = 2 gave; another is at 4, which perturbs for both."""
    home: Path = tmp_path_factory.mktemp("home")
    real_settings.models.mkdir(parents=True, exist_ok=True)
    (home / "models").symlink_to(real_settings.models)
    shipped = load_experiment(ROOT / "studies" / "nll_perturbation.yaml").resize({"grid": (8, 4)})
    forest = shipped.regressors.model_copy(update={"folds": 2, "trees": 20, "min_leaf": 2})
    thresholds = (0.05, 0.1, 0.2, *shipped.thresholds)  # so few tokens answer little right
    table = shipped.tables["2"]
    few = table.model_copy(update={"grid": table.grid.model_copy(update={"tokens": (2, 4)})})
    update = {"answer_tokens": 8, "draws": 100, "regressors": forest, "thresholds": thresholds, "tables": {"2": few}}
    laboratory = ExperimentRunner(shipped.model_copy(update=update), SQUAD, Settings(home=home, device="cpu"))
    cell = laboratory.experiment.list_table_cells("2")[0]
    return laboratory, cell, laboratory.run(cell)


@pytest.mark.soak(twin="test_a_study_computes_its_cells_and_writes_its_report")
def test_a_cell_has_all_that_its_tables_show(ran: tuple[ExperimentRunner, ExperimentCell, dict[str, Any]]) -> None:
    laboratory, cell, found = ran
    assert [row["threshold"] for row in found["by_threshold"]] == list(laboratory.experiment.get_thresholds(cell))
    assert found["tuned"] in laboratory.experiment.thresholds
    assert {row["labelled"] for row in found["by_threshold"]} == {4}
    positive = [row["positive"] for row in found["by_threshold"]]
    assert positive == sorted(positive, reverse=True) and len(set(positive)) > 1
    (mse,) = {row["mse"] for row in found["by_threshold"]}
    assert 0 < mse < 1
    assert all(0 <= row["withheld"] <= 1 for row in found["by_threshold"])
    assert found["baselines"] == [] and found["perturbed"]["empty"] == 0
    # The fixed instruction is read first, and B_c has no context: neither can vary.
    dropped = found["dropped_columns"]
    assert "N.instruction.nll_mean" in dropped and dropped["B.context.nll_mean"] is None
    assert found["columns"] > 100
    cost = found["computed"]
    assert all(cost[step]["forward_tokens"] > 0 for step in ("answering", "perturbing", "reading"))
    assert "smollm2-135m-instruct@" in found["models"]["base"] == found["models"]["perturbation"]


@pytest.mark.soak(twin="test_a_study_computes_its_cells_and_writes_its_report")
def test_a_second_time_nothing_is_asked_and_the_figures_are_the_same(
    ran: tuple[ExperimentRunner, ExperimentCell, dict[str, Any]],
) -> None:
    laboratory, cell, found = ran
    again = laboratory.run(cell)
    assert {name for name, cost in again["computed"].items() if cost["forward_tokens"]} == set()
    assert json.dumps(again | {"computed": 0}) == json.dumps(found | {"computed": 0})


@pytest.mark.soak(twin="test_a_study_computes_its_cells_and_writes_its_report")
def test_another_metric_needs_no_other_features(ran: tuple[ExperimentRunner, ExperimentCell, dict[str, Any]]) -> None:
    laboratory, cell, found = ran
    other = laboratory.run(cell.model_copy(update={"metric": "token_f1", "regressor": "linear"}))
    assert {name for name, cost in other["computed"].items() if cost["forward_tokens"]} == set()
    assert other["by_threshold"][0]["mse"] != found["by_threshold"][0]["mse"]
    assert other["correctness"] != found["correctness"]
