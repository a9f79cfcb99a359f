import json

import pytest

from abstain.config.settings import Settings
from studies.cell import ExperimentRunner
from tests.llm.builders import save_speaking_model
from tests.studies.builders import declared, tiny_models, write_data

pytestmark = pytest.mark.soak(twin="test_study_computes_its_cells_and_writes_its_report")


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> ExperimentRunner:
    folder = tmp_path_factory.mktemp("cell")
    models = tiny_models(save_speaking_model(folder / "tiny"))
    settings = Settings(home=folder / "home", device="cpu", dtype="float32")
    return ExperimentRunner(declared(models=models), write_data(folder / "data"), settings)


def test_experiment_runner_cell_has_every_figure_and_is_cached(runner: ExperimentRunner) -> None:
    cell = runner.experiment.list_table_cells("2")[0]
    result = runner.run(cell)
    assert [row["threshold"] for row in result["by_threshold"]] == list(runner.experiment.get_thresholds(cell))
    assert result["tuned"] in runner.experiment.thresholds
    assert {row["labelled"] for row in result["by_threshold"]} == {6}
    positive = [row["positive"] for row in result["by_threshold"]]
    assert positive == sorted(positive, reverse=True)
    (mse,) = {row["mse"] for row in result["by_threshold"]}
    assert 0 < mse < 1
    assert all(0 <= row["withheld"] <= 1 for row in result["by_threshold"])
    # The fixed instruction is read first, and B_c has no context: neither can vary.
    dropped = result["dropped_columns"]
    assert "N.instruction.nll_mean" in dropped and dropped["B.context.nll_mean"] is None
    assert result["columns"] > 100 and result["perturbed"]["empty"] == 0
    assert all(result["computed"][step]["forward_tokens"] > 0 for step in ("answering", "perturbing", "reading"))
    again = runner.run(cell)
    assert {cost["forward_tokens"] for cost in again["computed"].values()} == {0}
    assert json.dumps(again | {"computed": 0}) == json.dumps(result | {"computed": 0})
    other = runner.run(cell.model_copy(update={"regressor": "linear"}))
    assert {cost["forward_tokens"] for cost in other["computed"].values()} == {0}
    assert other["by_threshold"][0]["mse"] != result["by_threshold"][0]["mse"]
    assert other["correctness"] == result["correctness"]
