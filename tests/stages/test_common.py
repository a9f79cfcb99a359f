import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from abstain.core import paths
from abstain.core.errors import AbstainError
from abstain.data.store.state_table import write_table
from abstain.ingest.pipeline.run import ingest
from abstain.ingest.sources.files import make_explicit_sources
from abstain.stages.shared import artifacts
from abstain.stages.shared.ideal_answers import read_ideal_answers, read_rouge
from abstain.stages.shared.states import load_labelled_states, read_base_model
from abstain.stages.train_probe import __main__ as train_probe
from tests.checkout import SHIPPED
from tests.factories import NOW, PARAMS, accept_all, alone, row, verdict, write_lines


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    paths.ARTIFACTS.mkdir()
    return tmp_path


def write_inputs(lengths: list[int]) -> tuple[pd.DataFrame, list[Tensor]]:
    """A data set with states of `lengths`."""
    frame = pd.DataFrame({"interaction_id": [f"i-{i}" for i in range(len(lengths))], "split": "train"})
    frame.to_parquet(paths.DATASET, index=False)
    states = list(torch.randn(sum(lengths), 6).split(lengths))
    write_table(paths.FEATURES, lengths, 6, torch.float32, enumerate(states), "bank@abc")
    return frame, states


def test_load_labelled_states_are_of_readable_rows_of_data_set(workspace: Path) -> None:
    frame, states = write_inputs([3, 0, 1, 0, 4, 2])
    rows, lazy = load_labelled_states()
    pd.testing.assert_frame_equal(rows, artifacts.read_dataset_frame().iloc[[0, 2, 4, 5]].reset_index(drop=True))
    assert lazy.lengths.tolist() == [3, 1, 4, 2] and read_base_model() == "bank@abc"
    assert all(torch.equal(row, states[i]) for row, i in zip(lazy, [0, 2, 4, 5], strict=True))
    frame.iloc[:3].to_parquet(paths.DATASET, index=False)
    with pytest.raises(AbstainError, match=r"features\.npy has 6 rows, .*dataset\.parquet has 3"):
        load_labelled_states()


def test_run_stage_damaged_file_prints_one_line(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_inputs([1, 1])
    paths.FEATURES.write_bytes(b"damaged")
    (workspace / "params.yaml").write_text(SHIPPED["params.yaml"])
    with pytest.raises(SystemExit) as left:
        artifacts.run_stage(train_probe.stage)
    assert left.value.code == 1
    assert re.fullmatch("error A507: artifacts/features.npy .*\n", capsys.readouterr().err)


def test_read_signals_selects_variant_by_interaction(workspace: Path) -> None:
    table = {"interaction_id": ["b", "a", "b"], "variant": ["asked", "asked", "other"], "entropy": [0.1, np.nan, 0.3]}
    pd.DataFrame(table).to_parquet(paths.SIGNALS, index=False)
    estimates = {"interaction_id": ["a", "b"], "variant": ["asked", "asked"], "linear_label": [0.7, 0.6]}
    pd.DataFrame(estimates).to_parquet(paths.REGRESSOR_SCORES, index=False)
    signals = artifacts.read_signals("asked")
    assert list(signals) == ["entropy", "linear_label"] and list(signals.index) == ["b", "a"]
    np.testing.assert_array_equal(signals["entropy"], [0.1, np.nan])
    np.testing.assert_array_equal(signals["linear_label"], [0.6, 0.7])
    assert artifacts.read_signals("other").loc["b", "entropy"] == 0.3 and len(artifacts.read_signals("third")) == 0
    assert artifacts.read_signals("other")["linear_label"].isna().all()


@pytest.mark.slow
def test_read_rouge_uses_latest_ideal_answer(workspace: Path) -> None:
    """A later review that gives none takes none back."""
    rows = write_lines(
        Path("rows.jsonl"),
        row("early", answer="It is 5 euros.", review=verdict(days=2, ideal_answer="Nobody knows.")),
        alone(verdict(days=4, ideal_answer="It is 5 euros.", reviewer="sme-2"), "early"),
        alone(verdict(days=6, reviewer="sme-3"), "early"),
        row("half", answer="Perhaps 5?", review=verdict(ideal_answer="It is 5 euros.")),
        row("none", review=verdict()),
    )
    assert ingest(make_explicit_sources([str(rows)]), paths.DATA, PARAMS, NOW, validate=accept_all).accepted == 5
    assert read_ideal_answers() == {"early": "It is 5 euros.", "half": "It is 5 euros."}
    # "Perhaps 5": one word of two is among four.
    expected = [1.0, 2 * (1 / 2) * (1 / 4) / (1 / 2 + 1 / 4), np.nan]
    found = read_rouge(pd.DataFrame({"interaction_id": ["early", "half", "none"]}))
    np.testing.assert_allclose(found, expected)


def test_what_is_not_a_number_is_null(workspace: Path) -> None:
    figures = {"b": float("nan"), "a": [np.float64("nan"), {1: (0.5, "x")}]}
    artifacts.write_json(paths.METRICS, figures)
    assert artifacts.read_json(paths.METRICS) == {"a": [None, {"1": [0.5, "x"]}], "b": None}
    assert "NaN" not in paths.METRICS.read_text()
    first = paths.METRICS.read_bytes()
    artifacts.write_json(paths.METRICS, dict(reversed(figures.items())))
    assert paths.METRICS.read_bytes() == first


def test_a_folder_is_replaced_as_a_whole_or_stays_as_it_was(workspace: Path) -> None:
    with artifacts.atomic_folder(paths.PLOTS) as folder:
        artifacts.write_text(folder / "roc.csv", "first")
    with pytest.raises(ValueError), artifacts.atomic_folder(paths.PLOTS) as folder:
        artifacts.write_text(folder / "roc.csv", "half")
        raise ValueError
    assert (paths.PLOTS / "roc.csv").read_text() == "first"
    with artifacts.atomic_folder(paths.PLOTS) as folder:
        assert not list(folder.iterdir()), "what a stopped run left"
        artifacts.write_text(folder / "other.csv", "second")
    assert [file.name for file in paths.PLOTS.iterdir()] == ["other.csv"]
    assert [entry.name for entry in paths.ARTIFACTS.iterdir()] == ["plots"]
