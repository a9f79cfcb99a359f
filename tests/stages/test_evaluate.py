"""Each metric is tested in tests/learning; here, that tuning and evaluation use the right rows, weights and files."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from abstain.config.params import Params
from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.core.bundle_format import BUNDLE_FORMAT, FORMAT_KEY
from abstain.core.contracts import CONTRACT_VERSION
from abstain.core.errors import AbstainError
from abstain.data.store import splits
from abstain.data.store.dataset import DataStore
from abstain.data.store.splits import compute_holdout_digest
from abstain.learning.estimators.onnx_probe import OnnxProbe
from abstain.learning.estimators.probe_registry import load_probe
from abstain.learning.estimators.probes.base import predict_confidence
from abstain.learning.evaluation.selective_prediction import ScoredAnswers, evaluate_at_threshold
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.calibration import calibrator_from_dict
from abstain.learning.thresholds.guarantee import MIN_GROUPS
from abstain.llm.engine.prompts import load_layout
from abstain.llm.features.extraction import FeatureSource
from abstain.llm.signals.counterfactuals import shuffle_answers
from abstain.stages.evaluate import __main__ as evaluate
from abstain.stages.export_onnx import __main__ as export_onnx
from abstain.stages.shared import artifacts
from abstain.stages.shared.ideal_answers import read_rouge
from abstain.stages.shared.states import load_labelled_states, read_base_model
from abstain.stages.tune_threshold import __main__ as tune_threshold
from tests.stages.builders import FUSIONS, REGRESSORS, SIGNALS
from tests.stages.conftest import change, read_readable, read_reviewed, run_stages, write_labels

pytestmark = pytest.mark.slow

EVERYBODY = ["probe", *FUSIONS, *SIGNALS, *REGRESSORS, "lstm", "base_rate"]


def read_holdout() -> pd.DataFrame:
    return read_readable("holdout").set_index("interaction_id")


def read_scores(split: str) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """The scores of a split's reviewed answers, what is right of them, and how many answers each stands for."""
    scores = pd.read_parquet(paths.SCORES)
    rows = scores[scores["split"] == split]
    weight = (1 / rows["inclusion_probability"].fillna(1.0)).to_numpy()
    return rows, rows["correct"].to_numpy(int), weight / weight.max()


def test_evaluate_tables_name_the_same_scorers(bank: Params) -> None:
    holdout, content = artifacts.read_json(paths.METRICS)["holdout"], artifacts.read_json(paths.EVALUATION)
    for names in (holdout["scorers"], content["kinds"], content["forward_tokens"], content["at_own_threshold"]):
        assert set(names) == set(EVERYBODY)
    assert [name for name in pd.read_parquet(paths.SCORES) if name in (*EVERYBODY, "linear")] == EVERYBODY
    others = {"probe": "served probe", "lstm": "probe", "base_rate": "baseline", "length_only": "baseline"}
    others |= dict.fromkeys(REGRESSORS, "regressor") | dict.fromkeys(FUSIONS, "fusion")
    assert content["kinds"] == dict.fromkeys(SIGNALS, "signal") | others
    costs = content["forward_tokens"]
    assert costs["lstm"] == costs["probe"] > 0 == costs["length_only"] == costs["base_rate"]
    assert costs["fusion"] > costs["random_forest_label"] > costs["sequence_log_prob"] > 0
    assert content["served"].items() >= {"name": "probe", "layer": 2, "site": "residual"}.items()
    assert content["probe"] == artifacts.read_json(paths.PROBE_CHOICE)
    assert holdout["served"] == {"name": "probe", "forward_tokens": costs["probe"]}
    aurocs = {name: holdout["scorers"][name]["auroc"] for name in SIGNALS if name != "length_only"}
    plotted = {"probe", "fusion", "length_only", max(aurocs, key=aurocs.__getitem__)}
    assert set(pd.read_csv(paths.PLOTS / "roc.csv")["scorer"]) == plotted
    assert holdout["scorers"]["probe"]["auroc_difference"] is None, "others are compared with it"
    own, heuristic = content["at_own_threshold"]["probe"], holdout["at_heuristic"]
    assert own["precision"] == pytest.approx(heuristic["precision"]) and own["note"] == ""


