import gc
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import LlamaConfig

from abstain.config.params import Site
from abstain.core.errors import AbstainError
from abstain.llm.engine import attention, self_check
from abstain.llm.engine import decoder as decoder_module
from abstain.llm.engine.decoder import Decoder, Hook
from abstain.llm.engine.engine import Engine
from abstain.llm.engine.loading import LoadedModel, get_context_length, load_model
from abstain.llm.engine.planner import RequestPlan
from abstain.llm.engine.prefix_tree import MIN_SHARED, build_tree, count_distinct_tokens, walk
from abstain.llm.engine.prompts import PromptSegments, Segment
from abstain.llm.engine.requests import HiddenStates, Request
from abstain.llm.engine.tokenization import encode_prompt
from tests.llm.builders import (
    LAYERS,
    WIDTH,
    WINDOW,
    blocks_of,
    plain_forward,
    plain_neurons,
    shared_model,
    tiny_model,
    tiny_pass,
    tiny_passes,
    watch_batches,
)
from tests.tolerance import tolerance

FAMILIES = ["llama", "qwen2", "gemma3", "gpt2", "opt"]
TOLERANCE = 1e-4
"""Absolute, of any entry of the tiny models' float32 states. The largest are 34, and 4e-5 is measured."""
LLAMA = shared_model("llama")


def length(loaded: LoadedModel, pass_: PromptSegments) -> int:
    return len(encode_prompt(loaded.tokenizer, pass_).ids)


def reference(loaded: LoadedModel, pass_: PromptSegments, layers: tuple[int, ...], site: Site = "residual") -> Tensor:
    """States of answer and EOS by a plain forward, or what is in the feed-forward parts: (layers, L + 1, d)."""
    encoded = encode_prompt(loaded.tokenizer, pass_)
    outputs = plain_neurons(loaded, encoded.ids) if site == "neurons" else {}
    hooks = [
        block.mlp.register_forward_hook(lambda _m, _i, output, at=layer: outputs.update({at: output[0]}))
        for layer, block in enumerate(blocks_of(loaded), start=1)
        if site == "mlp"
    ]
    _, states = plain_forward(loaded, encoded.ids)
    for hook in hooks:
        hook.remove()
    return torch.stack([(outputs or states)[layer][encoded.spans["answer"][0] :] for layer in layers])


def max_difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    assert all((one[key].shape, one[key].dtype) == (other[key].shape, other[key].dtype) for key in one)
    return max(float((one[key] - other[key]).abs().max()) for key in one)


def run(
    engine: Engine, passes: Mapping[str, PromptSegments], layers: tuple[int, ...], site: Site = "residual"
) -> dict[str, Any]:
    """The states by "layer pass", all requested at once."""
    requests = {
        f"{layer} {key}": Request(pass_, HiddenStates(layer, site), f"interaction {key}")
        for layer in layers
        for key, pass_ in passes.items()
    }
    return dict(engine.run(requests))


def states_of(
    loaded: LoadedModel,
    passes: Mapping[str, PromptSegments],
    layers: tuple[int, ...],
    site: Site = "residual",
    tokens: int = 4096,
    packed: bool | None = None,
) -> dict[str, Tensor]:
    """(layers, L + 1, d) of every pass."""
    found = run(Engine(loaded, tokens, packed), passes, layers, site)
    return {key: torch.stack([found[f"{layer} {key}"] for layer in layers]) for key in passes}


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("family", "packed"), [*((family, True) for family in FAMILIES), ("llama", False), ("opt", False)]
)
def test_engine_states_equal_a_plain_forward(family: str, packed: bool) -> None:
    """In any batch and order; of 16 tokens, every run is cut into a chain, and goes on from kept keys and values."""
    loaded, passes, layers = shared_model(family), tiny_passes(), (1, 2, LAYERS)
    assert Engine(loaded, 100).decoder.can_pack
    every = {key: reference(loaded, pass_, tuple(range(LAYERS + 1))) for key, pass_ in passes.items()}
    expected = {key: states[list(layers)] for key, states in every.items()}
    alone = {key: states_of(loaded, {key: pass_}, layers, packed=packed)[key] for key, pass_ in passes.items()}
    assert max_difference(alone, expected) <= TOLERANCE
    for tokens in (16, 200, 10_000):
        together = states_of(loaded, dict(reversed(passes.items())), layers, tokens=tokens, packed=packed)
        assert max_difference(together, expected) <= TOLERANCE
        assert max_difference(together, alone) <= TOLERANCE
    # Neighbours are far apart: an off-by-one in layers or tokens would be seen.
    for key, states in every.items():
        below = states[[layer - 1 for layer in layers]]
        assert ((below - expected[key]).abs().amax(dim=(1, 2)) > 100 * TOLERANCE).all()
        if len(expected[key][0]) > 2:
            shifted = expected[key].roll(1, dims=1)
            assert ((shifted - expected[key]).abs().amax(dim=(1, 2)) > 100 * TOLERANCE).all()


