import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import settings as settings_of
from hypothesis import strategies as st
from torch import Tensor

from abstain.config.params import LLMParams
from abstain.config.settings import Settings
from abstain.core.contracts import Context, Interaction
from abstain.core.errors import AbstainError
from abstain.data.store.state_table import StateTable
from abstain.llm.engine.engine import Engine
from abstain.llm.engine.prompts import Segment, load_layout
from abstain.llm.engine.requests import (
    NLL,
    ConstrainedGenerate,
    Generate,
    HiddenStates,
    NextTokenProbs,
    Perturb,
    Request,
)
from abstain.llm.features import feature_store, shard_job
from abstain.llm.features.extraction import (
    FeatureSource,
    PreparedRequest,
    UnreadableInteraction,
    make_chunk_nll_requests,
)
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.features.shard_job import OPERATION_TYPES, ShardJob, compute_shard
from tests.llm.builders import WIDTH, plain_surprise
from tests.llm.signals.builders import interaction, numbered


@pytest.fixture
def source(tiny_params: LLMParams, settings: Settings) -> FeatureSource:
    return FeatureSource(tiny_params, settings.model_copy(update={"batch_tokens": 700}))


@pytest.fixture
def engine(source: FeatureSource) -> Engine:
    """The engine that runs for `source`; its stats count what was computed."""
    shard_job._load_engine.cache_clear()
    return source.load_engine()


def states_of(source: FeatureSource, rows: list[Interaction]) -> list[Tensor]:
    source.compute_missing(rows)
    found = dict(source.read(rows))
    return [found[at] for at in range(len(rows))]


def is_equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def digest_context(number: int, times: int = 1) -> tuple[Context, ...]:
    """A context that shares no beginning with those of other numbers."""
    return (Context(chunk_id="doc#0", text=hashlib.sha256(str(number).encode()).hexdigest() * times),)


ROWS = [numbered(n) for n in range(9)]


def test_feature_source_rows_equal_the_engine_in_order(source: FeatureSource, engine: Engine) -> None:
    layout = load_layout("rag-plain-v1")
    for row, got in zip(ROWS, states_of(source, ROWS), strict=True):
        pass_ = layout.render(row.question, [context.text for context in row.contexts], row.answer)
        ((_, expected),) = engine.run({"a": Request(pass_, HiddenStates(2), "a")})
        assert got.shape == (len(row.answer.encode()) + 1, WIDTH)
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)
    alone = replace(source, params=source.params.model_copy(update={"includes_eos": False}))
    assert alone.count_missing(ROWS) == len(ROWS)
    for with_eos, row in zip(states_of(source, ROWS), states_of(alone, ROWS), strict=True):
        torch.testing.assert_close(row, with_eos[:-1], atol=1e-4, rtol=0)