def test_evaluate_scores_are_of_all_reviewed_test_answers(bank: Params) -> None:
    scores, frame = pd.read_parquet(paths.SCORES), load_labelled_states()[0]
    reviewed = frame[(frame["source"] == "review") & frame["split"].isin(["holdout", "newest"])]
    columns = ["interaction_id", "split", "group", "product", "correct", "source", "inclusion_probability"]
    tables = (table[columns].sort_values("interaction_id", ignore_index=True) for table in (scores, reviewed))
    pd.testing.assert_frame_equal(*tables)
    assert len(reviewed) > 50 and set(scores["inclusion_probability"].fillna(0)) == {0.0, 0.5, 1.0}
    holdout, rows = artifacts.read_json(paths.METRICS)["holdout"], read_holdout()
    assert holdout["digest"] == compute_holdout_digest(list(rows.index), rows["correct"].tolist())
    assert holdout["label_source"] == "review"


def test_evaluate_metrics_are_weighted(bank: Params) -> None:
    """Sure answers were reviewed every other time, so each counts twice."""
    metrics_file = artifacts.read_json(paths.METRICS)
    holdout = metrics_file["holdout"]
    probe = holdout["scorers"]["probe"]
    for name in ("holdout", "newest"):
        part, (rows, _, weight) = metrics_file[name], read_scores(name)
        assert part["rows"] == len(rows) > 5 and part["sampled_unevenly"] == (weight < 1).sum() > 0
        assert part["effective_sample_size"] == pytest.approx(weight.sum() ** 2 / (weight**2).sum())
    rows, correct, weight = read_scores("newest")
    assert metrics_file["newest"]["auroc"] == pytest.approx(roc_auc_score(correct, rows["probe"], sample_weight=weight))
    rows, correct, weight = read_scores("holdout")
    assert holdout["base_rate"] == pytest.approx(np.average(correct, weights=weight))
    assert abs(holdout["base_rate"] - correct.mean()) > 0.05
    for name in ("probe", "lstm", "fusion", "sequence_log_prob", "length_only"):
        auroc = roc_auc_score(correct, rows[name], sample_weight=weight)
        assert holdout["scorers"][name]["auroc"] == pytest.approx(auroc)
    assert abs(probe["auroc"] - roc_auc_score(correct, rows["probe"])) > 1e-3
    assert probe["brier"] == pytest.approx(np.average((rows["probability"] - correct) ** 2, weights=weight))


