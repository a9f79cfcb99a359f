"""What the stages that train leave: fits that nothing leaked into, by the right labels."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest

from abstain.config.params import Params
from abstain.core import paths
from abstain.core.errors import AbstainError
from abstain.core.labels import Labels
from abstain.learning.estimators.fusion import Fusion, fit_fusion
from abstain.learning.estimators.parity import MAX_PARITY
from abstain.learning.estimators.probe_registry import load_probe
from abstain.learning.estimators.regressors.onnx_regressor import OnnxRegressor
from abstain.learning.metrics.weighted_metrics import auroc, row_weights
from abstain.llm.features.shard_job import LocalRunner
from abstain.stages.nll_features import __main__ as nll_features
from abstain.stages.shared import artifacts
from abstain.stages.shared.states import load_labelled_states
from abstain.stages.train_probe import __main__ as train_probe
from abstain.stages.train_regressors import __main__ as train_regressors
from abstain.stages.tune_threshold import __main__ as tune_threshold
from tests.factories import bytes_of
from tests.stages.conftest import Finished, change, read_reviewed, run_stages, write_labels
from tests.tolerance import assert_near, tolerance

pytestmark = pytest.mark.slow

FITTED = (
    *(paths.PROBE, paths.OUT_OF_FOLD, paths.FUSIONS, paths.FUSION_OUT_OF_FOLD, paths.TRAINING, paths.PROBE_CHOICE),
    *(paths.SIGNALS, paths.REGRESSOR_SCORES),
)
REGRESSORS = [f"{kind}_{target}" for target in ("label", "cosine") for kind in ("random_forest", "linear")]
TUNED = (paths.THRESHOLD, paths.CALIBRATION)


def invert_labels(frame: pd.DataFrame, splits: Sequence[str]) -> None:
    turned = frame.assign(correct=frame["correct"].where(~frame["split"].isin(splits), 1 - frame["correct"]))
    turned.to_parquet(paths.DATASET, index=False)


def read_out_of_fold() -> pd.DataFrame:
    return pd.read_parquet(paths.OUT_OF_FOLD).set_index("interaction_id")


def test_fits_use_training_labels_only(finished: Finished, bank: Params) -> None:
    invert_labels(artifacts.read_dataset_frame(), ["validation", "holdout", "newest"])
    for name in FITTED:
        name.write_bytes(b"old")
    run_stages(bank, "features", "train_regressors", "train_probe", "train_fusion")
    assert [str(file) for file in FITTED if file.read_bytes() != (finished.root / file).read_bytes()] == []
    for folder, count in ((paths.PROBES, 2), (paths.REGRESSORS, 4)):
        assert bytes_of(folder) == bytes_of(finished.root / folder) and len(bytes_of(folder)) == count


@pytest.mark.parametrize(("splits", "same"), [(["holdout", "newest"], True), (["validation"], False)])
def test_tune_threshold_uses_validation_labels_only(bank: Params, splits: list[str], same: bool) -> None:
    lenient = change(bank, "threshold", target=0.2, on_infeasible="heuristic")
    tune_threshold.stage(lenient)
    before = [file.read_bytes() for file in TUNED]
    invert_labels(artifacts.read_dataset_frame(), splits)
    for file in TUNED:
        file.write_bytes(b"old")
    tune_threshold.stage(lenient)
    assert [file.read_bytes() == old for file, old in zip(TUNED, before, strict=True)] == [same, same]


def test_train_probe_out_of_fold_ignores_own_labels(bank: Params) -> None:
    """One right and one wrong answer of a group exchange labels, so that folds stay as they were; probes go one epoch,
    so that how far they go is the same."""
    short = change(bank, "probe", architectures=("lstm",), max_epochs=1)
    train_probe.stage(short)
    frame, before, probe = artifacts.read_dataset_frame(), read_out_of_fold()["lstm"], paths.PROBE.read_bytes()
    readable, _ = load_labelled_states()
    assert before.index.tolist() == readable.loc[readable["split"] == "train", "interaction_id"].tolist()
    learnt = frame[frame["interaction_id"].isin(before.index) & (frame["source"] == "review")]
    of_both_kinds = learnt.groupby("group")["correct"].nunique() == 2
    group = of_both_kinds.index[of_both_kinds][0]
    for right in (0, 1):
        at = learnt.index[(learnt["group"] == group) & (learnt["correct"] == right)][0]
        frame.loc[at, "correct"] = 1 - right
    frame.to_parquet(paths.DATASET, index=False)
    train_probe.stage(short)
    after = read_out_of_fold()["lstm"]
    own = frame.loc[(frame["group"] == group) & frame["interaction_id"].isin(before.index), "interaction_id"]
    assert len(own) > 2
    near = np.isclose(after, before, rtol=tolerance(np.float32), atol=tolerance(np.float32))
    assert near[after.index.isin(own)].all()
    # Of three folds, the probes of two have learnt from this group; and so has the one that is exported.
    assert 0.5 < (~near).mean() < 0.8 and paths.PROBE.read_bytes() != probe


def test_train_probe_exports_best_by_reviewed_answers(finished: Finished, bank: Params) -> None:
    choice = artifacts.read_json(paths.PROBE_CHOICE)
    judged = read_reviewed("train").set_index("interaction_id")
    judged = judged.loc[judged.index.isin(read_out_of_fold().index)]
    weight = row_weights(judged["inclusion_probability"].to_numpy())
    for name, column in read_out_of_fold().items():
        expected = auroc(judged["correct"].to_numpy(), column[judged.index].to_numpy(), weight)
        assert choice["out_of_fold"][name] == expected
    assert choice["requested"] == "best" and choice["exported"] == max(
        choice["out_of_fold"], key=choice["out_of_fold"].get
    )
    assert load_probe(paths.PROBE).architecture == choice["exported"] == "linear"
    other = change(bank, "probe", export="lstm")
    train_probe.stage(other)
    assert paths.PROBE.read_bytes() == (paths.PROBES / "lstm.safetensors").read_bytes()
    described = artifacts.read_json(paths.PROBE_CHOICE)
    assert described.pop("description").startswith("LSTM(")
    assert {**choice, "requested": "lstm", "exported": "lstm"} == {**described, "description": choice["description"]}
    assert bytes_of(paths.PROBES) == bytes_of(finished.root / paths.PROBES), "the others are what they were"
    assert not pd.read_csv(paths.TRAINING).equals(pd.read_csv(finished.root / paths.TRAINING))


def test_train_probe_best_without_both_labels_raises(bank: Params) -> None:
    write_labels("split == 'train'", source="thumb")
    with pytest.raises(AbstainError, match=r"probe\.export to one of linear, lstm"):
        train_probe.stage(bank)
    train_probe.stage(change(bank, "probe", export="linear"))
    assert artifacts.read_json(paths.PROBE_CHOICE)["out_of_fold"] == {"linear": None, "lstm": None}


def test_train_fusion_uses_out_of_fold_confidences(bank: Params) -> None:
    fusion = Fusion.from_dict(artifacts.read_json(paths.FUSIONS)["fusion"])
    exported = artifacts.read_json(paths.PROBE_CHOICE)["exported"]
    scores = artifacts.read_signals("asked").drop(columns="length_only").assign(probe=read_out_of_fold()[exported])
    scores = scores[["probe", *(name for name in scores if name != "probe")]].loc[read_out_of_fold().index]
    rows = artifacts.read_dataset_frame().set_index("interaction_id").loc[scores.index]
    computed_by_hand = fit_fusion(scores, Labels(*(rows[name].to_numpy() for name in ("correct", "weight", "group"))))
    expected = computed_by_hand.fusion.drop_unused()
    assert expected.coefficients == pytest.approx(fusion.coefficients, abs=1e-6) and "probe" in fusion.names
    learnt = {"probe", "writer", *artifacts.read_json(paths.REGRESSOR_SUMMARY)["regressors"]}
    assert max(fusion.coefficients, key=lambda name: fusion.coefficients[name]) in learnt and learnt < set(scores)


def read_variant(file: str, variant: str) -> pd.DataFrame:
    table = pd.read_parquet(file)
    return table[table["variant"] == variant].drop(columns="variant").set_index("interaction_id")


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
    for name in REGRESSORS:
        said = pd.Series(
            OnnxRegressor((paths.REGRESSORS / f"{name}.onnx").read_bytes()).predict(features), features.index
        )
        train = frame.loc[features.index, "split"] == "train"
        estimated = scores.loc[said.index, name]
        assert_near(said[~train], estimated[~train], np.float32)
        assert (~np.isclose(said[train], estimated[train])).mean() > 0.8  # both may be 1


def test_train_regressors_summary_describes_files(bank: Params) -> None:
    summary = artifacts.read_json(paths.REGRESSOR_SUMMARY)
    assert set(summary["regressors"]) == set(REGRESSORS) and summary["skipped"] == {}
    for name, row in summary["regressors"].items():
        assert any(column.startswith("N.instruction.") for column in row["dropped"]), "the same text read first"
        assert any(column.startswith("B.context.") for column in row["dropped"])
        assert row["parity"] <= MAX_PARITY
        assert row["bytes"] == (paths.REGRESSORS / f"{name}.onnx").stat().st_size
        assert row["folds"] == bank.regressors.folds


def test_train_regressors_holdout_metrics_are_weighted(bank: Params) -> None:
    holdout = read_reviewed("holdout")
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
    with pytest.raises(AbstainError, match=r"regressors\.encoder: no model is saved in nowhere"):
        train_regressors.stage(change(bank, "regressors", encoder="nowhere"))


def test_train_regressors_without_kinds_runs_no_model(bank: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalRunner, "run", lambda runner, shards: pytest.fail("no model is needed for this"))
    nll_features.stage(change(bank, "regressors", kinds=()))
    train_regressors.stage(change(bank, "regressors", kinds=()))
    assert artifacts.read_json(paths.REGRESSOR_SUMMARY) == {"regressors": {}, "skipped": {}}
    assert list(read_variant(paths.REGRESSOR_SCORES, "asked")) == []
    assert not artifacts.read_signals("asked").empty
