"""What the stages `nll_features` and `train_regressors` leave: features of every answer, estimates that nothing leaked into."""

import numpy as np
import pandas as pd
import pytest

from abstain.config.params import Params
from abstain.core import paths
from abstain.data.store.splits import select_reviewed
from abstain.learning.estimators.parity import MAX_PARITY
from abstain.learning.estimators.regressors.onnx_regressor import OnnxRegressor
from abstain.learning.metrics.weighted_metrics import auroc, row_weights
from abstain.llm.features.shard_job import LocalRunner
from abstain.llm.signals.counterfactuals import COUNTERFACTUALS
from abstain.stages.nll_features import __main__ as nll_features
from abstain.stages.shared import artifacts
from abstain.stages.train_regressors import __main__ as train_regressors
from tests.factories import bytes_of
from tests.tolerance import assert_near

pytestmark = pytest.mark.slow

NAMES = [f"{kind}_{target}" for target in ("label", "cosine") for kind in ("random_forest", "linear")]


def with_regressors(params: Params, **changes: object) -> Params:
    return params.model_copy(update={"regressors": params.regressors.model_copy(update=changes)})


def read_variant(file: str, variant: str) -> pd.DataFrame:
    table = pd.read_parquet(file)
    return table[table["variant"] == variant].drop(columns="variant").set_index("interaction_id")


def test_nll_features_have_rows_per_answer_and_variant(bank: Params) -> None:
    frame = artifacts.read_dataset_frame()
    holdout = select_reviewed(frame[frame["split"] == "holdout"])["interaction_id"].tolist()
    for file in (paths.NLL_FEATURES, paths.REGRESSOR_SCORES):
        assert read_variant(file, "asked").index.tolist() == frame["interaction_id"].tolist()
        for variant in COUNTERFACTUALS:
            assert read_variant(file, variant).index.tolist() == holdout
    assert list(read_variant(paths.REGRESSOR_SCORES, "asked")) == NAMES


def test_train_regressors_unreadable_answer_has_no_estimate(bank: Params) -> None:
    refused = set(artifacts.read_json(paths.FEATURES_SUMMARY)["unreadable"])
    scores = read_variant(paths.REGRESSOR_SCORES, "asked")
    assert len(refused) == 2
    assert set(scores.index[scores["linear_label"].isna()]) == refused
    known = scores.to_numpy()[~np.isnan(scores.to_numpy())]
    assert ((known >= 0) & (known <= 1)).all() and scores.nunique().min() > 1


def test_train_regressors_training_estimates_out_of_fold(bank: Params) -> None:
    frame = artifacts.read_dataset_frame().set_index("interaction_id")
    features, scores = (read_variant(file, "asked") for file in (paths.NLL_FEATURES, paths.REGRESSOR_SCORES))
    features = features[features.notna().any(axis=1)]
    for name in NAMES:
        said = pd.Series(
            OnnxRegressor((paths.REGRESSORS / f"{name}.onnx").read_bytes()).predict(features), features.index
        )
        train = frame.loc[features.index, "split"] == "train"
        estimated = scores.loc[said.index, name]
        assert_near(said[~train], estimated[~train], np.float32)
        assert (~np.isclose(said[train], estimated[train])).mean() > 0.8  # both may be 1


def test_train_regressors_summary_describes_files(bank: Params) -> None:
    summary = artifacts.read_json(paths.REGRESSOR_SUMMARY)
    assert set(summary["regressors"]) == set(NAMES) and summary["skipped"] == {}
    for name, row in summary["regressors"].items():
        assert any(column.startswith("N.instruction.") for column in row["dropped"]), "the same text read first"
        assert any(column.startswith("B.context.") for column in row["dropped"])
        assert row["parity"] <= MAX_PARITY
        assert row["bytes"] == (paths.REGRESSORS / f"{name}.onnx").stat().st_size
        assert row["folds"] == bank.regressors.folds


def test_train_regressors_holdout_metrics_are_weighted(bank: Params) -> None:
    frame = artifacts.read_dataset_frame()
    holdout = select_reviewed(frame[frame["split"] == "holdout"])
    scores = read_variant(paths.REGRESSOR_SCORES, "asked").loc[holdout["interaction_id"]]
    weight = row_weights(holdout["inclusion_probability"].to_numpy(float))
    for name in ("random_forest_label", "linear_label"):
        found = artifacts.read_json(paths.REGRESSOR_SUMMARY)["regressors"][name]["holdout"]
        predicted, correct = scores[name].to_numpy(), holdout["correct"].to_numpy()
        assert found["labelled"] == len(holdout) and 0 < found["threshold"] < 1
        error = (np.where(np.isnan(predicted), 0, predicted) - correct) ** 2
        assert found["mse"] == pytest.approx(np.average(error, weights=weight))
        assert found["auroc"] == pytest.approx(float(auroc(correct, predicted, weight)))
        assert found["mse_low"] <= found["mse"] <= found["mse_high"]


def test_train_regressors_missing_target_is_skipped(
    bank: Params, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_regressors, "read_ideal_answers", dict)
    train_regressors.stage(bank)
    skipped = artifacts.read_json(paths.REGRESSOR_SUMMARY)["skipped"]
    assert set(skipped) == {"random_forest_cosine", "linear_cosine"}
    assert all("the target cosine is known for no training answer" in why for why in skipped.values())
    assert "skipped: regressor linear_cosine: A301" in capsys.readouterr().out
    assert set(bytes_of(paths.REGRESSORS)) == {"random_forest_label.onnx", "linear_label.onnx"}


def test_train_regressors_without_kinds_runs_no_model(bank: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalRunner, "run", lambda runner, shards: pytest.fail("no model is needed for this"))
    nll_features.stage(with_regressors(bank, kinds=()))
    train_regressors.stage(with_regressors(bank, kinds=()))
    assert artifacts.read_json(paths.REGRESSOR_SUMMARY) == {"regressors": {}, "skipped": {}}
    assert list(read_variant(paths.REGRESSOR_SCORES, "asked")) == []
    assert not artifacts.read_signals("asked").empty
