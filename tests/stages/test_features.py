from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from abstain.config.params import Params
from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.core.labels import Labels
from abstain.data.store.dataset import DataStore
from abstain.data.store.state_table import StateTable
from abstain.llm.features.extraction import FeatureSource
from abstain.llm.features.shard_job import JobStats
from abstain.llm.signals.base import FeatureBatch, Scorer
from abstain.llm.signals.compute_features import collect_feature_requests, estimate_forward_tokens, read_features
from abstain.llm.signals.counterfactuals import COUNTERFACTUALS
from abstain.llm.signals.feature_plan import list_candidate_sites
from abstain.llm.signals.registry import build_scorers
from abstain.stages import choose_site
from abstain.stages.features import __main__ as features
from abstain.stages.shared import artifacts
from abstain.stages.shared.states import read_base_model
from tests.stages.builders import NEW_VERSION, ONE_CHUNK_TOO_MANY
from tests.stages.conftest import Finished, change, read_reviewed, run_stages, use_home, write_labels
from tests.tolerance import assert_near

pytestmark = pytest.mark.slow

FIXED = ["sequence_log_prob", "context_gain", "yes_score_fused", "verbalized"]
NAMES = [*FIXED, "writer", "length_only"]


def read_labelled() -> list[Interaction]:
    return DataStore(paths.DATA).read_interactions(artifacts.read_dataset_frame()["interaction_id"])


def read_training() -> tuple[FeatureBatch, Labels]:
    frame = artifacts.read_dataset_frame()
    train = frame["split"] == "train"
    labels = Labels(*(frame.loc[train, name].to_numpy() for name in ("correct", "weight", "group")))
    return FeatureBatch([one for one, of in zip(read_labelled(), train, strict=True) if of], {}), labels


def fit_scorers(params: Params) -> list[Scorer]:
    """As the stage makes them; length and the writer's scores have to be fitted, on the training split."""
    return [one.fit(*read_training()) for one in build_scorers(params, load_settings()).scorers]


def test_tables_have_rows_per_answer_and_variant(bank: Params) -> None:
    frame = artifacts.read_dataset_frame()
    ids = {"asked": frame["interaction_id"].tolist()}
    holdout = read_reviewed("holdout")["interaction_id"].tolist()
    for file in (paths.SIGNALS, paths.NLL_FEATURES, paths.REGRESSOR_SCORES):
        table = pd.read_parquet(file)
        found = {name: rows["interaction_id"].tolist() for name, rows in table.groupby("variant", sort=False)}
        assert found == ids | dict.fromkeys(COUNTERFACTUALS, holdout)
    assert list(pd.read_parquet(paths.SIGNALS)) == ["interaction_id", "variant", *NAMES]
    assert all(artifacts.read_signals(variant)["writer"].isna().all() for variant in COUNTERFACTUALS)


def test_features_signals_match_their_scorers(bank: Params) -> None:
    settings, scorers = load_settings(), fit_scorers(bank)
    assert [scorer.name for scorer in scorers] == NAMES
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
    ids = np.array([one.interaction_id for one in train.interactions])
    asked = artifacts.read_signals("asked")
    for scorer in build_scorers(bank, load_settings()).scorers:
        if scorer.name in FIXED:
            continue
        for fold in range(3):
            held_out, others = (np.flatnonzero(rows) for rows in (folds == fold, folds != fold))
            copy = scorer.fit(train.take(others.tolist()), labels.subset(folds != fold))
            expected = copy.score(train.take(held_out.tolist()))
            assert_near(asked.loc[ids[held_out], scorer.name], expected, np.float32)
            seen = scorer.fit(train, labels).score(train.take(held_out.tolist()))
            assert not np.allclose(expected, seen, equal_nan=True)


def test_features_new_version_answers_are_scored(finished: Finished, bank: Params) -> None:
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


def test_features_states_are_of_the_served_site(bank: Params) -> None:
    table, rows = StateTable(paths.FEATURES), read_labelled()
    refused = artifacts.read_json(paths.FEATURES_SUMMARY)["unreadable"]
    assert [one.interaction_id for one, length in zip(rows, table.lengths, strict=True) if not length] == list(refused)
    assert table.model == read_base_model() and table.model.startswith("tiny-bank@")
    source = FeatureSource(bank.llm, load_settings())
    for at, states in source.read(rows[:8]):
        assert len(states) == len(rows[at].answer.encode()) + 1, "a byte is a token here, and EOS is one"
        assert torch.equal(table[at], states.float())


def test_features_summary_lists_unreadable_and_shortened(finished: Finished, bank: Params) -> None:
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
    fusions = {"fusion_free", "fusion_one_pass", "fusion_two_passes", "fusion"}
    assert costs.keys() == {*NAMES[:-1], "probe", "regressors", *fusions}
    settings, rows = load_settings(), read_labelled()
    for one in build_scorers(bank, settings).scorers[:-1]:
        assert costs[one.name] == estimate_forward_tokens(bank.llm, settings, rows, one.requires)
    assert costs["writer"] == 0
    assert costs["probe"] == costs["sequence_log_prob"] * 2 / 4, "layer 2 of 4"
    assert costs["fusion"] < sum(costs[name] for name in NAMES[:-1]), "what they share is run once"
    assert costs["fusion"] > max(costs[name] for name in NAMES[:-1])
    assert costs["fusion_one_pass"] == costs["yes_score_fused"], "the others read a part of that pass"
    assert costs["fusion_two_passes"] > costs["context_gain"]


def test_features_too_few_groups_raise_before_any_pass(bank: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    write_labels("split == 'train'", group="one")
    monkeypatch.setattr(features, "compute_missing", None)
    with pytest.raises(AbstainError, match="groups that it has not seen"):
        features.stage(bank)


def test_features_nothing_readable_raises(bank: Params, tmp_path: Path) -> None:
    frame = artifacts.read_dataset_frame()
    refused = list(artifacts.read_json(paths.FEATURES_SUMMARY)["unreadable"])
    frame[frame["interaction_id"].isin(refused)].to_parquet(paths.DATASET, index=False)
    with pytest.raises(AbstainError, match="^no answer fits"):
        features.stage(bank)


@pytest.mark.parametrize(("depth", "layers"), [(30, [10, 15, 20, 25]), (4, [1, 2, 3]), (1, [1])])
def test_list_candidate_sites_spans_middle_layers(depth: int, layers: list[int]) -> None:
    assert [(at.layer, at.site) for at in list_candidate_sites(depth)] == [
        (layer, site) for layer in layers for site in ("residual", "mlp")
    ]


def test_features_layer_auto_raises(bank: Params) -> None:
    with pytest.raises(AbstainError, match=r"^llm.layer: auto"):
        features.stage(change(bank, "llm", layer="auto"))


def test_choose_site_reads_no_answer_twice(
    bank: Params, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the stage reads the others only: together no more tokens than the stage alone reads."""
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
    before = choose_site.choose_site(change(bank, "llm", layer="auto"))
    write_labels("split != 'train'", correct=0)
    assert choose_site.choose_site(change(bank, "llm", layer="auto")) == before
    write_labels("split == 'train'", source="thumb")
    with pytest.raises(AbstainError, match="set llm.layer"):
        choose_site.choose_site(change(bank, "llm", layer="auto"))
