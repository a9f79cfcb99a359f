import json

import numpy as np
import pandas as pd
import pytest

from abstain.config.params import Params
from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.core.bundle_format import BUNDLE_FORMAT, FORMAT_KEY
from abstain.core.contracts import CONTRACT_VERSION
from abstain.core.errors import AbstainError
from abstain.data.store import splits
from abstain.data.store.dataset import DataStore
from abstain.data.store.splits import select_reviewed
from abstain.data.store.state_table import StateTable
from abstain.learning.estimators.onnx_probe import OnnxProbe
from abstain.learning.estimators.probe_registry import load_probe
from abstain.learning.estimators.probes.base import predict_confidence
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.calibration import calibrator_from_dict
from abstain.learning.thresholds.guarantee import MIN_GROUPS
from abstain.llm.engine.prompts import load_layout
from abstain.serving.predictor import Predictor
from abstain.stages.export_onnx import __main__ as export_onnx
from abstain.stages.shared import artifacts
from abstain.stages.shared.states import load_labelled_states, read_base_model
from abstain.stages.tune_threshold import __main__ as tune_threshold
from tests.stages.conftest import change, read_reviewed, run_stages, write_labels

pytestmark = pytest.mark.slow


def read_validation() -> tuple[pd.DataFrame, np.ndarray]:
    """The reviewed answers of the validation split and the served probe's confidences of them."""
    frame, states = load_labelled_states()
    rows = select_reviewed(frame[frame["split"] == "validation"])
    return rows, predict_confidence(load_probe(paths.PROBE), states.subset(rows.index)).numpy().astype(float)


def test_tune_threshold_uses_reviewed_validation_answers(bank: Params) -> None:
    found, stored = artifacts.read_json(paths.THRESHOLD), artifacts.read_json(paths.CALIBRATION)
    rows, confidence = read_validation()
    guarantee, evidence = found["guarantee"], found["guarantee"]["evidence"]
    asked = {name: getattr(bank.threshold, name) for name in ("metric", "target", "confidence")}
    assert guarantee.items() >= {"status": "unchecked", "holdout": None, **asked}.items()
    assert evidence["reviews"] == len(rows) > evidence["n_eff"] > 10
    assert evidence["groups"] == rows["group"].nunique() >= MIN_GROUPS and 0 <= evidence["icc"] <= 1
    weight, correct = metrics.row_weights(rows["inclusion_probability"].to_numpy()), rows["correct"].to_numpy()
    heuristic = found["heuristic"]
    shown = confidence >= heuristic["threshold"]
    assert heuristic["shown"] == shown.sum() and heuristic["rows"] == len(rows)
    assert heuristic["precision"] == pytest.approx(np.average(correct[shown], weights=weight[shown]))
    assert heuristic["coverage"] == pytest.approx(weight[shown].sum() / weight.sum())
    assert heuristic["threshold"] < found["threshold"], "a guarantee asks for more than just good enough"
    # Rounded down, so that the answer that it was read off is shown.
    gap = confidence - heuristic["threshold"]
    assert heuristic["threshold"] == round(heuristic["threshold"], 6) and 0 <= gap[np.abs(gap).argmin()] < 1e-6
    probability = calibrator_from_dict(stored).apply(confidence)
    assert stored["method"] == bank.calibration.method == "isotonic"
    assert np.average(probability, weights=weight) == pytest.approx(np.average(correct, weights=weight), abs=0.01)
    assert metrics.brier(correct, probability, weight) < metrics.brier(correct, confidence, weight)


