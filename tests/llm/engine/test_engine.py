from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig

from abstain.core.errors import AbstainError
from abstain.llm.engine import attention
from abstain.llm.engine.engine import Engine
from abstain.llm.engine.loading import LoadedModel, get_context_length, load_model
from abstain.llm.engine.planner import RequestPlan
from abstain.llm.engine.prompts import PromptSegments, Segment, load_layout
from abstain.llm.engine.requests import HiddenStates, Request, Site
from abstain.llm.engine.tokenization import encode_prompt
from tests.llm.builders import LAYERS, WINDOW, plain_forward, shared_model, tiny_model, tiny_pass, tiny_passes
from tests.tolerance import tolerance

FAMILIES = ["llama", "qwen2", "gemma3", "gpt2", "opt"]
TOLERANCE = 1e-4
"""Absolute, of any entry of the tiny models' float32 states. The largest are 34, and 4e-5 is measured."""
LLAMA = shared_model("llama")


def blocks_of(loaded: LoadedModel) -> torch.nn.ModuleList:
    base = loaded.model.base_model
    return getattr(base, "h", None) or getattr(base, "layers", None) or base.decoder.layers


def length(loaded: LoadedModel, pass_: PromptSegments) -> int:
    return len(encode_prompt(loaded.tokenizer, pass_).ids)


def reference(loaded: LoadedModel, pass_: PromptSegments, layers: tuple[int, ...]) -> Tensor:
    """States of answer and EOS by a plain forward: (layers, L + 1, d)."""
    encoded = encode_prompt(loaded.tokenizer, pass_)
    _, states = plain_forward(loaded, encoded.ids)
    return torch.stack([states[layer][encoded.spans["answer"][0] :] for layer in layers])


def mlp_reference(loaded: LoadedModel, pass_: PromptSegments, layers: tuple[int, ...]) -> Tensor:
    """The same, of the output of the blocks' feed-forward parts."""
    encoded, seen = encode_prompt(loaded.tokenizer, pass_), {}
    hooks = [
        block.mlp.register_forward_hook(lambda _m, _i, output, at=layer: seen.update({at: output}))
        for layer, block in enumerate(blocks_of(loaded), start=1)
    ]
    plain_forward(loaded, encoded.ids)
    for hook in hooks:
        hook.remove()
    return torch.stack([seen[layer][0, encoded.spans["answer"][0] :] for layer in layers])


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


@contextmanager
def watch_calls(loaded: LoadedModel) -> Iterator[SimpleNamespace]:
    """The blocks and heads that run, and the shapes of the batches."""
    calls = SimpleNamespace(blocks=set(), heads=[], shapes=[])
    hooks = [
        block.register_forward_pre_hook(lambda *_, at=layer: calls.blocks.add(at))
        for layer, block in enumerate(blocks_of(loaded), start=1)
    ]
    hooks.append(loaded.model.get_output_embeddings().register_forward_pre_hook(lambda *_: calls.heads.append(1)))
    hooks.append(
        loaded.model.base_model.register_forward_pre_hook(
            lambda _m, _args, named: calls.shapes.append(tuple(named["input_ids"].shape)), with_kwargs=True
        )
    )
    yield calls
    for hook in hooks:
        hook.remove()


@pytest.mark.heavy
@pytest.mark.parametrize("family", FAMILIES)
def test_engine_states_equal_a_plain_forward(family: str) -> None:
    loaded, layers = shared_model(family), (1, 2, LAYERS)
    assert Engine(loaded, 100).decoder.can_pack
    every = {key: reference(loaded, pass_, tuple(range(LAYERS + 1))) for key, pass_ in tiny_passes().items()}
    expected = {key: states[list(layers)] for key, states in every.items()}
    assert max_difference(states_of(loaded, tiny_passes(), layers), expected) <= TOLERANCE
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
    expected = {key: mlp_reference(loaded, pass_, layers) for key, pass_ in tiny_passes().items()}
    assert max_difference(states_of(loaded, tiny_passes(), layers, "mlp"), expected) <= TOLERANCE
    assert max_difference(states_of(loaded, tiny_passes(), layers), expected) > 100 * TOLERANCE


def test_engine_reads_other_segments() -> None:
    encoded = encode_prompt(LLAMA.tokenizer, tiny_pass())
    request = Request(tiny_pass(), HiddenStates(2, segments=("question", "turn")), "a")
    ((_, states),) = Engine(LLAMA, 4096).run({"a": request})
    expected = plain_forward(LLAMA, encoded.ids)[1][2][slice(*encoded.span("question", "turn"))]
    torch.testing.assert_close(states, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("family", "packed"), [*((family, True) for family in FAMILIES), ("llama", False), ("opt", False)]
)
def test_engine_states_are_equal_in_any_batch_or_order(family: str, packed: bool) -> None:
    loaded, passes, layers = shared_model(family), tiny_passes(), (2, LAYERS)
    alone = {key: states_of(loaded, {key: pass_}, layers, packed=packed)[key] for key, pass_ in passes.items()}
    backwards = dict(reversed(passes.items()))
    for tokens in (16, 200, 10_000):  # 16: every run is cut into a chain, and goes on from kept keys and values
        together = states_of(loaded, backwards, layers, tokens=tokens, packed=packed)
        assert max_difference(alone, together) <= TOLERANCE
    fewer = {key: passes[key] for key in ("unicode", "short")}
    part = states_of(loaded, fewer, layers, tokens=10_000)
    assert max_difference({key: alone[key] for key in fewer}, part) <= TOLERANCE


