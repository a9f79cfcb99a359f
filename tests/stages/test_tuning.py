"""From the validation split to the file that serves: the guarantee, or that there is none, and the calibration."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from abstain.config.params import Params
from abstain.core import paths
from abstain.core.contracts import CONTRACT_VERSION
from abstain.core.errors import AbstainError
from abstain.data.store.splits import reviewed
from abstain.learning.estimators.onnx_probe import OnnxProbe
from abstain.learning.estimators.probes.base import predict_confidence
from abstain.learning.estimators.zoo import load_probe
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.calibration import calibrator_from_dict
from abstain.llm.engine.prompts import load_layout
from abstain.stages.evaluate import __main__ as evaluate
from abstain.stages.export_onnx import __main__ as export_onnx
from abstain.stages.shared import artifacts
from abstain.stages.shared.states import read_base_model, read_labelled_states
from abstain.stages.tune_threshold import __main__ as tune_threshold

pytestmark = pytest.mark.slow

NEVER = {"target": 0.9, "confidence": 0.99}
"""More than so few reviews can guarantee, and within reach of a threshold that guarantees nothing."""


def with_threshold(params: Params, **changes: object) -> Params:
    return params.model_copy(update={"threshold": params.threshold.model_copy(update=changes)})


def validation_rows() -> tuple[pd.DataFrame, np.ndarray]:
    """The reviewed answers of the validation split and the served probe's confidences of them."""
    frame, states = read_labelled_states()
    rows = reviewed(frame[frame["split"] == "validation"])
    return rows, predict_confidence(load_probe(paths.PROBE), states.subset(rows.index)).numpy().astype(float)


def change_inclusion(where: str, value: float) -> None:
    frame = artifacts.read_dataset_frame()
    frame.loc[frame.eval(where), "inclusion_probability"] = value
    frame.to_parquet(paths.DATASET, index=False)


def test_what_is_guaranteed_is_what_the_reviewed_validation_answers_give(bank: Params) -> None:
    found = artifacts.read_json(paths.THRESHOLD)
    rows, confidence = validation_rows()
    assert found["guaranteed"] is True and (found["metric"], found["target"], found["confidence"]) == (
        "precision",
        0.75,
        0.8,
    )
    assert found["rows"] == len(rows) > found["n_eff"] > found["shown"] > 10
    assert found["precision"] >= 0.75 and found["p_value"] <= 1 - 0.8
    assert found["message"].startswith("precision of at least 0.75 at confidence 0.8 with ")
    weight = metrics.row_weights(rows["inclusion_probability"].to_numpy())
    heuristic = found["heuristic"]
    shown = confidence >= heuristic["threshold"]
    assert heuristic["shown"] == shown.sum() and heuristic["rows"] == len(rows)
    assert heuristic["precision"] == pytest.approx(np.average(rows["correct"][shown], weights=weight[shown]))
    assert heuristic["precision"] >= 0.75 - 1e-12
    assert heuristic["coverage"] == pytest.approx(weight[shown].sum() / weight.sum())
    assert heuristic["threshold"] < found["threshold"], "a guarantee asks for more than just good enough"
    # Rounded down, so that the answer that it was read off is shown.
    gap = confidence - heuristic["threshold"]
    assert heuristic["threshold"] == round(heuristic["threshold"], 6) and 0 <= gap[np.abs(gap).argmin()] < 1e-6


def test_a_threshold_that_is_just_good_enough_is_lower_where_wrong_answers_count_less(bank: Params) -> None:
    """Right answers were reviewed one in ten times: each stands for ten."""
    lenient = with_threshold(bank, target=0.8, on_infeasible="heuristic", min_shown=1)
    found, calibrated = [], []
    for rare in (1.0, 0.1):
        change_inclusion("split == 'validation'", 1.0)
        change_inclusion("split == 'validation' and correct == 1", rare)
        tune_threshold.stage(lenient)
        found.append(artifacts.read_json(paths.THRESHOLD))
        calibrated.append(
            calibrator_from_dict(artifacts.read_json(paths.CALIBRATION)).apply(np.linspace(0, 1, 50)).mean()
        )
    even, uneven = (one["heuristic"] for one in found)
    assert uneven["threshold"] < even["threshold"] and uneven["precision"] >= 0.8
    assert even["effective_shown"] == even["shown"] and uneven["effective_shown"] < uneven["shown"]
    assert found[1]["n_eff"] < found[1]["rows"] == found[0]["n_eff"]
    assert calibrated[1] > calibrated[0] + 0.1


def test_the_calibration_is_of_the_reviewed_validation_answers(bank: Params) -> None:
    rows, confidence = validation_rows()
    weight = metrics.row_weights(rows["inclusion_probability"].to_numpy())
    stored = artifacts.read_json(paths.CALIBRATION)
    probability = calibrator_from_dict(stored).apply(confidence)
    assert stored["method"] == bank.calibration.method == "isotonic"
    assert np.average(probability, weights=weight) == pytest.approx(
        np.average(rows["correct"], weights=weight), abs=0.01
    )
    assert metrics.brier(rows["correct"].to_numpy(), probability, weight) < metrics.brier(
        rows["correct"].to_numpy(), confidence, weight
    )