def test_tune_threshold_separates_self_selected_reviews(bank: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = artifacts.read_dataset_frame()
    rows = read_reviewed("validation").index
    frame.loc[rows[: len(rows) // 4], ["inclusion_probability", "sampled"]] = [0.9, False]  # shown, and then reviewed
    frame.to_parquet(paths.DATASET)
    n_self_selected = int((~frame.loc[rows, "sampled"]).sum())
    assert n_self_selected > 0
    tune_threshold.stage(bank)
    together = artifacts.read_json(paths.THRESHOLD)
    evidence = together["guarantee"]["evidence"]
    assert (evidence["sampled"], together["self_selected"], evidence["reviews"]) == (False, None, len(rows))
    assert together["guarantee"]["population"] == "answers_like_reviewed"
    monkeypatch.setattr(splits, "MIN_SAMPLED", 20)
    tune_threshold.stage(bank)
    apart = artifacts.read_json(paths.THRESHOLD)
    evidence = apart["guarantee"]["evidence"]
    assert evidence["sampled"] is True and evidence["reviews"] == len(rows) - n_self_selected
    assert apart["self_selected"]["rows"] == n_self_selected


def test_tune_threshold_few_reviews_are_uncalibrated(bank: Params) -> None:
    write_labels("split == 'validation' and correct == 0", source="thumb")
    run_stages(bank, "tune_threshold", "evaluate")
    assert artifacts.read_json(paths.CALIBRATION) == {"method": "none"}
    assert artifacts.read_json(paths.EVALUATION)["calibration"]["method"] == "none"


def test_tune_threshold_thumbs_order_tests_only(bank: Params) -> None:
    write_labels("split == 'train'", source="thumb")
    tune_threshold.stage(bank)
    guarantee = artifacts.read_json(paths.THRESHOLD)["guarantee"]
    assert guarantee["status"] == "unchecked" and guarantee["estimates"]["precision"] >= bank.threshold.target
    write_labels("split == 'validation'", source="thumb")
    with pytest.raises(AbstainError, match="no reviewed answers"):
        tune_threshold.stage(bank)


@pytest.mark.parametrize(
    ("target", "min_shown", "has_heuristic"), [(0.9, 10, True), (0.999, 40, False)], ids=["heuristic", "infeasible"]
)
def test_tune_threshold_without_guarantee_is_marked_in_all_files(
    bank: Params, target: float, min_shown: int, has_heuristic: bool
) -> None:
    """So few reviews cannot guarantee either target; a threshold that guarantees nothing reaches the first."""
    params = change(bank, "threshold", on_infeasible="heuristic", confidence=0.99, target=target, min_shown=min_shown)
    run_stages(params, "tune_threshold", "export_onnx", "evaluate", "report")
    stored = artifacts.read_json(paths.THRESHOLD)
    guarantee, estimates = stored["guarantee"], stored["guarantee"]["estimates"]
    assert (guarantee["status"], guarantee["target"], guarantee["confidence"]) == ("none", target, 0.99)
    assert estimates["error_rate"] == pytest.approx(estimates["coverage"] * (1 - estimates["precision"]))
    if has_heuristic:
        expected = {"threshold": stored["threshold"], **{name: estimates[name] for name in ("precision", "coverage")}}
        assert stored["heuristic"].items() >= expected.items() and guarantee["additional_reviews"] > 0
    else:
        assert stored["heuristic"] is None and estimates["precision"] < target and 0 < estimates["coverage"] <= 1
    metadata = OnnxProbe(paths.ONNX).metadata
    assert (json.loads(metadata["guarantee"]), float(metadata["threshold"])) == (guarantee, stored["threshold"])
    table = pd.read_csv(paths.PLOTS / "threshold.csv", keep_default_na=False)
    assert sorted(table["mark"].unique()) == ["", "heuristic"] and (table["mark"] == "heuristic").sum() == 1
    holdout = artifacts.read_json(paths.METRICS)["holdout"]
    assert holdout["at_threshold"]["threshold"] == stored["threshold"]
    assert holdout["at_heuristic"].items() <= holdout["at_threshold"].items()
    assert artifacts.read_json(paths.EVALUATION)["threshold"] == stored
    text = (paths.REPORT / "report.md").read_text()
    assert "No guarantee can be made" in text and guarantee["message"] in text


def test_tune_threshold_dominant_reviewer_gives_no_guarantee(bank: Params) -> None:
    stored = artifacts.read_json(paths.THRESHOLD)
    names = read_reviewed("validation")["reviewers"].explode()
    assert not any(name in paths.THRESHOLD.read_text() for name in names)
    share = stored["guarantee"]["evidence"]["largest_reviewer_share"]
    tune_threshold.stage(change(bank, "threshold", max_reviewer_share=share / 2))
    assert artifacts.read_json(paths.THRESHOLD)["guarantee"]["status"] == "none"
    tune_threshold.stage(change(bank, "threshold", max_reviewer_share=1.0))
    assert artifacts.read_json(paths.THRESHOLD) == stored


def test_export_onnx_metadata_describes_inputs_and_guarantee(bank: Params) -> None:
    served, threshold = OnnxProbe(paths.ONNX), artifacts.read_json(paths.THRESHOLD)
    assert json.loads(served.metadata.pop("guarantee")) == threshold["guarantee"]
    assert json.loads(served.metadata.pop("calibration")) == artifacts.read_json(paths.CALIBRATION)
    assert float(served.metadata.pop("threshold")) == threshold["threshold"]
    assert json.loads(served.metadata.pop("scorer")) == {
        "name": "probe",
        "forward_tokens": artifacts.read_json(paths.FEATURES_SUMMARY)["forward_tokens"]["probe"],
        "sha256": {},
        "models": {},
        "perturbation": bank.perturbation.model_dump(),
    }
    answers = {name: list(getattr(bank.labels, name)) for name in ("reasoning", "refusals")}
    assert json.loads(served.metadata.pop("answers")) == answers
    assert served.metadata == {
        FORMAT_KEY: BUNDLE_FORMAT,
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
        "includes_eos": "true",
    }
    assert artifacts.read_json(paths.PARITY)["max_abs_difference"] < 1e-5
    rows, confidence = read_validation()
    states = load_labelled_states()[1].subset(rows.index)
    np.testing.assert_allclose(served.predict(states), confidence, atol=1e-5)


def test_export_onnx_without_eos_serves_without_eos(bank: Params) -> None:
    without = change(bank, "llm", includes_eos=False)
    with_eos = StateTable(paths.FEATURES).lengths.copy()
    run_stages(without, "features", "train_probe", "export_onnx")
    frame, states = load_labelled_states()
    np.testing.assert_array_equal(StateTable(paths.FEATURES).lengths, np.maximum(with_eos - 1, 0))
    some = frame.iloc[:3]
    rows = DataStore(paths.DATA).read_interactions(some["interaction_id"])
    served = [one.confidence for one in Predictor.open(paths.ONNX, load_settings()).decide_interactions(rows)]
    np.testing.assert_allclose(served, OnnxProbe(paths.ONNX).predict(states.subset(some.index)), atol=1e-5)


def test_export_onnx_parity_above_limit_raises(bank: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_onnx, "MAX_PARITY", 1e-12)
    paths.PARITY.unlink()
    with pytest.raises(AbstainError, match="^probe: .* 1e-12"):
        export_onnx.stage(bank)
    assert not paths.PARITY.exists()