def test_compute_missing_skips_cached_rows(
    source: FeatureSource, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = states_of(source, ROWS[4:1:-1])
    assert (source.count_missing(ROWS), engine.stats.prompts) == (6, 3)
    everything = states_of(source, ROWS)
    assert engine.stats.prompts == 9
    assert is_equal(everything[2:5], first[::-1])
    monkeypatch.setattr(shard_job, "load_job_engine", Mock(side_effect=AssertionError("was loaded")))
    assert source.count_missing(ROWS) == source.compute_missing(ROWS).forward_tokens == 0
    assert is_equal(states_of(source, ROWS), everything) and states_of(source, []) == []
    with pytest.raises(AssertionError, match="was loaded"):
        source.compute_missing([*ROWS, numbered(99)])


def test_count_missing_tokens_equals_the_tokens_of_a_run(source: FeatureSource, engine: Engine) -> None:
    rows = [numbered(n, contexts=digest_context(n // 2)) for n in range(8)]
    source.compute_missing(rows[:2])
    expected = source.store.count_missing_tokens(source.build_requests(rows))
    assert expected == pytest.approx(source.compute_missing(rows).forward_tokens, rel=0.05)
    assert source.store.count_missing_tokens(source.build_requests(rows)) == 0


def test_count_missing_tokens_samples_many_shards(source: FeatureSource, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = source.build_requests([numbered(n, contexts=digest_context(n)) for n in range(40)])
    monkeypatch.setattr(feature_store, "SHARD_ROWS", 2)
    whole = source.store.count_missing_tokens(requests)
    monkeypatch.setattr(feature_store, "COUNTED_SHARDS", 4)
    count = Mock(side_effect=feature_store.count_tokens)
    monkeypatch.setattr(feature_store, "count_tokens", count)
    assert source.store.count_missing_tokens(requests) == pytest.approx(whole, rel=0.1)
    assert count.call_count <= 5


@pytest.mark.parametrize(
    ("params", "settings_"),
    [({"layer": 3}, {}), ({"site": "mlp"}, {}), ({"layout": "rag-chatml-v1"}, {}), ({}, {"dtype": "bfloat16"})],
)
def test_feature_source_other_parameters_are_other_rows(
    source: FeatureSource, params: dict[str, Any], settings_: dict[str, Any]
) -> None:
    before = states_of(source, ROWS[:2])
    other = FeatureSource(source.params.model_copy(update=params), source.settings.model_copy(update=settings_))
    assert other.count_missing(ROWS[:2]) == 2
    after = states_of(other, ROWS[:2])
    assert not is_equal(after, before)
    assert (after[0].dtype == torch.bfloat16) == ("dtype" in settings_)


def test_compute_missing_killed_run_keeps_whole_shards(
    source: FeatureSource, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_store, "SHARD_ROWS", 4)
    seen: list[tuple[int, int]] = []

    def die(done: int, total: int) -> None:
        seen.append((done, total))
        if done == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        source.compute_missing(ROWS, die)
    assert seen == [(0, 9), (4, 9), (8, 9)]
    assert source.count_missing(ROWS) == 1
    source.compute_missing(ROWS, lambda done, total: seen.append((done, total)))
    assert seen[3:] == [(0, 1), (1, 1)]
    assert engine.stats.prompts == 9


def test_compute_missing_damaged_shard_is_computed_again(
    source: FeatureSource, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_store, "SHARD_ROWS", 4)
    expected = states_of(source, ROWS)
    shard = sorted(Path(source.settings.features).rglob("*.safetensors"))[0]
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    before = engine.stats.prompts
    assert is_equal(states_of(source, ROWS), expected)
    assert engine.stats.prompts - before in (1, 4)  # the rows of that shard


def test_read_rows_damaged_twice_names_the_disk(source: FeatureSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("abstain.llm.features.cache.FeatureCache.read", lambda self, keys: iter(()))
    with pytest.raises(AbstainError, match="2 rows of .* damaged again .* ABSTAIN_FEATURES"):
        list(source.read(ROWS[:2]))


LONG = numbered(1, answer="x" * 600)


def test_prepare_too_long_answer_is_unreadable(source: FeatureSource, tmp_path: Path) -> None:
    refused = source.prepare(LONG)
    assert isinstance(refused, UnreadableInteraction)
    assert re.fullmatch(r"\d{3} tokens are more than the 512 that tiny-bank reads", refused.reason)
    assert source.count_missing([*ROWS, LONG]) == len(ROWS)
    source.compute_missing([*ROWS, LONG])
    for name in ("one.npy", "other.npy"):
        source.save([*ROWS, LONG], tmp_path / name)
    assert (tmp_path / "one.npy").read_bytes() == (tmp_path / "other.npy").read_bytes()
    table = StateTable(tmp_path / "one.npy")
    *read, last = list(table)
    assert is_equal(read, [row.float() for row in states_of(source, ROWS)]) and len(last) == 0
    assert table.model == source.get_namespace().model


def test_prepare_too_long_drops_the_last_chunks_if_enabled(source: FeatureSource) -> None:
    dropping = FeatureSource(source.params.model_copy(update={"too_long": "drop_chunks"}), source.settings)
    row, kept = (interaction("yes", [f"{n}" * 150 for n in range(chunks)]) for chunks in (5, 2))
    prepared = dropping.prepare(row)
    assert isinstance(prepared, PreparedRequest) and prepared.dropped_chunks == 3
    assert dropping.build_keys([row]) == source.build_keys([kept])
    assert isinstance(source.prepare(row), UnreadableInteraction)
    assert isinstance(dropping.prepare(LONG), UnreadableInteraction)  # without any chunk it is too long still


def test_chunk_nll_is_computed_once_per_chunk(source: FeatureSource, engine: Engine) -> None:
    texts = [f"Chunk {n} says something." for n in range(4)]
    first = dict(source.store.read(make_chunk_nll_requests([texts[0], texts[1], texts[0]])))
    assert engine.stats.prompts == 2
    torch.testing.assert_close(first[0], first[2], equal_nan=True, rtol=0, atol=0)
    again = dict(source.store.read(make_chunk_nll_requests(texts)))
    assert engine.stats.prompts == 4
    _, expected = plain_surprise(engine.loaded, (Segment("text", texts[3]),))
    torch.testing.assert_close(again[3], expected, equal_nan=True, atol=1e-4, rtol=0)


def test_iter_shards_keeps_passes_and_chunks_in_one_shard(source: FeatureSource) -> None:
    answers = filter(None, source.build_requests([numbered(n) for n in range(100)]))
    requests = [replace(request, operation=HiddenStates(layer)) for request in answers for layer in (1, 2, 3)]
    works = list(source.store.iter_shards(requests))
    assert sum(len(work.requests) for work in works) == 300
    passes = [{request.prompt for request in work.requests} for work in works]
    assert all(len(of) <= 128 for of in passes) and sum(map(len, passes)) == len(set().union(*passes)) == 100
    works = list(source.iter_shards([numbered(n, contexts=digest_context(n % 20, 5)) for n in range(100)]))
    assert sum(len(work.requests) for work in works) == 100 and all(len(work.requests) <= 128 for work in works)
    chunks = [{request.prompt[1].text for request in work.requests} for work in works]
    assert len(chunks) == 2 and not chunks[0] & chunks[1]


def test_render_yes_score_is_the_published_prompt() -> None:
    yes, probability = (
        FeatureRequest(Generate(5), kind).render("rag-chatml-v1", "Q?", ["C"], "R")
        for kind in ("yes_score", "probability")
    )
    assert "".join(segment.text for segment in yes) == (
        "Context: C\n\nQuestion: Q?\n\nResponse: R\n\nBased on the given Context and Question, answer this question:\n\n"
        "Is the provided Response correct? Answer only Yes or No.\n\nAnswer:\n"
    )
    assert [segment.text for segment in yes if not segment.literal] == [" C", " Q?", " R"]
    assert yes[:-1] == probability[:-1] and "(0.0 to 1.0)" in probability[-1].text


def test_render_asked_after_continues_the_answer_pass() -> None:
    answered, asked = (
        request.render("rag-chatml-v1", "Why?", ["text"], "Because.")
        for request in (FeatureRequest(HiddenStates(1)), FeatureRequest(NextTokenProbs(("Yes", "No")), "asked_after"))
    )
    *before, question = asked
    assert tuple(before) == answered
    assert question.literal and "Is the provided Response correct? Answer only Yes or No." in question.text


def test_select_contexts_takes_the_first_chunks() -> None:
    row = interaction(contexts=["first", "second", "third"])
    for chunks in (None, 2, 0, 9):
        contexts = FeatureRequest(HiddenStates(1), chunks=chunks).select_contexts(row)
        assert contexts == ["first", "second", "third"][:chunks]


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


def test_compute_shard_again_writes_the_same_bytes(source: FeatureSource) -> None:
    (work,) = source.iter_shards([numbered(n) for n in range(5)])
    context = tuple(Segment("chunk", f"The fee is {n} euros.") for n in range(3))
    work = replace(work, requests=(*work.requests, Request(context, Perturb("entropy", "iterative", 4), "p")))
    features = Path(source.settings.features)
    compute_shard(work, source.settings)
    first = {file: file.read_bytes() for file in features.rglob("*.safetensors")}
    compute_shard(ShardJob.from_json(work.to_json()), source.settings)
    assert {file: file.read_bytes() for file in features.rglob("*.safetensors")} == first and len(first) == 2
