"""What the stage `features` leaves of the base model's reading: states, signals, and what it says of both."""

from __future__ import annotations

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
from abstain.data.store.splits import reviewed
from abstain.data.store.state_table import StateTable
from abstain.llm.features.extraction import FeatureSource
from abstain.llm.signals.base import Scorer
from abstain.llm.signals.compute_features import feature_requests_of, forward_tokens, read_answers
from abstain.llm.signals.counterfactuals import COUNTERFACTUALS
from abstain.llm.signals.registry import build_scorers
from abstain.stages.features import __main__ as features
from abstain.stages.shared import artifacts
from abstain.stages.shared.states import read_base_model
from tests.stages.builders import ONE_CHUNK_TOO_MANY
from tests.stages.conftest import Finished
from tests.tolerance import assert_near

pytestmark = pytest.mark.slow

NAMES = ["sequence_log_prob", "context_gain", "yes_score_fused", "verbalised", "length_only"]


def labelled() -> list[Interaction]:
    return DataStore(paths.DATA).interactions(artifacts.read_dataset_frame()["interaction_id"])


def scorers(params: Params) -> list[Scorer]:
    """As the stage makes them; length alone has to be fitted, on the training split."""
    found = list(build_scorers(params, load_settings()).scorers)
    frame = artifacts.read_dataset_frame()
    train = frame["split"] == "train"
    answers = read_answers(
        params.llm, load_settings(), [one for one, of in zip(labelled(), train, strict=True) if of], ()
    )
    labels = Labels(*(frame.loc[train, name].to_numpy() for name in ("correct", "weight", "group")))
    return [one.fit(answers, labels) for one in found]


def test_there_is_a_row_an_answer_and_a_variant(bank: Params) -> None:
    table, frame = pd.read_parquet(paths.SIGNALS), artifacts.read_dataset_frame()
    assert list(table) == ["interaction_id", "variant", *NAMES]
    assert not table.duplicated(["interaction_id", "variant"]).any()
    asked = table[table["variant"] == "asked"]
    assert asked["interaction_id"].tolist() == frame["interaction_id"].tolist()
    holdout = reviewed(frame[frame["split"] == "holdout"])["interaction_id"].tolist()
    for variant in COUNTERFACTUALS:
        assert table.loc[table["variant"] == variant, "interaction_id"].tolist() == holdout
    assert set(table["variant"]) == {"asked", *COUNTERFACTUALS}


def test_a_signal_is_what_its_scorer_says_of_the_answer(bank: Params) -> None:
    settings, made = load_settings(), scorers(bank)
    assert [one.name for one in made] == NAMES
    rows, frame = labelled(), artifacts.read_dataset_frame()
    judged = reviewed(frame[frame["split"] == "holdout"])["interaction_id"]
    changed = {name: variant(DataStore(paths.DATA).interactions(judged)) for name, variant in COUNTERFACTUALS.items()}
    for name, of in {"asked": rows, **changed}.items():
        few = of[::17]
        found = artifacts.read_signals(name).loc[[one.interaction_id for one in few]]
        answers = read_answers(bank.llm, settings, few, feature_requests_of(made))
        for scorer in made:
            assert_near(found[scorer.name], scorer.score(answers), np.float32)


def test_length_alone_is_fitted_on_the_training_split(bank: Params) -> None:
    """Turned labels of all other splits change no signal."""
    frame, before = artifacts.read_dataset_frame(), pd.read_parquet(paths.SIGNALS)
    right = frame["correct"]
    frame.assign(correct=right.where(frame["split"] == "train", 1 - right)).to_parquet(paths.DATASET, index=False)
    features.stage(bank)
    pd.testing.assert_frame_equal(pd.read_parquet(paths.SIGNALS), before, check_exact=True)
    frame.assign(correct=1 - right).to_parquet(paths.DATASET, index=False)
    features.stage(bank)
    turned = pd.read_parquet(paths.SIGNALS)
    pd.testing.assert_frame_equal(turned[NAMES[:-1]], before[NAMES[:-1]], check_exact=True)
    assert before["length_only"].corr(turned["length_only"]) < -0.9


def test_states_are_those_of_the_served_place(bank: Params) -> None:
    table, rows = StateTable(paths.FEATURES), labelled()
    refused = artifacts.read_json(paths.FEATURES_SUMMARY)["refused"]
    assert [one.interaction_id for one, length in zip(rows, table.lengths, strict=True) if not length] == list(refused)
    assert table.model == read_base_model() and table.model.startswith("tiny-bank@")
    source = FeatureSource(bank.llm, load_settings())
    for at, states in source.read(rows[:8]):
        assert len(states) == len(rows[at].answer.encode()) + 1, "a byte is a token here, and EOS is one"
        assert torch.equal(table[at], states.float())


def test_what_was_refused_and_cut_is_told(finished: Finished, bank: Params) -> None:
    summary = artifacts.read_json(paths.FEATURES_SUMMARY)
    frame = artifacts.read_dataset_frame().set_index("interaction_id")
    assert summary["rows"] == len(frame) - len(summary["refused"])
    assert {frame.loc[name, "split"] for name in summary["refused"]} == {"train", "holdout"}
    assert all(why.endswith("tokens are more than the 512 that tiny-bank reads") for why in summary["refused"].values())
    assert summary["chunks_dropped"] == {ONE_CHUNK_TOO_MANY: 1}
    asked = artifacts.read_signals("asked")
    silent = asked[["sequence_log_prob", "context_gain", "yes_score_fused"]].isna().any(axis=1)
    assert set(asked.index[silent]) == set(summary["refused"]) and len(summary["refused"]) == 2
    assert asked["length_only"].notna().all(), "nobody has to read an answer to know its length"
    assert 0 < asked["verbalised"].notna().sum() < len(asked) / 2, "random weights seldom write a number"


def test_what_a_scorer_costs_is_told(bank: Params) -> None:
    costs = artifacts.read_json(paths.FEATURES_SUMMARY)["forward_tokens"]
    assert costs.keys() == {*NAMES, "probe", "fusion"}
    settings, rows = load_settings(), labelled()
    for one in build_scorers(bank, settings).scorers:
        assert costs[one.name] == forward_tokens(bank.llm, settings, rows, one.readings)
    assert costs["length_only"] == 0 and costs["probe"] == costs["sequence_log_prob"] * 2 / 4, "layer 2 of 4"
    assert costs["fusion"] < sum(costs[name] for name in NAMES), "what they share is run once"
    assert costs["fusion"] > max(costs[name] for name in NAMES)


def test_a_base_model_that_can_read_nothing_is_an_error(bank: Params, tmp_path: Path) -> None:
    frame = artifacts.read_dataset_frame()
    refused = list(artifacts.read_json(paths.FEATURES_SUMMARY)["refused"])
    frame[frame["interaction_id"].isin(refused)].to_parquet(paths.DATASET, index=False)
    with pytest.raises(AbstainError, match=r"^no answer fits the base model's window: take a model that reads more"):
        features.stage(bank)