@pytest.mark.heavy
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3", "gpt2"])
def test_engine_mlp_site_is_the_feed_forward_output(family: str) -> None:
    loaded, layers = shared_model(family), (1, 3, LAYERS)
    expected = {key: reference(loaded, pass_, layers, "mlp") for key, pass_ in tiny_passes().items()}
    assert max_difference(states_of(loaded, tiny_passes(), layers, "mlp"), expected) <= TOLERANCE
    assert max_difference(states_of(loaded, tiny_passes(), layers), expected) > 100 * TOLERANCE


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("family", "packed"), [*((family, True) for family in FAMILIES), ("llama", False), ("opt", False)]
)
def test_engine_neurons_are_what_the_down_projection_reads(family: str, packed: bool) -> None:
    loaded, layers = shared_model(family), (1, 3, LAYERS)
    expected = {key: reference(loaded, pass_, layers, "neurons") for key, pass_ in tiny_passes().items()}
    assert {states.shape[2] for states in expected.values()} == {4 * WIDTH if family == "gpt2" else 2 * WIDTH}
    assert max_difference(states_of(loaded, tiny_passes(), layers, "neurons", packed=packed), expected) <= TOLERANCE
    decoder = Engine(loaded, 100, packed).decoder
    assert decoder.get_width(Hook(2, "neurons")) == next(iter(expected.values())).shape[2]
    assert decoder.get_width(Hook(2, "mlp")) == decoder.get_width(Hook(2)) == WIDTH


@pytest.mark.parametrize(
    ("layers", "site"), [((1, 3), "residual"), ((3, 2), "mlp"), ((3, 2), "neurons"), ((LAYERS,), "residual")]
)
@pytest.mark.parametrize("packed", [True, False])
def test_engine_computes_nothing_above_the_deepest_layer(packed: bool, layers: tuple[int, ...], site: Site) -> None:
    engine, calls = Engine(LLAMA, 600, packed), set()
    modules = enumerate([*blocks_of(LLAMA), LLAMA.model.get_output_embeddings()], start=1)
    hooks = [module.register_forward_pre_hook(lambda *_, at=at: calls.add(at)) for at, module in modules]
    assert len(run(engine, tiny_passes(), layers, site)) == len(layers) * len(tiny_passes())
    for hook in hooks:
        hook.remove()
    assert set(engine.stats.layer_tokens) == calls == set(range(1, max(layers) + 1)), "and no head"
    assert engine.stats.vocabulary_rows == 0


def test_engine_shared_prefix_is_read_once() -> None:
    contexts = ["The fee is 9 EUR. " * 4, "Cards come by post. " * 4]
    asked = [(f"What about {n}?", context, f"It is {n}.") for context in contexts for n in range(5)]
    passes = {f"{n}": tiny_pass(answer, context, question) for n, (question, context, answer) in enumerate(asked)}
    encoded = {key: encode_prompt(LLAMA.tokenizer, pass_) for key, pass_ in passes.items()}
    engine = Engine(LLAMA, 10_000)
    found = run(engine, passes, (2,))
    for key, pass_ in passes.items():
        torch.testing.assert_close(found[f"2 {key}"][None], reference(LLAMA, pass_, (2,)), atol=TOLERANCE, rtol=0)
    # Each context is read once with the beginning of its questions; the instruction is shorter than MIN_SHARED.
    before = {key: one.spans["question"][0] + len("What about ") for key, one in encoded.items()}
    rest = sum(len(one.ids) - before[key] for key, one in encoded.items())
    assert engine.stats.pass_tokens == sum(len(one.ids) for one in encoded.values())
    assert engine.stats.forward_tokens == before["0"] + before["5"] + rest


