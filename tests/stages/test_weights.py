"""Inclusion probabilities on their way from the data set into every figure: the stages, run on made-up states."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from abstain import paths
from abstain.evaluate import metrics
from abstain.features.table import write_table
from abstain.params import Params, load_params
from abstain.stages import common, evaluate, tune_threshold
from tests.conftest import ROOT
from tests.models.builders import write_mean_probe

D = 6
ROWS = 240
METADATA = {"version": "candidate", "threshold": "0.5"}


def write_inputs(probability: np.ndarray) -> pd.DataFrame:
    """Answers whose states are the larger the more often they are right, of which wrong ones were reviewed more often."""
    generator = np.random.default_rng(0)
    correct = generator.integers(2, size=ROWS)
    frame = pd.DataFrame(
        {
            "interaction_id": [f"i-{i}" for i in range(ROWS)],
            "group": [f"g-{i % 60}" for i in range(ROWS)],
            "split": np.array(["train", "validation", "holdout", "newest"])[np.arange(ROWS) % 4],
            "correct": correct,
            "weight": 1.0,
            "source": "sme",
            "product": "cards",
            "inclusion_probability": probability,
        }
    )
    paths.ARTIFACTS.mkdir(exist_ok=True)
    frame.to_parquet(paths.DATASET, index=False)
    states = [torch.randn(2, D) + 1.2 * float(right) - 0.6 for right in correct]
    write_table(paths.FEATURES, [2] * ROWS, D, torch.float32, enumerate(states), "bank@abc")
    write_mean_probe(paths.ONNX, D, METADATA)
    common.write_json(paths.THRESHOLD, {"threshold": 0.5})
    return frame


@pytest.fixture
def params(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    found = load_params(ROOT / "params.yaml")
    return found.model_copy(update={"gate": found.gate.model_copy(update={"bootstrap": 100})})


def test_metrics_scores_and_plots_are_those_of_all_answers(params: Params) -> None:
    uneven = np.where(np.random.default_rng(0).integers(2, size=ROWS) == 1, 0.1, 0.4)
    frame = write_inputs(uneven)
    evaluate.stage(params)
    scores = pd.read_parquet(paths.SCORES)
    assert scores["inclusion_probability"].tolist() == [
        *frame.loc[frame["split"] == "holdout", "inclusion_probability"],
        *frame.loc[frame["split"] == "newest", "inclusion_probability"],
    ]
    found = common.read_json(paths.METRICS)["holdout"]
    holdout = scores[scores["split"] == "holdout"]
    correct, confidence = holdout["correct"].to_numpy(int), holdout["probe"].to_numpy()
    weight = metrics.row_weights(holdout["inclusion_probability"].to_numpy())
    assert found["base_rate"] == metrics.mean(correct, weight) > correct.mean() + 0.2
    assert found["drawn_unevenly"] == int((holdout["inclusion_probability"] > 0.1).sum()) > 0
    assert found["effective_rows"] == pytest.approx(metrics.effective_rows(weight)) and found["effective_rows"] < 50
    for name in ("auroc", "auprc", "brier", "ece", "aurc"):
        assert found["scorers"]["probe"][name] == getattr(metrics, name)(correct, confidence, weight)
    shown = confidence >= 0.5
    at = found["at_threshold"]
    assert at["precision"] == pytest.approx(metrics.mean(correct[shown], weight[shown]))
    assert at["display_rate"] == pytest.approx(weight[shown].sum() / weight.sum())
    newest = common.read_json(paths.METRICS)["newest"]
    assert newest["effective_rows"] < newest["rows"] == 60
    curve = pd.read_csv(paths.PLOTS / "risk_coverage.csv")
    assert curve["risk"].iloc[-1] == pytest.approx(1 - found["base_rate"])


@pytest.mark.parametrize("even", [0.3, 1.0])
def test_equal_chances_give_the_figures_of_none(params: Params, even: float) -> None:
    figures = []
    for probability in (np.nan, even):
        torch.manual_seed(0)
        write_inputs(np.full(ROWS, probability))
        evaluate.stage(params)
        figures.append((common.read_json(paths.METRICS), (paths.PLOTS / "roc.csv").read_bytes()))
    assert figures[0] == figures[1]
    assert figures[0][0]["holdout"]["drawn_unevenly"] == 0
    assert figures[0][0]["holdout"]["effective_rows"] == figures[0][0]["holdout"]["rows"] == 60


def test_the_threshold_keeps_its_promise_of_all_answers(params: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong answers count a tenth: a lower threshold is enough than where they count like the right ones."""
    confidence = np.linspace(0.05, 0.95, ROWS // 4)
    found = []
    for rare in (1.0, 0.1):
        frame = write_inputs(np.full(ROWS, 1.0))
        frame.loc[frame["correct"] == 1, "inclusion_probability"] = rare
        frame.to_parquet(paths.DATASET, index=False)
        monkeypatch.setattr(common, "read_probe", lambda params: None)
        monkeypatch.setattr(tune_threshold, "predict_confidence", lambda probe, states: torch.tensor(confidence))
        lenient = params.model_copy(
            update={"threshold": params.threshold.model_copy(update={"target_precision": 0.6, "min_shown": 1})}
        )
        tune_threshold.stage(lenient)
        found.append(common.read_json(paths.THRESHOLD))
    assert found[1]["threshold"] < found[0]["threshold"] and found[1]["precision"] >= 0.6
    assert found[1]["effective_shown"] < found[1]["shown"]


def test_a_data_set_without_the_column_is_an_error_and_not_unweighted(params: Params) -> None:
    frame = write_inputs(np.full(ROWS, np.nan))
    frame.drop(columns="inclusion_probability").to_parquet(paths.DATASET, index=False)
    with pytest.raises(KeyError, match="inclusion_probability"):
        evaluate.stage(params)
