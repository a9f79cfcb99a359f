from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from abstain.config.params import Params
from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.core.errors import AbstainError
from abstain.data.store.dataset import DataStore
from abstain.data.store.splits import select_reviewed
from abstain.learning.metrics.weighted_metrics import auroc, row_weights
from abstain.serving.live_scorer import LiveScorer
from abstain.serving.predictor import Predictor
from abstain.stages.shared import artifacts
from abstain.stages.shared.states import load_labelled_states
from tests.stages.conftest import Finished, change, enter_copy, run_stages, write_labels
from tests.tolerance import assert_near

pytestmark = pytest.mark.slow


def read_served_confidences() -> pd.Series:
    return pd.read_parquet(paths.SERVED_SCORES).set_index("interaction_id")["confidence"]


@pytest.fixture(scope="module")
def unperturbed_bank(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The bank, whose regressors read no perturbed contexts, so that they can be served."""
    params = change(change(finished.params, "perturbation", n_copies=0), "audits", enabled=())
    params, root = change(params, "sweep", layers=()), tmp_path_factory.mktemp("unperturbed")
    with pytest.MonkeyPatch.context() as patch:
        enter_copy(finished, root, patch)
        run_stages(params, "features", "nll_features", "train_regressors", "train_fusion")
    return Finished(root, finished.home, params)


@pytest.fixture
def unperturbed(unperturbed_bank: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    enter_copy(unperturbed_bank, tmp_path, monkeypatch)
    return unperturbed_bank.params


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("probe", "probe"),
        ("linear_label", "regressor"),
        ("context_gain", "log_prob"),
        ("writer", "writer"),
        ("fusion_two_passes", "fusion"),
    ],
)
def test_exported_files_decide_as_evaluated(unperturbed: Params, name: str, kind: str) -> None:
    params = change(unperturbed, "serve", scorer=name)
    run_stages(params, "choose_scorer", "tune_threshold", "export_onnx", "evaluate")
    served = artifacts.read_json(paths.SCORER_CHOICE)
    assert (served["name"], served["kind"]) == (name, kind)
    frame, _ = load_labelled_states()
    rows = select_reviewed(frame[frame["split"] == "holdout"])
    predictor = Predictor.open(paths.ONNX, load_settings())
    assert (predictor.scorer.name, predictor.scorer.kind) == (name, kind)
    decisions = predictor.decide_interactions(DataStore(paths.DATA).read_interactions(rows["interaction_id"]))
    found = np.array([np.nan if one.confidence is None else one.confidence for one in decisions])
    scores = pd.read_parquet(paths.SCORES).set_index("interaction_id").loc[rows["interaction_id"]]
    for evaluated in (scores["confidence"], scores[name], read_served_confidences()[rows["interaction_id"]]):
        assert_near(found, evaluated, np.float32)
    assert np.isnan(found).any() == (kind == "writer"), "the writer did not mark every answer"
    shown = [one.decision == "show" for one in decisions]
    assert shown == [confidence >= predictor.threshold for confidence in found]
    assert predictor.threshold == artifacts.read_json(paths.THRESHOLD)["threshold"]
    parity = artifacts.read_json(paths.PARITY)
    files = {file.stem for file in paths.ONNX_PARTS.iterdir()}
    whole = {f"{name}, of its files"} if kind == "fusion" else set()
    assert parity["by_component"].keys() == {"probe", *files, *whole} and parity["max_abs_difference"] < 1e-4
    assert files == {name, *served["components"]} - {"probe", "sequence_log_prob", "context_gain"}
    evaluation = artifacts.read_json(paths.EVALUATION)
    assert evaluation["kinds"][name].startswith("served ") and evaluation["served"]["name"] == name
    if kind == "fusion":
        run_stages(params, "report")
        assert name in (paths.REPORT / "report.html").read_text()


def test_choose_scorer_training_confidences_are_out_of_fold(unperturbed: Params) -> None:
    run_stages(change(unperturbed, "serve", scorer="fusion_two_passes"), "choose_scorer")
    frame, _ = load_labelled_states()
    train = frame.loc[frame["split"] == "train", "interaction_id"]
    out_of_fold = pd.read_parquet(paths.FUSION_OUT_OF_FOLD).set_index("interaction_id")["fusion_two_passes"]
    np.testing.assert_array_equal(read_served_confidences()[train], out_of_fold[train])


def test_choose_scorer_serves_cheapest_of_the_best(unperturbed: Params) -> None:
    run_stages(change(unperturbed, "serve", scorer="best"), "choose_scorer")
    choice = artifacts.read_json(paths.SCORER_CHOICE)
    rows = {row["scorer"]: row for row in choice["candidates"]}
    costs = [row["forward_tokens"] for row in choice["candidates"]]
    assert costs == sorted(costs) and costs[0] == 0, "the writer's scores need no pass"
    assert rows.keys() == {
        *("probe", "writer", "sequence_log_prob", "context_gain", "fusion_one_pass", "fusion_two_passes"),
        *("linear_label", "random_forest_label", "linear_cosine", "random_forest_cosine"),
    }
    probe, one_pass, two = (rows[name]["forward_tokens"] for name in ("probe", "fusion_one_pass", "fusion_two_passes"))
    assert probe < one_pass < two
    assert {"lstm", "fusion", "length_only", "yes_score_fused", "verbalized"} <= choice["not_servable"].keys()
    served, best = rows[choice["name"]], max(row["auroc"] for row in rows.values())
    assert all(row["auroc"] < best for row in rows.values() if row["forward_tokens"] < served["forward_tokens"])
    frame, _ = load_labelled_states()
    reviewed = select_reviewed(frame[frame["split"] == "train"])
    weight = row_weights(reviewed["inclusion_probability"].to_numpy())
    confidence = read_served_confidences()[reviewed["interaction_id"]].to_numpy()
    assert served["auroc"] == pytest.approx(auroc(reviewed["correct"].to_numpy(), confidence, weight))


def test_choose_scorer_obeys_budget_and_kind_in_production(unperturbed: Params) -> None:
    run_stages(change(unperturbed, "serve", scorer="best", max_forward_tokens=1), "choose_scorer")
    assert artifacts.read_json(paths.SCORER_CHOICE)["name"] == "writer"
    # With an error that nothing exceeds, whatever is in production stays.
    write_labels("split == 'train' and group != group.iloc[0]", source="thumb")
    run_stages(change(unperturbed, "serve", scorer="best", current_kind="log_prob"), "choose_scorer")
    assert artifacts.read_json(paths.SCORER_CHOICE)["kind"] == "log_prob"


def test_choose_scorer_perturbed_regressors_are_not_servable(bank: Params) -> None:
    served = artifacts.read_json(paths.SCORER_CHOICE)
    regressors = artifacts.read_json(paths.REGRESSOR_SUMMARY)["regressors"]
    assert regressors and all("perturbation.n_copies" in served["not_servable"][name] for name in regressors)
    assert "fusion_two_passes" in {row["scorer"] for row in served["candidates"]}, "context_gain needs both passes"


def test_live_scorer_changed_component_file_raises(unperturbed: Params) -> None:
    run_stages(change(unperturbed, "serve", scorer="fusion_one_pass"), "choose_scorer", "tune_threshold", "export_onnx")
    assert LiveScorer.open(paths.ONNX).kind == "fusion"
    file = paths.ONNX_PARTS / "fusion_one_pass.onnx"
    content = file.read_bytes()
    for damaged in (content[:-1], b""):
        file.write_bytes(damaged)
        with pytest.raises(AbstainError, match=r"fusion_one_pass\.onnx"):
            LiveScorer.open(paths.ONNX)
