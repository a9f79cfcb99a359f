from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as settings_of
from hypothesis import strategies as st

from abstain.config.params import LLMParams
from abstain.config.settings import Settings
from abstain.core.errors import AbstainError
from abstain.llm.engine.prompts import Segment
from abstain.llm.engine.requests import NLL, ConstrainedGenerate, HiddenStates, NextTokenProbs, Perturb, Request
from abstain.llm.features.extraction import FeatureSource
from abstain.llm.features.shard_job import OPERATION_TYPES, JobStats, LocalRunner, ShardJob, compute_shard
from tests.llm.signals.builders import numbered

TEXTS = st.text(max_size=20)
ASKED = st.sampled_from(
    [
        HiddenStates(2, "residual"),
        HiddenStates(3, "mlp"),
        NLL(("answer",)),
        NextTokenProbs(("Yes", "No")),
        ConstrainedGenerate(30, 15),
        Perturb("entropy", "iterative", 15, 5),
    ]
)
PASSES = st.lists(st.builds(Segment, TEXTS, TEXTS, st.booleans(), st.booleans()), min_size=1, max_size=4).map(tuple)
REQUESTS = st.lists(st.builds(Request, PASSES, ASKED, TEXTS), max_size=4).map(tuple)
WORKS = st.builds(ShardJob, TEXTS, TEXTS, TEXTS, st.integers(1, 9), REQUESTS)


@pytest.fixture
def source(tiny_params: LLMParams, settings: Settings) -> FeatureSource:
    return FeatureSource(tiny_params, settings)


@settings_of(max_examples=50)
@given(WORKS, WORKS)
def test_shard_job_survives_json_with_its_name(one: ShardJob, other: ShardJob) -> None:
    again = ShardJob.from_json(one.to_json())
    assert again == one and again.name == one.name
    assert (one.name == other.name) == (one == other)


def test_shard_job_name_is_fixed() -> None:
    work = ShardJob("m", "m@1", "float32", 100, (Request((Segment("answer", "é"),), HiddenStates(2, "residual"), "i"),))
    assert work.name == "d5dd5d0530d717f3f27cc273e57c74d1"
    names = {"HiddenStates", "NLL", "NextTokenProbs", "Generate", "ConstrainedGenerate", "Perturb"}
    assert names == OPERATION_TYPES.keys()


def test_local_runner_computes_shards_in_order(source: FeatureSource) -> None:
    rows = [numbered(n) for n in range(70)]
    shards = list(source.iter_shards(rows))
    assert [len(work.requests) for work in shards] == [64, 6]
    runner = LocalRunner(source.settings)
    found = runner.run(shards)
    first = next(found)
    assert first.rows == 64 and 0 < first.forward_tokens <= first.pass_tokens
    assert source.count_missing(rows) == 6  # it is in the cache when it is told of
    assert [done.rows for done in found] == [6]
    assert source.count_missing(rows) == 0 and list(source.iter_shards(rows)) == []
    assert source.compute_missing(rows) == JobStats(0, 0, 0)


def test_compute_shard_again_writes_the_same_bytes(source: FeatureSource) -> None:
    (work,) = source.iter_shards([numbered(n) for n in range(5)])
    context = tuple(Segment("chunk", f"The fee is {n} euros.") for n in range(3))
    work = replace(work, requests=(*work.requests, Request(context, Perturb("entropy", "iterative", 4), "p")))
    features = Path(source.settings.features)
    compute_shard(work, source.settings)
    first = {file: file.read_bytes() for file in features.rglob("*.safetensors")}
    compute_shard(ShardJob.from_json(work.to_json()), source.settings)
    assert {file: file.read_bytes() for file in features.rglob("*.safetensors")} == first and len(first) == 2


def test_compute_shard_other_revision_is_refused(source: FeatureSource) -> None:
    (work,) = source.iter_shards([numbered(1)])
    other = replace(work, revision="tiny-bank@0")
    with pytest.raises(AbstainError, match=r"wants tiny-bank@0, but this machine has tiny-bank@"):
        compute_shard(other, source.settings)