def test_where_nothing_can_be_guaranteed_the_stage_fails_and_names_reviews(bank: Params) -> None:
    paths.THRESHOLD.unlink()
    with pytest.raises(AbstainError) as failed:
        tune_threshold.stage(with_threshold(bank, on_infeasible="fail", **NEVER))
    says = str(failed.value)
    assert says.startswith("no threshold reaches precision 0.9 at confidence 0.99 with ")
    assert "reviewed answers" in says and "would be needed: bring more reviews" in says and "\n" not in says
    assert says.endswith("or set threshold.on_infeasible to heuristic")
    assert not paths.THRESHOLD.exists()


def test_the_heuristic_threshold_is_used_where_that_is_asked_for_and_says_so_to_the_end(bank: Params) -> None:
    heuristically = with_threshold(bank, on_infeasible="heuristic", **NEVER)
    tune_threshold.stage(heuristically)
    found = artifacts.read_json(paths.THRESHOLD)
    assert found["guaranteed"] is False and found["reviews_needed"] > found["rows"]
    for name in ("threshold", "precision", "coverage"):
        assert found[name] == found["heuristic"][name]
    assert found["error_rate"] == pytest.approx(found["coverage"] * (1 - found["precision"]))

    export_onnx.stage(heuristically)
    carried = OnnxProbe(paths.ONNX).metadata
    assert json.loads(carried["guarantee"]) == {
        "guaranteed": False,
        "metric": "precision",
        "target": 0.9,
        "confidence": 0.99,
        "message": found["message"],
    }
    assert float(carried["threshold"]) == found["threshold"]

    evaluate.stage(heuristically)
    table = pd.read_csv(paths.PLOTS / "threshold.csv", keep_default_na=False)
    assert sorted(table["mark"].unique()) == ["", "heuristic"] and (table["mark"] == "heuristic").sum() == 1
    holdout = artifacts.read_json(paths.METRICS)["holdout"]
    assert holdout["at_threshold"]["threshold"] == found["threshold"]
    assert holdout["at_heuristic"].items() <= holdout["at_threshold"].items()
    assert artifacts.read_json(paths.EVALUATION)["threshold"] == found


def test_a_target_that_not_even_the_heuristic_threshold_reaches_is_an_error(bank: Params) -> None:
    with pytest.raises(AbstainError) as failed:
        tune_threshold.stage(
            with_threshold(bank, target=0.999, confidence=0.99, min_shown=40, on_infeasible="heuristic")
        )
    assert "no threshold reaches precision 0.999" in str(failed.value) and "\n" not in str(failed.value)
    assert "on_infeasible" not in str(failed.value), "it would not help"


def only_thumbs(split: str) -> None:
    frame = artifacts.read_dataset_frame()
    frame.loc[frame["split"] == split, "source"] = "thumb"
    frame.to_parquet(paths.DATASET, index=False)


def test_thumbs_guarantee_nothing(bank: Params) -> None:
    only_thumbs("validation")
    with pytest.raises(AbstainError, match="no reviewed answers to test a threshold on: bring reviews"):
        tune_threshold.stage(bank)


def test_thumbs_may_say_which_threshold_to_try_first(bank: Params) -> None:
    only_thumbs("train")
    tune_threshold.stage(bank)
    threshold = artifacts.read_json(paths.THRESHOLD)
    assert threshold["guaranteed"] and threshold["precision"] >= bank.threshold.target


def test_the_file_that_serves_names_its_site_and_guarantee(bank: Params) -> None:
    served, threshold = OnnxProbe(paths.ONNX), artifacts.read_json(paths.THRESHOLD)
    guarantee = {name: threshold[name] for name in ("guaranteed", "metric", "target", "confidence", "message")}
    assert json.loads(served.metadata.pop("guarantee")) == guarantee and guarantee["guaranteed"] is True
    assert json.loads(served.metadata.pop("calibration")) == artifacts.read_json(paths.CALIBRATION)
    assert float(served.metadata.pop("threshold")) == threshold["threshold"]
    assert served.metadata == {
        "version": "unreleased",
        "contract": str(CONTRACT_VERSION),
        "architecture": "linear",
        "model": bank.llm.model,
        "model_revision": read_base_model().rpartition("@")[2],
        "layout": "rag-plain-v1",
        "layout_digest": load_layout("rag-plain-v1").digest,
        "layer": "2",
        "site": "residual",
        "too_long": "drop_chunks",
    }
    assert artifacts.read_json(paths.PARITY)["max_abs_difference"] < 1e-5
    rows, confidence = validation_rows()
    states = read_labelled_states()[1].subset(rows.index)
    np.testing.assert_allclose(served.confidence(states), confidence, atol=1e-5)


def test_an_export_that_differs_from_torch_is_refused(bank: Params) -> None:
    strict = bank.model_copy(update={"gate": bank.gate.model_copy(update={"max_parity": 1e-12})})
    paths.PARITY.unlink()
    with pytest.raises(AbstainError, match=r"^ONNX and torch differ by .* more than gate.max_parity = 1e-12: "):
        export_onnx.stage(strict)
    assert not paths.PARITY.exists()
