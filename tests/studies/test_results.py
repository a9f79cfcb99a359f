import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from abstain.config.settings import Settings
from abstain.core.errors import AbstainError
from studies.nll_perturbation.cell import ExperimentRunner
from studies.nll_perturbation.experiment import ExperimentStudy
from studies.results import ResultStore
from tests.llm.builders import save_tiny_model
from tests.studies.builders import DECLARED, TRAIN, declared, tiny_models, write_data

pytestmark = pytest.mark.soak(twin="test_study_computes_its_cells_and_writes_its_report")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_data(tmp_path / "data")


def laboratory(model: Path, data: Path, home: Path, **changes: Any) -> ExperimentRunner:
    study = declared(**{"models": tiny_models(model)} | changes)
    return ExperimentRunner(study, data, Settings(home=home, device="cpu", dtype="float32"))


def get_inputs(runner: ExperimentRunner) -> dict[str, dict[str, Any]]:
    return {part.title: dict(part.inputs) for part in ExperimentStudy(runner).list_parts(())}


def list_changed(one: ExperimentRunner, other: ExperimentRunner) -> list[str]:
    """Return the cells of both whose inputs differ."""
    before, after = get_inputs(one), get_inputs(other)
    return [title for title in before.keys() & after.keys() if before[title] != after[title]]


def test_cell_inputs_change_affects_its_cells_only(model: Path, data: Path, tmp_path: Path) -> None:
    before = laboratory(model, data, tmp_path)
    titles = set(get_inputs(before))
    assert len(titles) == 2 and list_changed(before, laboratory(model, data, tmp_path)) == []
    tables = DECLARED["tables"]

    def with_table(name: str, **changes: Any) -> ExperimentRunner:
        return laboratory(model, data, tmp_path, tables={**tables, name: tables[name] | changes})

    (of_headline,) = [title for title in titles if "K = 2" in title]
    assert list_changed(before, with_table("12", at=[0.35, 0.55])) == [of_headline]
    assert list_changed(before, with_table("headline", baselines=False)) == [of_headline]
    assert list_changed(before, with_table("2", title="Another title", note="and a note", paper=None)) == []
    assert list_changed(before, laboratory(model, data, tmp_path, title="Another")) == []
    for change in (
        {"seed": 6},
        {"draws": 200},
        {"answer_tokens": 9},
        {"quantiles": [0.5]},
        {"buffer": 0.1},
        {"regressors": DECLARED["regressors"] | {"trees": 21}},
    ):
        assert set(list_changed(before, laboratory(model, data, tmp_path, **change))) == titles, change


def test_cell_inputs_include_models_and_data(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = get_inputs(laboratory(model, data, tmp_path))
    other = save_tiny_model(tmp_path / "other" / model.name, seed=1)
    assert all(before[title] != of for title, of in get_inputs(laboratory(other, data, tmp_path)).items())
    (data / TRAIN).write_text((data / TRAIN).read_text() + "\n")
    assert all(before[title] != of for title, of in get_inputs(laboratory(model, data, tmp_path)).items())
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    models = {"embedded": {"model": "nobody/no-such-model", "layout": "rag-plain-v1"}}
    for part in ExperimentStudy(laboratory(model, data, tmp_path, models=models)).list_parts(()):
        with pytest.raises(AbstainError, match="nobody/no-such-model"):
            part.compute(lambda done, total: None)


def test_cell_of_another_regressor_reads_nothing_anew(model: Path, data: Path, tmp_path: Path) -> None:
    runner = laboratory(model, data, tmp_path)
    cell = runner.experiment.list_table_cells("2")[0]
    first, other = runner.run(cell), runner.run(cell.model_copy(update={"regressor": "linear"}))
    assert {cost["forward_tokens"] for cost in other["computed"].values()} == {0}
    assert other["by_threshold"][0].mse != first["by_threshold"][0].mse
    assert other["correctness"] == first["correctness"]


def test_own_outputs_change_only_features_of_b_and_p(model: Path, data: Path, tmp_path: Path) -> None:
    runner = laboratory(model, data, tmp_path)
    cell = runner.experiment.list_table_cells("2")[0]
    normal, own = runner.run(cell), runner.run(cell.model_copy(update={"outputs": "own"}))
    assert own["computed"]["own outputs"]["forward_tokens"] > 0 and "own outputs" not in normal["computed"]
    assert own["correctness"] == normal["correctness"], "the target is the answer under N_c"
    assert own["columns"] + len(own["dropped_columns"]) == normal["columns"] + len(normal["dropped_columns"]) - 12
    assert own["by_threshold"][0].mse != normal["by_threshold"][0].mse


def test_t_is_a_quantile_of_the_training_scores(model: Path, data: Path, tmp_path: Path) -> None:
    runner = laboratory(model, data, tmp_path, quantiles=[0.5])
    cell = runner.experiment.list_table_cells("2")[1]
    answers = runner._read_answers(cell)
    result = runner.run(cell)
    assert result["tuned"] == pytest.approx(np.median(answers.true[:12]), abs=1e-6)
    assert [row.threshold for row in result["by_threshold"]] == [result["tuned"]]


def test_result_store_reads_back_unless_damaged(tmp_path: Path) -> None:
    results, key = ResultStore(tmp_path / "r"), {"cell": {"tokens": 2}, "thresholds": (0.5, 0.6)}
    assert results.read(key) is None
    for content in (b"", b"[]", b"\xff", b'{"decided_by": {}}'):
        results.write(key, {"auroc": float("nan"), "f1": np.float64(0.25), "rows": [1, math.inf], "note": None})
        assert results.read(key) == {"auroc": None, "f1": 0.25, "rows": [1, None], "note": None}
        assert results.read(key | {"seed": 1}) is None
        (file,) = (tmp_path / "r").iterdir()
        assert json.loads(file.read_text())["decided_by"]["cell"] == {"tokens": 2}
        file.write_bytes(content)
        assert results.read(key) is None