def test_engine_equal_or_longer_passes_share_tokens() -> None:
    pass_ = tiny_pass()
    longer = (*pass_, Segment("check", "Is that right?"))
    requests = {
        "one": Request(pass_, HiddenStates(2), "one"),
        "same": Request(pass_, HiddenStates(2), "same"),
        "earlier": Request(pass_, HiddenStates(2, segments=("question", "turn")), "earlier"),
        "longer": Request(longer, HiddenStates(2, segments=("check",)), "longer"),
    }
    engine = Engine(LLAMA, 10_000)
    found = dict(engine.run(requests))
    assert engine.stats.forward_tokens == length(LLAMA, longer)
    assert torch.equal(found["one"], found["same"])
    assert len(found["longer"]) == len("Is that right?")
    encoded = encode_prompt(LLAMA.tokenizer, pass_)
    expected = plain_forward(LLAMA, encoded.ids)[1][2][slice(*encoded.span("question", "turn"))]
    torch.testing.assert_close(found["earlier"], expected, atol=TOLERANCE, rtol=0)


def test_engine_shallow_request_stays_shallow() -> None:
    def work(packed: bool, **asked: tuple[PromptSegments, int]) -> Counter[int]:
        engine = Engine(LLAMA, 10_000, packed)
        list(engine.run({key: Request(pass_, HiddenStates(layer), key) for key, (pass_, layer) in asked.items()}))
        return engine.stats.layer_tokens

    deep, shallow = tiny_pass("A.", "x" * 90), tiny_pass("B.", "y" * 90)
    near = tiny_pass("B.", "x" * 90)  # shares its context with the deep one
    of_deep, answer = length(LLAMA, deep), len("B.") + 1
    found = work(True, deep=(deep, 4), shallow=(shallow, 1))
    assert (found[1], found[2]) == (of_deep + answer, of_deep)
    assert work(True, deep=(deep, 4), near=(near, 3))[1] == of_deep + answer
    padded = work(False, deep=(deep, 4), shallow=(shallow, 1))
    assert (padded[1], padded[4]) == (of_deep + length(LLAMA, shallow), of_deep)


@pytest.mark.heavy
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("tokens", [5, 300, 10_000])
def test_engine_pass_stays_within_batch_tokens(tokens: int, packed: bool) -> None:
    engine = Engine(LLAMA, tokens, packed)
    with watch_batches(LLAMA.model.base_model) as shapes:
        run(engine, tiny_passes(), (3,))
    assert all(rows * longest <= tokens or (rows == 1 and not packed) for rows, longest in shapes)
    assert sum(rows * longest for rows, longest in shapes) == engine.stats.forward_tokens
    lengths = [length(LLAMA, pass_) for pass_ in tiny_passes().values()]
    assert (engine.stats.prompts, engine.stats.pass_tokens) == (len(lengths), sum(lengths))


def test_engine_padded_batches_have_like_lengths() -> None:
    passes = {f"i-{n}": tiny_pass(f"{n}") for n in range(7)}
    each = length(LLAMA, tiny_pass("0"))
    engine = Engine(LLAMA, 3 * each, packed=False)
    assert list(engine.run({})) == []
    with watch_batches(LLAMA.model.base_model) as shapes:
        run(engine, passes, (1,))
    assert shapes == [(3, each), (3, each), (1, each)]


def test_engine_unsuitable_attention_is_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = tiny_model()
    expected = states_of(loaded, tiny_passes(), (2, LAYERS))
    gather = attention.PackedBatch._gather_path

    def damage_keys(*arguments: Any) -> Any:
        keys, values = gather(*arguments)
        return keys * 0.5, values

    monkeypatch.setattr(attention.PackedBatch, "_gather_path", damage_keys)
    assert not Engine(loaded, 4096).decoder.can_pack
    assert max_difference(states_of(loaded, tiny_passes(), (2, LAYERS)), expected) <= TOLERANCE


def test_context_length_of_longrope_is_the_trained_one() -> None:
    assert get_context_length(LlamaConfig(max_position_embeddings=64)) == 64
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 32}
    rope |= {"short_factor": [1.0] * 4, "long_factor": [1.0] * 4}
    config = LlamaConfig(hidden_size=16, num_attention_heads=2, max_position_embeddings=64, rope_parameters=rope)
    assert get_context_length(config) == 32


