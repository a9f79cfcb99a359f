"""Finished cells on disk: found again where nothing that decides them has changed, and nowhere else."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from abstain.config.settings import Settings
from abstain.core.errors import AbstainError
from studies.cell import ExperimentRunner
from studies.results import ResultStore, file_digests, get_cell_inputs
from tests.llm.builders import save_tiny_model
from tests.studies.builders import DECLARED, EVALUATION, TRAIN, declared, write_data

pytestmark = pytest.mark.soak(twin="test_a_study_computes_its_cells_and_writes_its_report")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_model(folder)
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_data(tmp_path / "data")


def laboratory(model: Path, data: Path, home: Path, **changes: Any) -> ExperimentRunner:
    models = {"embedded": {"model": str(model), "layout": "rag-plain-v1"}}
    settings = Settings(home=home, device="cpu", dtype="float32")
    return ExperimentRunner(declared(**({"models": models} | changes)), data, settings)


def decided(of: ExperimentRunner) -> dict[str, dict[str, Any]]:
    files = file_digests(of.experiment, of.data)
    return {cell.title: get_cell_inputs(of, cell, files) for cell in of.experiment.list_cells()}


def changed(one: ExperimentRunner, other: ExperimentRunner) -> list[str]:
    """The cells of both that are to be computed again."""
    before, after = decided(one), decided(other)
    return [title for title in before.keys() & after.keys() if before[title] != after[title]]


def test_changing_one_thing_concerns_its_cells_alone(model: Path, data: Path, tmp_path: Path) -> None:
    before = laboratory(model, data, tmp_path)
    titles = set(decided(before))
    assert len(titles) == 2 and changed(before, laboratory(model, data, tmp_path)) == []
    tables = DECLARED["tables"]

    def with_table(name: str, **changes: Any) -> ExperimentRunner:
        return laboratory(model, data, tmp_path, tables={**tables, name: tables[name] | changes})

    (of_headline,) = [title for title in titles if "K = 2" in title]
    assert changed(before, with_table("12", at=[0.35, 0.55])) == [of_headline]
    assert changed(before, with_table("headline", baselines=False)) == [of_headline]
    assert changed(before, with_table("2", title="Another title", note="and a note", paper=None)) == []
    assert changed(before, laboratory(model, data, tmp_path, title="Another")) == []
    for change in (
        {"seed": 6},
        {"draws": 200},
        {"answer_tokens": 9},
        {"thresholds": [0.5]},
        {"thresholds_of_metric": {"cosine": [0.5]}},
        {"buffer": 0.1},
        {"regressors": DECLARED["regressors"] | {"trees": 21}},
    ):
        assert set(changed(before, laboratory(model, data, tmp_path, **change))) == titles, change


def test_another_model_and_other_data_are_other_cells(model: Path, data: Path, tmp_path: Path) -> None:
    before = decided(laboratory(model, data, tmp_path))
    other = tmp_path / "other" / model.name
    other.mkdir(parents=True)
    save_tiny_model(other, seed=1)
    assert all(before[title] != of for title, of in decided(laboratory(other, data, tmp_path)).items())
    (data / TRAIN).write_text((data / TRAIN).read_text() + "\n")
    assert all(before[title] != of for title, of in decided(laboratory(model, data, tmp_path)).items())


def test_a_model_that_is_not_there_is_named(model: Path, data: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    models = {"embedded": {"model": "nobody/no-such-model", "layout": "rag-plain-v1"}}
    with pytest.raises(AbstainError, match="nobody/no-such-model"):
        decided(laboratory(model, data, tmp_path, models=models))


def test_a_result_is_read_back_as_it_was_but_for_nan(tmp_path: Path) -> None:
    results, key = ResultStore(tmp_path / "r"), {"cell": {"tokens": 2}, "thresholds": (0.5, 0.6)}
    assert results.read(key) is None
    results.write(key, {"auroc": float("nan"), "f1": np.float64(0.25), "rows": [1, math.inf], "note": None})
    assert results.read(key) == {"auroc": None, "f1": 0.25, "rows": [1, None], "note": None}
    assert results.read(key | {"seed": 1}) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"decided_by": {}}'])
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    results, key = ResultStore(tmp_path), {"cell": 1}
    results.write(key, {"f1": 0.5})
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text())["decided_by"] == key
    file.write_bytes(content)
    assert results.read(key) is None
    results.write(key, {"f1": 0.5})
    assert results.read(key) == {"f1": 0.5}


def test_a_folder_or_file_that_is_missing_is_named(model: Path, data: Path, tmp_path: Path) -> None:
    study = laboratory(model, data, tmp_path).experiment
    with pytest.raises(AbstainError, match=f"nowhere is no folder: say with --data where {TRAIN} and {EVALUATION} are"):
        file_digests(study, tmp_path / "nowhere")
    (data / EVALUATION).unlink()
    with pytest.raises(AbstainError, match=f"has no file {EVALUATION}: say with --data"):
        file_digests(study, data)