@pytest.mark.parametrize(
    ("layers", "site", "deepest"), [((1, 3), "residual", 3), ((3, 2), "mlp", 3), ((LAYERS,), "residual", LAYERS)]
)
@pytest.mark.parametrize(("family", "packed"), [("llama", True), ("llama", False), ("gpt2", True)])
def test_engine_computes_nothing_above_the_deepest_layer(
    family: str, packed: bool, layers: tuple[int, ...], site: Site, deepest: int
) -> None:
    engine = Engine(shared_model(family), 600, packed)
    with watch_calls(engine.loaded) as calls:
        assert len(run(engine, tiny_passes(), layers, site)) == len(layers) * len(tiny_passes())
    assert set(engine.stats.layer_tokens) == calls.blocks == set(range(1, deepest + 1))
    assert not calls.heads and engine.stats.vocabulary_rows == 0


def test_engine_deepest_layer_computes_requested_tokens() -> None:
    passes = tiny_passes()
    engine, rows = Engine(LLAMA, 10_000), Counter()
    handle = blocks_of(LLAMA)[2].mlp.register_forward_hook(lambda _m, _i, output: rows.update([output.shape[1]]))
    states = run(engine, passes, (3,))
    handle.remove()
    asked = sum(len(rows) for rows in states.values())
    # Answers that begin alike share rows.
    assert list(rows) == [engine.stats.layer_tokens[3]]
    assert engine.stats.layer_tokens[3] <= asked < engine.stats.layer_tokens[2] == engine.stats.layer_tokens[1]


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
        "earlier": Request(pass_, HiddenStates(2, segments=("question",)), "earlier"),
        "longer": Request(longer, HiddenStates(2, segments=("check",)), "longer"),
    }
    engine = Engine(LLAMA, 10_000)
    found = dict(engine.run(requests))
    assert engine.stats.forward_tokens == length(LLAMA, longer)
    assert torch.equal(found["one"], found["same"])
    assert len(found["longer"]) == len("Is that right?")


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
    with watch_calls(LLAMA) as calls:
        run(engine, tiny_passes(), (3,))
    assert all(rows * longest <= tokens or (rows == 1 and not packed) for rows, longest in calls.shapes)
    assert sum(rows * longest for rows, longest in calls.shapes) == engine.stats.forward_tokens
    lengths = [length(LLAMA, pass_) for pass_ in tiny_passes().values()]
    assert (engine.stats.prompts, engine.stats.pass_tokens) == (len(lengths), sum(lengths))


def test_engine_padded_batches_have_like_lengths() -> None:
    passes = {f"i-{n}": tiny_pass(f"{n}") for n in range(7)}
    each = length(LLAMA, tiny_pass("0"))
    engine = Engine(LLAMA, 3 * each, packed=False)
    assert list(engine.run({})) == []
    with watch_calls(LLAMA) as calls:
        run(engine, passes, (1,))
    assert calls.shapes == [(3, each), (3, each), (1, each)]


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


def test_engine_leaves_the_model_unchanged() -> None:
    def seen() -> tuple[Tensor, int]:
        hooks = sum(len(module._forward_hooks) for module in LLAMA.model.modules())
        return reference(LLAMA, tiny_pass(), tuple(range(LAYERS + 1))), hooks

    before, hooks = seen()
    states_of(LLAMA, tiny_passes(), (2,), "mlp")
    after, left = seen()
    assert torch.equal(before, after) and left == hooks


def test_engine_nan_weight_is_an_error_at_its_layer_only() -> None:
    loaded = tiny_model()
    blocks_of(loaded)[2].mlp.down_proj.weight.fill_(float("nan"))
    assert states_of(loaded, {"i-17": tiny_pass()}, (2,))
    with pytest.raises(AbstainError, match=r"interaction i-17: .* layer 3 are not finite; try ABSTAIN_DTYPE"):
        states_of(loaded, {"i-17": tiny_pass()}, (3,))


def test_engine_infinite_state_names_its_interaction() -> None:
    loaded = tiny_model()
    (poison,) = loaded.tokenizer.encode("~", add_special_tokens=False)
    loaded.model.get_input_embeddings().weight[poison] = float("inf")
    passes = {"fine": tiny_pass(), "poisoned": tiny_pass(context="There is ~ fee."), "fine too": tiny_pass("Nil..")}
    with pytest.raises(AbstainError, match="interaction poisoned:"):
        states_of(loaded, passes, (1,))
    passes.pop("poisoned")
    assert set(states_of(loaded, passes, (1,))) == set(passes)