def test_engine_releases_keys_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[RequestPlan] = []
    start = RequestPlan.__init__
    monkeypatch.setattr(RequestPlan, "__init__", lambda plan, *rest: (start(plan, *rest), plans.append(plan))[0])
    engine = Engine(LLAMA, 64)
    running = engine.run({key: Request(pass_, HiddenStates(2), key) for key, pass_ in tiny_passes().items()})
    most = max(sum(len(node) for node in plans[0].kv_cache) for _ in running)
    longest = max(length(LLAMA, pass_) for pass_ in tiny_passes().values())
    assert 0 < most <= longest + 64  # one path, and what the next batch has begun
    assert not plans[0].kv_cache and not plans[0].results


@pytest.mark.heavy
def test_engine_releases_batches_without_a_collection() -> None:
    """A server collects seldom: what waits for it, with masks as large as the square of a prompt, adds up."""
    engine = Engine(LLAMA, 4096, packed=True)
    gc.collect()
    gc.disable()
    try:
        run(engine, tiny_passes(), (1, LAYERS))
        assert not any(type(tracked) is attention.PackedBatch for tracked in gc.get_objects())
    finally:
        gc.enable()


def test_engine_leaves_the_model_unchanged() -> None:
    def seen() -> tuple[Tensor, int]:
        states = reference(LLAMA, tiny_pass(), tuple(range(LAYERS + 1)))  # whose first call leaves hooks of its own
        return states, sum(len(module._forward_hooks) for module in LLAMA.model.modules())

    before, hooks = seen()
    states_of(LLAMA, tiny_passes(), (2,), "mlp")
    after, left = seen()
    assert torch.equal(before, after) and left == hooks


def test_engine_state_not_finite_names_interaction_and_layer() -> None:
    loaded = tiny_model()
    (poison,) = loaded.tokenizer.encode("~", add_special_tokens=False)
    loaded.model.get_input_embeddings().weight[poison] = float("inf")
    passes = {"fine": tiny_pass(), "poisoned": tiny_pass(context="There is ~ fee."), "fine too": tiny_pass("Nil..")}
    with pytest.raises(AbstainError, match="interaction poisoned:"):
        states_of(loaded, passes, (1,))
    passes.pop("poisoned")
    blocks_of(loaded)[2].mlp.down_proj.weight.fill_(float("nan"))
    assert set(states_of(loaded, passes, (2,))) == set(passes)
    with pytest.raises(AbstainError, match=r"interaction fine: .* layer 3 are not finite; try ABSTAIN_DTYPE"):
        states_of(loaded, {"fine": tiny_pass()}, (3,))


@pytest.mark.parametrize("layer", [-1, 0, LAYERS + 1])
def test_engine_unknown_layer_is_refused(layer: int) -> None:
    with pytest.raises(AbstainError, match=f"^layer {layer} requested, but .* layers 1 to {LAYERS}: set llm"):
        states_of(LLAMA, {"a": tiny_pass()}, (1, layer))


def test_engine_pass_may_fill_the_window_only() -> None:
    room = WINDOW - length(LLAMA, tiny_pass(answer=""))
    assert states_of(LLAMA, {"full": tiny_pass("x" * room)}, (1,))["full"].shape[1] == room + 1
    with pytest.raises(AbstainError, match=f"^interaction over: {WINDOW + 1} tokens .* {WINDOW}"):
        states_of(LLAMA, {"full": tiny_pass("x" * room), "over": tiny_pass("x" * (room + 1))}, (1,))


def test_engine_site_that_is_missing_names_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AbstainError, match="tiny-opt has no .* set llm.site to residual"):
        states_of(shared_model("opt"), {"a": tiny_pass()}, (1,), "mlp")
    monkeypatch.setattr(decoder_module, "DOWN_PROJECTION_NAMES", ("of_experts",))
    with pytest.raises(AbstainError, match="layer 1 of tiny-llama has no single down projection.* to residual"):
        states_of(LLAMA, {"a": tiny_pass()}, (1,), "neurons")


def relative_error(found: Tensor, expected: Tensor) -> float:
    """The largest norm of a difference over that of the token's own state: a few tokens' are a hundred times others'."""
    return float(((found - expected).norm(dim=-1) / expected.norm(dim=-1)).max())