def test_evaluate_self_selected_reviews_are_separate(bank: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    together, digest = pd.read_parquet(paths.SCORES), artifacts.read_json(paths.METRICS)["holdout"]["digest"]
    assert artifacts.read_json(paths.METRICS)["holdout"]["self_selected"] is None
    write_labels("split == 'holdout' and interaction_id.str.endswith('1')", sampled=False, inclusion_probability=0.8)
    monkeypatch.setattr(splits, "MIN_SAMPLED", 20)
    threshold = artifacts.read_json(paths.THRESHOLD)
    results = {}
    for sampled in (False, True):
        threshold["guarantee"]["evidence"]["sampled"] = sampled
        artifacts.write_json(paths.THRESHOLD, threshold)
        evaluate.stage(bank)
        results[sampled] = artifacts.read_json(paths.METRICS)["holdout"]
    assert results[False]["rows"] == (together["split"] == "holdout").sum()
    assert results[False]["self_selected"] is None
    holdout, scores = results[True], pd.read_parquet(paths.SCORES)
    assert scores["interaction_id"].tolist() == together["interaction_id"].tolist() and holdout["digest"] == digest
    rows, correct, weight = read_scores("holdout")
    sampled = rows["sampled"].to_numpy()
    slices = [row for row in artifacts.read_json(paths.EVALUATION)["slices"] if row["by"] == "product"]
    assert 0 < (~sampled).sum() < sampled.sum() == holdout["rows"] == sum(row["rows"] for row in slices)
    assert holdout["base_rate"] == pytest.approx(np.average(correct[sampled], weights=weight[sampled]))
    auroc = roc_auc_score(correct[sampled], rows["probe"][sampled], sample_weight=weight[sampled])
    assert holdout["scorers"]["probe"]["auroc"] == pytest.approx(auroc)
    shown = (rows["probe"] >= threshold["threshold"]).to_numpy()
    assert holdout["self_selected"]["rows"] == (~sampled).sum()
    coverage = np.average(shown[~sampled], weights=weight[~sampled])
    assert holdout["self_selected"]["coverage"] == pytest.approx(coverage)


def test_evaluate_without_near_duplicates_uses_other_answers(bank: Params) -> None:
    twins = read_scores("holdout")[0]["interaction_id"].tolist()[::3]
    write_labels(f"interaction_id in {twins}", duplicate_in_training=True)
    evaluate.stage(bank)
    rows, correct, weight = (part[np.arange(len(part)) % 3 > 0] for part in read_scores("holdout"))
    shown = rows["probe"] >= artifacts.read_json(paths.THRESHOLD)["threshold"]
    figures = {
        "rows": len(rows),
        "near_duplicates": len(twins),
        "auroc": roc_auc_score(correct, rows["probe"], sample_weight=weight),
        "precision": np.average(correct[shown], weights=weight[shown]),
        "coverage": np.average(shown, weights=weight),
        "error_rate": np.average(shown & (correct == 0), weights=weight),
    }
    assert artifacts.read_json(paths.METRICS)["holdout"]["without_near_duplicates"] == pytest.approx(figures)


@pytest.mark.parametrize(("name", "mark"), [("at_threshold", "guaranteed"), ("at_heuristic", "heuristic")])
def test_evaluate_threshold_metrics_are_weighted(bank: Params, name: str, mark: str) -> None:
    row, threshold = artifacts.read_json(paths.METRICS)["holdout"][name], artifacts.read_json(paths.THRESHOLD)
    assert row["threshold"] == (threshold if mark == "guaranteed" else threshold["heuristic"])["threshold"]
    rows, correct, weight = read_scores("holdout")
    answers = ScoredAnswers(correct, rows["probe"].to_numpy(), weight)
    expected = evaluate_at_threshold(answers, row["threshold"], read_rouge(rows)).to_dict()
    assert {figure: row[figure] for figure in expected} == pytest.approx(expected)
    assert 0 < row["coverage"] < 1 and 0 < row["rouge_shown_answers"] < len(rows)
    table = pd.read_csv(paths.PLOTS / "threshold.csv", keep_default_na=False)
    assert table.loc[table["mark"] == mark, "threshold"].tolist() == [row["threshold"]] and len(table) == 12


def test_evaluate_audits_use_the_changed_answers(bank: Params) -> None:
    """An unreadable answer of the hold-out was another question's in the shuffle, which is therefore left out."""
    interactions = DataStore(paths.DATA).read_interactions(read_reviewed("holdout")["interaction_id"])
    rows = read_holdout()
    assert len(interactions) == len(rows) + 1
    changed, served = shuffle_answers(interactions), OnnxProbe(paths.ONNX)
    confidence = {
        changed[i].interaction_id: float(served.predict([row.float()])[0])
        for i, row in FeatureSource(bank.llm, load_settings()).read(changed)
    }
    names = [name for name in rows.index if name in confidence]
    assert len(names) == len(rows) - 1
    weight = pd.Series(metrics.row_weights(rows["inclusion_probability"].to_numpy()), rows.index)
    right = [name for name in names if rows.loc[name, "correct"] == 1]
    audits = artifacts.read_json(paths.EVALUATION)["audits"]
    shuffled, removed = (
        {row["scorer"]: row for row in audits[name]} for name in ("answers_shuffled", "context_removed")
    )
    expected = np.average([confidence[name] for name in right], weights=weight[right])
    assert list(shuffled) == list(removed) == EVERYBODY
    assert shuffled["probe"]["mean_changed"] == pytest.approx(expected)
    shown = np.array([confidence[name] for name in names]) >= artifacts.read_json(paths.THRESHOLD)["threshold"]
    assert shuffled["probe"]["shown_changed"] == pytest.approx(np.average(shown, weights=weight[names]))
    assert removed["probe"]["mean"] != removed["probe"]["mean_changed"]
    assert removed["length_only"]["auroc"] == removed["length_only"]["auroc_changed"]
    assert removed["context_gain"]["mean_changed"] == pytest.approx(0.5)


def test_evaluate_slices_and_examples_use_served_threshold(bank: Params) -> None:
    content, rows = artifacts.read_json(paths.EVALUATION), read_holdout()
    threshold = artifacts.read_json(paths.THRESHOLD)["threshold"]
    scores = pd.read_parquet(paths.SCORES).set_index("interaction_id").loc[rows.index]
    strata: dict[str, dict[str, dict]] = {}
    for row in content["slices"]:
        strata.setdefault(row["by"], {})[row["slice"]] = row
    assert strata.keys() == {"kind of answer", "product", "line of business", "retrieved chunks", "answer length"}
    assert strata["product"].keys() == set(rows["product"]) and strata["retrieved chunks"].keys() == {"2", "3"}
    for name, row in strata["product"].items():
        mask = rows["product"] == name
        assert (row["rows"], row["shown"]) == (mask.sum(), (scores.loc[mask, "probe"] >= threshold).sum())
    assert "fewer than 15" in strata["product"]["vault"]["note"]
    refusals = [row.answer.startswith("Perhaps") for row in DataStore(paths.DATA).read_interactions(rows.index)]
    by_kind = {row["slice"]: row["rows"] for row in content["by_kind"]}
    assert by_kind == {"answers": len(rows) - sum(refusals), "refusals": sum(refusals)} and sum(refusals) > 0
    assert by_kind == {name: row["rows"] for name, row in strata["kind of answer"].items()}
    for kind, (shown, right) in {"caught": (0, 0), "missed": (1, 0), "withheld": (0, 1)}.items():
        for example in content["examples"][kind]:
            correct = rows.loc[example["interaction_id"], "correct"]
            assert (example["confidence"] >= threshold, correct) == (shown, right)
    assert content["examples"]["caught"] and content["examples"]["missed"]
    ideal_answers = {example["ideal_answer"] for examples in content["examples"].values() for example in examples}
    assert None in ideal_answers and len(ideal_answers) > 1


def test_evaluate_calibration_is_that_of_the_file(bank: Params) -> None:
    calibration = artifacts.read_json(paths.EVALUATION)["calibration"]
    rows = {row["method"]: row for row in calibration["by_method"]}
    assert calibration["method"] == "isotonic"
    assert list(rows) == ["none", "temperature", "isotonic", "venn_abers", "none, lstm"]
    own = artifacts.read_json(paths.METRICS)["holdout"]["scorers"]["probe"]
    assert all(rows["isotonic"][name] == pytest.approx(own[name]) for name in ("ece", "brier"))
    artifacts.write_json(paths.CALIBRATION, {"method": "isotonic", "knots": [0.0, 1.0], "values": [0.0, 0.5]})
    evaluate.stage(bank)
    scores = pd.read_parquet(paths.SCORES)
    np.testing.assert_allclose(scores["probability"], scores["probe"] / 2)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
def test_evaluate_one_class_holdout_has_no_auroc(bank: Params) -> None:
    write_labels("split == 'holdout'", correct=1)
    write_labels("split == 'newest'", split="excluded")
    evaluate.stage(bank)
    result = artifacts.read_json(paths.METRICS)
    holdout = result["holdout"]
    assert holdout["base_rate"] == 1
    assert {row["auroc"] for row in holdout["scorers"].values()} == {None}
    assert holdout["scorers"]["probe"]["brier"] is not None and holdout["at_threshold"]["precision"] == 1
    assert result["newest"] == {"rows": 0, "sampled_unevenly": 0, "effective_sample_size": 0.0, "auroc": None}
    assert set(pd.read_parquet(paths.SCORES)["split"]) == {"holdout"}
    write_labels("split == 'holdout'", source="thumb")
    with pytest.raises(AbstainError, match="thumbs cannot test"):
        evaluate.stage(bank)


def test_evaluate_without_signals_compares_probes(bank: Params) -> None:
    run_stages(change(bank, "scorers", enabled=()), "features", "train_fusion", "evaluate")
    said = artifacts.read_json(paths.EVALUATION)
    assert set(said["kinds"]) == {"probe", "fusion", "length_only", *REGRESSORS, "lstm", "base_rate"}
    assert said["rank_correlation"] == {"names": [], "matrix": []} and said["skipped"] == said["improbable"] == {}
    assert said["neither"] is None


def test_ablate_evaluates_sites_and_left_out_products(bank: Params) -> None:
    ablations, content = artifacts.read_json(paths.ABLATIONS), artifacts.read_json(paths.EVALUATION)
    assert content["ablations"] == ablations["sites"]
    assert content["audits"]["product_left_out"] == ablations["left_out"]
    sites = {(row["layer"], row["site"], row["chunks"]): row for row in ablations["sites"]}
    assert list(sites) == [(2, "residual", None), (1, "residual", None), (3, "residual", None), (2, "residual", 1)]
    assert [row["served"] for row in sites.values()] == [True, False, False, False]
    assert len({row["auroc"] for row in sites.values()}) == len({row["out_of_fold"] for row in sites.values()}) == 4
    # The sweep's architecture is the served one: at the served site it is the same probe.
    holdout, served = artifacts.read_json(paths.METRICS)["holdout"], sites[2, "residual", None]
    assert served["auroc"] == pytest.approx(holdout["scorers"]["probe"]["auroc"])
    assert served["out_of_fold"] == pytest.approx(artifacts.read_json(paths.PROBE_CHOICE)["out_of_fold"]["linear"])
    for name in ("precision", "recall", "rouge_shown"):
        assert served[name] == pytest.approx(holdout["at_heuristic"][name])
    left_out = {row["product"]: row for row in ablations["left_out"]}
    assert list(left_out) == ["cards", "loans", "vault"] and left_out["vault"].keys() == {"product", "rows", "note"}
    slices = {row["slice"]: row for row in content["slices"] if row["by"] == "product"}
    for name in ("cards", "loans"):
        assert left_out[name]["note"] == "" and left_out[name]["auroc"] != left_out[name]["auroc_trained_on_all"]
        assert left_out[name]["auroc_trained_on_all"] == pytest.approx(slices[name]["auroc"])


def read_validation() -> tuple[pd.DataFrame, np.ndarray]:
    """The reviewed answers of the validation split and the served probe's confidences of them."""
    rows = read_readable("validation")
    states = load_labelled_states()[1].subset(rows.index)
    return rows, predict_confidence(load_probe(paths.PROBE), states).numpy().astype(float)


def test_tune_threshold_uses_reviewed_validation_answers(bank: Params) -> None:
    found, stored = artifacts.read_json(paths.THRESHOLD), artifacts.read_json(paths.CALIBRATION)
    rows, confidence = read_validation()
    guarantee, evidence = found["guarantee"], found["guarantee"]["evidence"]
    asked = {name: getattr(bank.threshold, name) for name in ("metric", "target", "confidence")}
    assert guarantee.items() >= {"status": "unchecked", "holdout": None, **asked}.items()
    assert evidence["reviews"] == len(rows) > evidence["n_eff"] > 10
    assert evidence["reviewers"] == rows["reviewers"].explode().nunique() and evidence["largest_reviewer_share"] == 1
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
    if has_heuristic:
        expected = {"threshold": stored["threshold"], **{name: estimates[name] for name in ("precision", "coverage")}}
        assert stored["heuristic"].items() >= expected.items() and guarantee["additional_reviews"] > 0
    else:
        assert stored["heuristic"] is None and estimates["precision"] < target and 0 < estimates["coverage"] <= 1
    table = pd.read_csv(paths.PLOTS / "threshold.csv", keep_default_na=False)
    assert sorted(table["mark"].unique()) == ["", "heuristic"] and (table["mark"] == "heuristic").sum() == 1
    holdout = artifacts.read_json(paths.METRICS)["holdout"]
    assert holdout["at_heuristic"].items() <= holdout["at_threshold"].items()
    assert artifacts.read_json(paths.EVALUATION)["threshold"] == stored
    text = (paths.REPORT / "report.md").read_text()
    assert "No guarantee can be made" in text and guarantee["message"] in text


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
    export_onnx.stage(change(bank, "llm", includes_eos=False))
    assert OnnxProbe(paths.ONNX).metadata["includes_eos"] == "false"


def test_export_onnx_parity_above_limit_raises(bank: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_onnx, "MAX_PARITY", 1e-12)
    paths.PARITY.unlink()
    with pytest.raises(AbstainError, match="^probe: .* 1e-12"):
        export_onnx.stage(bank)
    assert not paths.PARITY.exists()