@pytest.mark.parametrize("layer", [-1, 0, LAYERS + 1])
def test_engine_unknown_layer_is_refused(layer: int) -> None:
    with pytest.raises(AbstainError, match=f"^layer {layer} requested, but .* layers 1 to {LAYERS}: set llm"):
        states_of(LLAMA, {"a": tiny_pass()}, (1, layer))


def test_engine_pass_may_fill_the_window_only() -> None:
    room = WINDOW - length(LLAMA, tiny_pass(answer=""))
    assert states_of(LLAMA, {"full": tiny_pass("x" * room)}, (1,))["full"].shape[1] == room + 1
    with pytest.raises(AbstainError, match=f"^interaction over: {WINDOW + 1} tokens .* {WINDOW}"):
        states_of(LLAMA, {"full": tiny_pass("x" * room), "over": tiny_pass("x" * (room + 1))}, (1,))


def test_engine_mlp_site_missing_names_residual() -> None:
    with pytest.raises(AbstainError, match="tiny-opt has no .* set llm.site to residual"):
        states_of(shared_model("opt"), {"a": tiny_pass()}, (1,), "mlp")


HANDBOOK = (
    "## Replacement cards\n\nA replacement for a lost or stolen Harbour Gold card costs 12.50 EUR and arrives within "
    "five working days. Customers of the Premier programme pay nothing.\n\n| card | fee |\n| --- | --- |\n| Gold | 12.50 |"
)
REAL = {
    "fee": ("How much is a new Gold card?", [HANDBOOK], "A replacement Harbour Gold card costs 12.50 EUR."),
    "no context": ("When does the branch open?", [], "I do not know."),
    "premier": ("Do Premier customers pay for it?", [HANDBOOK] * 3, "No, they pay nothing."),
    "short": ("Is it free?", ["Yes."], "Yes"),
}

REAL_LAYERS = (1, 16, 30)


def real_passes() -> dict[str, PromptSegments]:
    layout = load_layout("rag-chatml-v1")
    return {key: layout.render(*texts) for key, texts in REAL.items()}


EXACT, ROUNDED = tolerance(torch.float32), 8 * torch.finfo(torch.bfloat16).eps
"""Bounds on `relative_error` in float32, and between bfloat16 and float32.

Two float32 runs differ by the order of their sums alone: 1.4e-6 measured, 3e-5 allowed. bfloat16 rounds the stream in
each of 30 blocks to 8 bits: 0.034 measured, 0.0625 allowed.
"""


def relative_error(found: Tensor, expected: Tensor) -> Tensor:
    """(layers, L + 1): the norm of each difference over that of the token's own state.

    A few tokens' norms are a hundred times those of the others, which would hide a wrong state of an ordinary token.
    """
    return (found - expected).norm(dim=-1) / expected.norm(dim=-1)


@pytest.fixture(scope="module")
def read_alone(embedded: LoadedModel) -> dict[str, Tensor]:
    return {key: states_of(embedded, {key: pass_}, REAL_LAYERS)[key] for key, pass_ in real_passes().items()}


@pytest.mark.slow
def test_embedded_model_equals_a_plain_forward_in_any_batch(
    embedded: LoadedModel, read_alone: dict[str, Tensor]
) -> None:
    engine = Engine(embedded, 2048)
    assert engine.decoder.can_pack
    with watch_calls(embedded) as calls:
        run(engine, real_passes(), (16,))
    assert not calls.heads and max(calls.blocks) == 16
    for key, pass_ in real_passes().items():
        assert float(relative_error(read_alone[key], reference(embedded, pass_, REAL_LAYERS)).max()) <= EXACT
    for tokens in (500, 4096):
        together = states_of(embedded, dict(reversed(real_passes().items())), REAL_LAYERS, tokens=tokens)
        assert max(float(relative_error(together[key], read_alone[key]).max()) for key in read_alone) <= EXACT


@pytest.mark.slow
def test_embedded_model_in_bfloat16_is_close_to_float32(embedded: LoadedModel, read_alone: dict[str, Tensor]) -> None:
    half = load_model(embedded.ref, torch.device("cpu"), torch.bfloat16)
    rounded = states_of(half, real_passes(), REAL_LAYERS)
    for key, exact in read_alone.items():
        assert rounded[key].dtype == torch.bfloat16
        assert float(relative_error(rounded[key].float(), exact).max()) <= ROUNDED
        cosines = torch.cosine_similarity(rounded[key].float(), exact, dim=-1)
        assert float(cosines.min()) >= 1 - ROUNDED**2  # 1 - e²/2 for an error e at right angles, twice that allowed