@pytest.mark.slow
def test_embedded_model_equals_a_plain_forward_in_any_batch(embedded: LoadedModel) -> None:
    layers, passes = (1, 16, 30), {key: tiny_passes()[key] for key in ("short", "long context", "unicode")}
    assert Engine(embedded, 2048).decoder.can_pack
    alone = {key: states_of(embedded, {key: pass_}, layers)[key] for key, pass_ in passes.items()}
    together = states_of(embedded, dict(reversed(passes.items())), layers, tokens=60)
    exact = tolerance(torch.float32)  # 1.4e-6 measured: another order of sums
    for key, pass_ in passes.items():
        assert relative_error(together[key], alone[key]) <= exact
        assert relative_error(alone[key], reference(embedded, pass_, layers)) <= exact
    rounded = 8 * torch.finfo(torch.bfloat16).eps  # of the stream in each of 30 blocks: 0.034 measured
    half = states_of(load_model(embedded.ref, torch.device("cpu"), torch.bfloat16), passes, layers)
    for key, states in alone.items():
        assert half[key].dtype == torch.bfloat16
        assert relative_error(half[key].float(), states) <= rounded
        cosines = torch.cosine_similarity(half[key].float(), states, dim=-1)
        assert float(cosines.min()) >= 1 - rounded**2  # 1 - e²/2 for an error e at right angles, twice that allowed


def start_decoder(loaded: LoadedModel) -> tuple[int, Decoder]:
    """The forward passes that the start of a decoder takes, and the decoder."""
    with watch_batches(loaded.model.base_model) as passes:
        decoder = Decoder(loaded)
    return len(passes), decoder


def test_self_check_runs_again_only_after_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = replace(tiny_model(), self_check_folder=tmp_path / "checks")
    (first, decoder), (again, known) = start_decoder(loaded), start_decoder(loaded)
    assert (first, again) == (4, 0)
    assert (known.can_pack, known._can_project) == (decoder.can_pack, decoder._can_project) == (True, True)
    loaded = replace(loaded, ref=replace(loaded.ref, revision="other"))
    assert start_decoder(loaded)[0] == 4
    monkeypatch.setattr(self_check, "_code_digest", lambda: "other")
    assert start_decoder(loaded)[0] == 4
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "other")
    assert start_decoder(loaded)[0] == 4
    loaded.model.double()
    assert [start_decoder(loaded)[0] for _ in range(2)] == [4, 0]
    assert [start_decoder(tiny_model())[0] for _ in range(2)] == [4, 4], "nothing is remembered without a folder"


few_tokens = st.lists(st.integers(0, 2), min_size=1, max_size=40)


@given(st.lists(few_tokens, max_size=12), st.integers(1, 50))
def test_build_tree_path_spells_its_pass_in_short_runs(passes: list[list[int]], longest: int) -> None:
    runs = list(walk(build_tree(passes, longest)))
    ends = {index: run for run in runs for index in run.prompt_indices}
    assert sorted(ends) == list(range(len(passes)))
    for index, ids in enumerate(passes):
        path = ends[index].path
        assert [token for node in path for token in node.ids] == ids
        assert path[0].start == 0 and all(one.end == other.start for one, other in pairwise(path))
        assert all(0 < len(node) <= longest for node in path)
    seen: set[int] = set()
    for run in runs:  # parents before children
        assert run.parent is None or id(run.parent) in seen
        seen.add(id(run))


@pytest.mark.heavy
@given(st.lists(few_tokens, min_size=1, max_size=12))
def test_build_tree_stores_shared_tokens_once(passes: list[list[int]]) -> None:
    total = sum(map(len, walk(build_tree(passes, 1000))))
    once = {tuple(ids[: n + 1]) for ids in passes for n in range(len(ids))}
    # At best every prefix is there once; each pass may repeat fewer than MIN_SHARED tokens where it leaves another.
    assert len(once) <= total < len(once) + MIN_SHARED * len(passes)


def test_build_tree_short_common_prefix_is_not_shared() -> None:
    apart = build_tree([[1, 2, 3, 4, 5], [1, 2, 3, 9, 9]], 100)
    assert [run.ids for run in apart] == [[1, 2, 3, 4, 5], [1, 2, 3, 9, 9]]
    (on,) = build_tree([[1, 2, 3], [1, 2, 3, 4]], 100)
    assert on.ids == [1, 2, 3] and on.children[0].ids == [4]


@given(st.lists(few_tokens, max_size=6))
def test_count_distinct_tokens_counts_prefixes_once(passes: list[list[int]]) -> None:
    assert count_distinct_tokens(passes) == len({tuple(ids[:end]) for ids in passes for end in range(1, len(ids) + 1)})
