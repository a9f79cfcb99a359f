"""What the gate has read goes into the feature cache: for answers whose texts are kept as they were read."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.llm.features.extraction import FeatureSource
from abstain.serving import feature_writer
from abstain.serving.feature_writer import FeatureCacheWriter
from abstain.serving.gate import DecisionInput, Gate
from tests.serving.builders import GUARANTEE, release, requests


def keep(rows: Sequence[Interaction]) -> Callable[[Sequence[str]], Mapping[str, Interaction]]:
    """The texts that a log keeps."""
    return lambda ids: {row.interaction_id: row for row in rows if row.interaction_id in ids}


Decide = Callable[..., tuple[Gate, FeatureSource]]


@pytest.fixture
def decide(tmp_path: Path, model: Path, settings: Settings) -> Decide:
    """A gate that has decided about rows, at the end of its writer, and the cache of another one."""
    bundle = release(tmp_path / "bundle", model, settings, guarantee=GUARANTEE).parent

    def run(writer: FeatureCacheWriter, rows: Sequence[Interaction]) -> tuple[Gate, FeatureSource]:
        with writer:
            gate = Gate.open(bundle, settings, on_computed=writer.add)
            gate.decide_all([DecisionInput(row.interaction_id, row) for row in rows])
        return gate, Gate.open(bundle, settings).predictor.source

    return run


def test_feature_writer_caches_states_of_decisions(decide: Decide) -> None:
    rows = requests()[1:]
    writer = FeatureCacheWriter(keep(rows), 100)
    gate, source = decide(writer, rows)
    assert source.count_missing(rows) == 0 and writer.counts["written"] == len(rows)
    read = dict(source.read(rows))
    (again,) = gate.predictor.reader.read(rows).batch.features.values()
    for number, states in enumerate(again):
        torch.testing.assert_close(read[number], states)
    before = source.load_engine().stats.pass_tokens
    assert not source.compute_missing(rows).rows and source.load_engine().stats.pass_tokens == before


def test_feature_writer_leaves_out_redacted_and_unlogged(decide: Decide) -> None:
    same, other, unlogged = requests()[1:4]
    redacted = other.model_copy(update={"question": "Question of <PERSON>?"})
    writer = FeatureCacheWriter(keep([same, redacted]), 100)
    _, source = decide(writer, [same, other, unlogged])
    assert source.count_missing([same]) == 0 and source.count_missing([other, unlogged, same, redacted]) == 3
    assert writer.counts == {"written": 1, "left_out": 2}


def test_feature_writer_writes_so_many_a_day(decide: Decide) -> None:
    rows = requests()[1:]
    _, source = decide(FeatureCacheWriter(keep(rows), 2), rows)
    assert source.count_missing(rows) == len(rows) - 2


def test_feature_writer_without_queue_or_log_costs_no_decision(decide: Decide, monkeypatch: pytest.MonkeyPatch) -> None:
    fail = Mock(side_effect=AbstainError(Code.NO_SERVICE, "the log is away"))
    monkeypatch.setattr(feature_writer, "MAX_QUEUED", 3)
    writer, rows = FeatureCacheWriter(fail, 100), requests()[1:]
    decide(writer, rows)
    assert writer.counts == {"dropped": len(rows)}
