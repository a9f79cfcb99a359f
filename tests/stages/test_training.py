"""What the stages that read features and train leave: fits that nothing leaked into, by the right labels."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest

from abstain.config.params import Params
from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.core.labels import Labels
from abstain.data.store.dataset import DataStore
from abstain.learning.estimators.cross_validation import fit_probe
from abstain.learning.estimators.fusion import Fusion, fit_fusion
from abstain.learning.estimators.parity import MAX_PARITY
from abstain.learning.estimators.probe_registry import load_probe
from abstain.learning.estimators.regressors.onnx_regressor import OnnxRegressor
from abstain.learning.estimators.training_rows import make_training_rows
from abstain.learning.metrics.weighted_metrics import auroc, row_weights
from abstain.llm.features.shard_job import JobStats, LocalRunner
from abstain.llm.signals.base import FeatureBatch
from abstain.llm.signals.compute_features import collect_feature_requests, estimate_forward_tokens, read_features
from abstain.llm.signals.counterfactuals import COUNTERFACTUALS
from abstain.llm.signals.feature_plan import list_candidate_sites
from abstain.llm.signals.out_of_fold import fit_scorer
from abstain.llm.signals.registry import build_scorers
from abstain.stages import choose_site
from abstain.stages.features import __main__ as features
from abstain.stages.nll_features import __main__ as nll_features
from abstain.stages.shared import artifacts
from abstain.stages.shared.states import load_labelled_states
from abstain.stages.train_probe import __main__ as train_probe
from abstain.stages.train_regressors import __main__ as train_regressors
from abstain.stages.tune_threshold import __main__ as tune_threshold
from tests.factories import bytes_of
from tests.stages.builders import FUSIONS, NEW_VERSION, ONE_CHUNK_TOO_MANY, REGRESSORS, SIGNALS
from tests.stages.conftest import Finished, change, read_reviewed, run_stages, use_home, write_labels
from tests.tolerance import assert_near

pytestmark = pytest.mark.slow

FITTED = (
    *(paths.PROBE, paths.OUT_OF_FOLD, paths.FUSIONS, paths.FUSION_OUT_OF_FOLD, paths.TRAINING, paths.PROBE_CHOICE),
    *(paths.SIGNALS, paths.REGRESSOR_SCORES),
)
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


def test_train_probe_fits_readable_training_rows_by_group(bank: Params) -> None:
    frame, states = load_labelled_states()
    train = frame[frame["split"] == "train"]
    rows = make_training_rows(train, states.subset)
    expected = fit_probe("linear", rows, train["group"].to_numpy(), bank.probe).out_of_fold
    assert read_out_of_fold().index.tolist() == train["interaction_id"].tolist()
    assert_near(read_out_of_fold()["linear"], expected, np.float32)


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


def read_labelled() -> list[Interaction]:
    return DataStore(paths.DATA).read_interactions(artifacts.read_dataset_frame()["interaction_id"])


def read_training() -> tuple[FeatureBatch, Labels]:
    frame = artifacts.read_dataset_frame()
    train = frame["split"] == "train"
    labels = Labels(*(frame.loc[train, name].to_numpy() for name in ("correct", "weight", "group")))
    return FeatureBatch([one for one, of in zip(read_labelled(), train, strict=True) if of], {}), labels


def test_tables_have_rows_per_answer_and_variant(bank: Params) -> None:
    frame = artifacts.read_dataset_frame()
    ids = {"asked": frame["interaction_id"].tolist()}
    holdout = read_reviewed("holdout")["interaction_id"].tolist()
    for file in (paths.SIGNALS, paths.NLL_FEATURES, paths.REGRESSOR_SCORES):
        table = pd.read_parquet(file)
        found = {name: rows["interaction_id"].tolist() for name, rows in table.groupby("variant", sort=False)}
        assert found == ids | dict.fromkeys(COUNTERFACTUALS, holdout)
    assert list(pd.read_parquet(paths.SIGNALS)) == ["interaction_id", "variant", *SIGNALS]
    assert all(artifacts.read_signals(variant)["writer"].isna().all() for variant in COUNTERFACTUALS)


def test_features_signals_match_their_scorers(bank: Params) -> None:
    settings = load_settings()
    scorers = [one.fit(*read_training()) for one in build_scorers(bank, settings).scorers]
    assert [scorer.name for scorer in scorers] == SIGNALS
    frame = artifacts.read_dataset_frame()
    store, reviewed = DataStore(paths.DATA), read_reviewed("holdout")["interaction_id"]
    interactions = {"asked": store.read_interactions(frame.loc[frame["split"] != "train", "interaction_id"])}
    interactions |= {name: variant(store.read_interactions(reviewed)) for name, variant in COUNTERFACTUALS.items()}
    for name, rows in interactions.items():
        batch = read_features(bank.llm, settings, rows[::17], collect_feature_requests(scorers))
        signals = artifacts.read_signals(name).loc[[row.interaction_id for row in rows[::17]]]
        for scorer in scorers:
            assert_near(signals[scorer.name], scorer.score(batch), np.float32)


def test_features_training_signals_are_out_of_fold(bank: Params) -> None:
    train, labels = read_training()
    folds = labels.assign_folds(bank.probe.folds, bank.probe.seed)
    assert set(folds) == {0, 1, 2}
    asked = artifacts.read_signals("asked").loc[[one.interaction_id for one in train.interactions]]
    for scorer in build_scorers(bank, load_settings()).scorers:
        if scorer.name in ("writer", "length_only"):
            fitted = fit_scorer(scorer, train, labels, folds)
            assert_near(asked[scorer.name], fitted.out_of_fold, np.float32)
            assert not np.allclose(fitted.out_of_fold, fitted.scorer.score(train), equal_nan=True)


def test_features_new_version_answers_are_scored(bank: Params) -> None:
    asked = artifacts.read_signals("asked")["writer"]
    without = {one.interaction_id for one in read_labelled() if not one.writer_scores}
    assert set(asked.index[asked.isna()]) == without and len(without) < len(asked) / 4
    assert f"{NEW_VERSION}, refusals, writer.judge" in artifacts.read_json(paths.EVALUATION)["ranked_apart"]


def test_features_without_writer_scores_skip_writer(bank: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {one.interaction_id: one.model_copy(update={"writer_scores": None}) for one in read_labelled()}
    monkeypatch.setattr(DataStore, "read_interactions", lambda self, ids: [rows[one] for one in ids])
    before = artifacts.read_signals("asked")
    run_stages(bank, "features", "train_fusion", "evaluate")
    reason = artifacts.read_json(paths.EVALUATION)["skipped"]["writer"]
    assert reason.startswith("A109: ") and "writer_scores" in reason
    pd.testing.assert_frame_equal(artifacts.read_signals("asked"), before.drop(columns="writer"), check_exact=True)
    assert artifacts.read_json(paths.EVALUATION)["ranked_apart"] == ""


def test_features_summary_lists_unreadable_and_shortened(bank: Params) -> None:
    summary = artifacts.read_json(paths.FEATURES_SUMMARY)
    frame = artifacts.read_dataset_frame().set_index("interaction_id")
    assert summary["rows"] == len(frame) - len(summary["unreadable"])
    assert {frame.loc[name, "split"] for name in summary["unreadable"]} == {"train", "holdout"}
    assert all("512" in reason for reason in summary["unreadable"].values())
    assert summary["chunks_dropped"] == {ONE_CHUNK_TOO_MANY: 1}
    asked = artifacts.read_signals("asked")
    silent = asked[["sequence_log_prob", "context_gain", "yes_score_fused"]].isna().any(axis=1)
    assert set(asked.index[silent]) == set(summary["unreadable"]) and len(summary["unreadable"]) == 2
    assert asked["length_only"].notna().all(), "nobody has to read an answer to know its length"
    assert 0 < asked["verbalized"].notna().sum() < len(asked) / 2, "random weights seldom write a number"


def test_features_summary_has_forward_tokens(bank: Params) -> None:
    costs = artifacts.read_json(paths.FEATURES_SUMMARY)["forward_tokens"]
    assert costs.keys() == {*SIGNALS[:-1], "probe", "regressors", *FUSIONS}
    settings, rows = load_settings(), read_labelled()
    for one in build_scorers(bank, settings).scorers[:-1]:
        assert costs[one.name] == estimate_forward_tokens(bank.llm, settings, rows, one.requires)
    assert costs["writer"] == 0
    assert costs["probe"] == costs["sequence_log_prob"] * 2 / 4, "layer 2 of 4"
    assert costs["fusion"] < sum(costs[name] for name in SIGNALS[:-1]), "what they share is run once"
    assert costs["fusion_one_pass"] == costs["yes_score_fused"], "the others read a part of that pass"


def test_features_unusable_input_raises_before_any_pass(bank: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "compute_missing", None)
    with pytest.raises(AbstainError, match=r"^llm.layer: auto"):
        features.stage(change(bank, "llm", layer="auto"))
    refused = list(artifacts.read_json(paths.FEATURES_SUMMARY)["unreadable"])
    write_labels("split == 'train'", group="one")
    with pytest.raises(AbstainError, match="groups that it has not seen"):
        features.stage(bank)
    frame = artifacts.read_dataset_frame()
    frame[frame["interaction_id"].isin(refused)].to_parquet(paths.DATASET, index=False)
    with pytest.raises(AbstainError, match="^no answer fits"):
        features.stage(bank)


@pytest.mark.parametrize(("depth", "layers"), [(30, [10, 15, 20, 25]), (4, [1, 2, 3]), (1, [1])])
def test_list_candidate_sites_spans_middle_layers(depth: int, layers: list[int]) -> None:
    assert [(at.layer, at.site) for at in list_candidate_sites(depth)] == [
        (layer, site) for layer in layers for site in ("residual", "mlp", "neurons")
    ]


def take_groups(step: int) -> None:
    """Leave every `step`-th group in the data set: enough to read and to rank."""
    frame = artifacts.read_dataset_frame()
    frame[frame["group"].str.removeprefix("g-").astype(int) % step == 0].to_parquet(paths.DATASET, index=False)


def test_choose_site_reads_no_answer_twice(
    bank: Params, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the stage reads the others only: together no more tokens than the stage alone reads."""
    take_groups(6)
    costs: list[JobStats] = []
    for module in (features, choose_site):
        compute = module.compute_missing
        monkeypatch.setattr(
            module, "compute_missing", lambda *args, _compute=compute: costs.append(_compute(*args)) or costs[-1]
        )
    use_home(monkeypatch, tmp_path_factory.mktemp("one-pass"))
    features.stage(change(bank, "llm", layer=3))
    use_home(monkeypatch, tmp_path_factory.mktemp("choice-first"))
    choice = choose_site.choose_site(change(bank, "llm", layer="auto"))
    features.stage(change(bank, "llm", layer=3))
    alone, chosen, rest = (cost.forward_tokens for cost in costs)
    assert 0 < chosen < alone and 0 < rest < alone
    assert chosen + rest <= alone * 1.02  # a prefix that a training answer shares with another is read in both
    train = artifacts.read_dataset_frame().query("split == 'train'")
    assert choice.rows <= len(train) and choice.reviewed <= (train["source"] == "review").sum()
    assert (choice.layer, choice.site) in [(site.layer, site.site) for site in choice.sites]
    assert all(site.auroc_low <= site.auroc <= site.auroc_high for site in choice.sites)


def test_choose_site_uses_reviewed_training_answers(bank: Params) -> None:
    take_groups(6)
    before = choose_site.choose_site(change(bank, "llm", layer="auto"))
    write_labels("split != 'train'", correct=0)
    assert choose_site.choose_site(change(bank, "llm", layer="auto")) == before
    write_labels("split == 'train'", source="thumb")
    with pytest.raises(AbstainError, match="set llm.layer"):
        choose_site.choose_site(change(bank, "llm", layer="auto"))
