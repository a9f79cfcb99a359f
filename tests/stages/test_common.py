from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import Tensor

from abstain import paths
from abstain.errors import AbstainError
from abstain.features.table import write_table
from abstain.params import load_params
from abstain.stages import common, train_probe, tune_threshold
from tests.conftest import ROOT

D = 6


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    paths.ARTIFACTS.mkdir()
    return tmp_path


def write_inputs(lengths: list[int], rows: int | None = None) -> tuple[pd.DataFrame, list[Tensor]]:
    """A data set whose splits alternate and whose right answers' states are larger; states of `lengths`."""
    n = len(lengths) if rows is None else rows
    frame = pd.DataFrame(
        {
            "interaction_id": [f"i-{i}" for i in range(n)],
            "group": [f"g-{i}" for i in range(n)],
            "split": [("train", "validation")[i % 2] for i in range(n)],
            "correct": [i // 2 % 2 for i in range(n)],
            "weight": 1.0,
            "source": "sme",
            "inclusion_probability": float("nan"),
        }
    )
    frame.to_parquet(paths.DATASET, index=False)
    generator = torch.Generator().manual_seed(0)
    states = [torch.randn(length, D, generator=generator) + 2 * (i // 2 % 2) for i, length in enumerate(lengths)]
    write_table(paths.FEATURES, lengths, D, torch.float32, enumerate(states), "bank@abc")
    return frame, states


def test_rows_without_states_are_left_out_and_the_rest_stays_in_step(workspace: Path) -> None:
    frame, states = write_inputs([3, 0, 1, 0, 4, 2])
    got, lazy = common.read_labelled_states()
    assert list(got.index) == [0, 1, 2, 3]
    assert list(got["interaction_id"]) == ["i-0", "i-2", "i-4", "i-5"]
    assert list(got.columns) == list(frame.columns) and (got.dtypes == common.read_dataset_frame().dtypes).all()
    assert lazy.lengths.tolist() == [3, 1, 4, 2]
    for row, i in zip(lazy, [0, 2, 4, 5], strict=True):
        assert torch.equal(row, states[i])


def test_where_every_row_has_states_the_frame_is_the_data_set(workspace: Path) -> None:
    write_inputs([3, 1, 1, 2])
    got, lazy = common.read_labelled_states()
    pd.testing.assert_frame_equal(got, common.read_dataset_frame())
    assert len(lazy) == 4


def test_the_base_model_is_what_the_features_say(workspace: Path) -> None:
    write_inputs([0, 1])
    assert common.read_base_model() == "bank@abc"


def test_features_of_another_data_set_are_an_error(workspace: Path) -> None:
    write_inputs([3, 1], rows=3)
    with pytest.raises(
        AbstainError, match="features.safetensors has 2 rows, .*dataset.parquet has 3: run `abstain retrain`"
    ):
        common.read_labelled_states()


def test_stages_train_and_tune_on_the_rows_that_have_states(workspace: Path) -> None:
    """A label of a row without states must not be paired with its neighbour's states: then nothing would be learnt."""
    write_inputs([0 if i % 5 == 0 else i % 4 + 1 for i in range(240)])
    params = load_params(ROOT / "params.yaml")
    params = params.model_copy(
        update={"probe": params.probe.model_copy(update={"max_epochs": 20, "learning_rate": 0.03})}
    )
    train_probe.stage(params)
    losses = pd.read_csv(paths.TRAINING)["validation_loss"]
    assert losses.min() < 0.3
    tune_threshold.stage(params)
    tuned = common.read_json(paths.THRESHOLD)
    assert tuned["precision"] >= params.threshold.target_precision and tuned["display_rate"] > 0.4


def test_a_damaged_file_ends_a_stage_in_one_line(workspace: Path) -> None:
    write_inputs([1, 1])
    paths.FEATURES.write_bytes(b"damaged")
    (workspace / "params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
    done = subprocess.run(
        [sys.executable, "-m", "abstain.stages.train_probe"],
        cwd=workspace,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.strip()) == (
        1,
        "error: artifacts/features.safetensors is no readable table of states: run `abstain retrain` again",
    )
