"""What the gate has read goes into the feature cache: for answers whose texts are kept as they were read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch

from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.serving import feature_writer
from abstain.serving.feature_writer import FeatureCacheWriter
from abstain.serving.gate import DecisionInput, Gate
from tests.serving.builders import GUARANTEE, release, requests


class Kept:
    """The texts that a log keeps."""

    def __init__(self, rows: Sequence[Interaction]) -> None:
        self.rows = {row.interaction_id: row for row in rows}

    def __call__(self, ids: Sequence[str]) -> Mapping[str, Interaction]:
        return {key: self.rows[key] for key in ids if key in self.rows}


def decided(
    folder: Path, model: Path, settings: Settings, kept: FeatureCacheWriter, rows: Sequence[Interaction]
) -> Gate:
    """A gate that has decided about `rows`, and the end of `kept`."""
    file = release(folder / "bundle", model, settings, guarantee=GUARANTEE)
    with kept:
        gate = Gate.open(file.parent, settings, on_computed=kept.add)
        gate.decide_all([DecisionInput(row.interaction_id, row) for row in rows])
    return gate


def test_states_of_decisions_are_in_the_cache(tmp_path: Path, model: Path, settings: Settings) -> None:
    rows = requests()[1:]
    kept = FeatureCacheWriter(Kept(rows), 100)
    gate = decided(tmp_path, model, settings, kept, rows)
    source = Gate.open(tmp_path / "bundle", settings).predictor.source
    assert source.count_missing(rows) == 0 and kept.counts["written"] == len(rows)
    read = dict(source.read(rows))
    (again,) = gate.predictor.reader.read(rows).batch.features.values()
    for at, states in enumerate(again):
        assert states is not None
        torch.testing.assert_close(read[at], states)
    before = source.load_engine().stats.pass_tokens
    assert not source.compute_missing(rows).rows and source.load_engine().stats.pass_tokens == before


def test_redacted_and_unlogged_answers_are_left_out(tmp_path: Path, model: Path, settings: Settings) -> None:
    same, other, unlogged = requests()[1:4]
    logged = Kept([same, other.model_copy(update={"question": "Question of <PERSON>?"})])
    kept = FeatureCacheWriter(logged, 100)
    decided(tmp_path, model, settings, kept, [same, other, unlogged])
    source = Gate.open(tmp_path / "bundle", settings).predictor.source
    assert source.count_missing([same]) == 0 and source.count_missing([other, unlogged, *logged.rows.values()]) == 3
    assert kept.counts == {"written": 1, "left_out": 2}


def test_no_more_than_so_many_a_day(tmp_path: Path, model: Path, settings: Settings) -> None:
    rows = requests()[1:]
    decided(tmp_path, model, settings, FeatureCacheWriter(Kept(rows), 2), rows)
    assert Gate.open(tmp_path / "bundle", settings).predictor.source.count_missing(rows) == len(rows) - 2


def test_a_full_queue_and_a_log_that_is_away_cost_no_decision(
    tmp_path: Path, model: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = requests()[1:]

    def away(_: Sequence[str]) -> Mapping[str, Interaction]:
        raise AbstainError(Code.NO_SERVICE, "the log is away")

    monkeypatch.setattr(feature_writer, "MAX_QUEUED", 3)
    kept = FeatureCacheWriter(away, 100)
    decided(tmp_path, model, settings, kept, rows)
    assert kept.counts == {"dropped": len(rows)}
