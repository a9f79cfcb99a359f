from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
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


@pytest.fixture
def llama() -> LoadedModel:
    return shared_model("llama")


def blocks_of(loaded: LoadedModel) -> torch.nn.ModuleList:
    base = loaded.model.base_model
    return getattr(base, "h", None) or getattr(base, "layers", None) or base.decoder.layers


def length(loaded: LoadedModel, pass_: PromptSegments) -> int:
    return len(encode_prompt(loaded.tokenizer, pass_).ids)


def reference(loaded: LoadedModel, pass_: PromptSegments, layers: tuple[int, ...]) -> Tensor:
    """Answer and EOS states by a plain forward: (layers, L + 1, d)."""
    encoded = encode_prompt(loaded.tokenizer, pass_)
    _, states = plain_forward(loaded, encoded.ids)
    return torch.stack([states[layer][encoded.spans["answer"][0] :] for layer in layers])


def feed_forward_reference(loaded: LoadedModel, pass_: PromptSegments, layers: tuple[int, ...]) -> Tensor:
    """The same, of the output of the blocks' feed-forward parts, seen by hooks of our own."""
    encoded = encode_prompt(loaded.tokenizer, pass_)
    seen: dict[int, Tensor] = {}
    with ExitStack() as hooks:
        for layer in layers:
            module = blocks_of(loaded)[layer - 1].mlp
            handle = module.register_forward_hook(lambda _m, _i, output, at=layer: seen.update({at: output}))
            hooks.callback(handle.remove)
        plain_forward(loaded, encoded.ids)
    return torch.stack([seen[layer][0, encoded.spans["answer"][0] :] for layer in layers])


def run(
    engine: Engine, passes: Mapping[str, PromptSegments], layers: tuple[int, ...], site: Site = "residual"
) -> dict[str, Any]:
    """The states of every layer and pass, by "layer pass", all requested at once."""
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
    """(layers, L + 1, d) of every pass, all layers requested at once."""
    found = run(Engine(loaded, tokens, packed), passes, layers, site)
    return {key: torch.stack([found[f"{layer} {key}"] for layer in layers]) for key in passes}


def largest_difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    assert {key: (of.shape, of.dtype) for key, of in one.items()} == {
        k: (of.shape, of.dtype) for k, of in other.items()
    }
    return max(float((one[key] - other[key]).abs().max()) for key in one)


class Calls:
    """Counts the forward calls of every block and of the vocabulary projection, and keeps the batches' shapes."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.blocks: Counter[int] = Counter()
        self.head = 0
        self.shapes: list[tuple[int, int]] = []
        self._hooks = ExitStack()
        for layer, block in enumerate(blocks_of(loaded), start=1):
            self._watch(block, lambda *_, at=layer: self.blocks.update([at]))
        self._watch(loaded.model.get_output_embeddings(), self._count_head)
        handle = loaded.model.base_model.register_forward_pre_hook(self._keep_shape, with_kwargs=True)
        self._hooks.callback(handle.remove)

    def __enter__(self) -> Calls:
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.close()

    def _watch(self, module: torch.nn.Module, hook: Any) -> None:
        self._hooks.callback(module.register_forward_pre_hook(hook).remove)

    def _count_head(self, *_: Any) -> None:
        self.head += 1

    def _keep_shape(self, _module: Any, _args: Any, kwargs: dict[str, Any]) -> None:
        self.shapes.append(tuple(kwargs["input_ids"].shape))


@pytest.mark.heavy
@pytest.mark.parametrize("family", FAMILIES)
def test_states_equal_a_plain_forward_at_first_middle_and_last_layer(family: str) -> None:
    loaded, layers = shared_model(family), (1, 2, LAYERS)
    assert Engine(loaded, 100).decoder.can_pack
    every = {key: reference(loaded, pass_, tuple(range(LAYERS + 1))) for key, pass_ in tiny_passes().items()}
    expected = {key: states[list(layers)] for key, states in every.items()}
    assert largest_difference(states_of(loaded, tiny_passes(), layers), expected) <= TOLERANCE
    # An off-by-one in layers or tokens would be seen: neighbours are far apart.
    for key, states in every.items():
        below = states[[layer - 1 for layer in layers]]
        assert ((below - expected[key]).abs().amax(dim=(1, 2)) > 100 * TOLERANCE).all()
        if len(expected[key][0]) > 2:
            shifted = expected[key].roll(1, dims=1)
            assert ((shifted - expected[key]).abs().amax(dim=(1, 2)) > 100 * TOLERANCE).all()


@pytest.mark.heavy
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3", "gpt2"])
def test_the_mlp_site_is_the_output_of_the_feed_forward_part(family: str) -> None:
    loaded, layers = shared_model(family), (1, 3, LAYERS)
    expected = {key: feed_forward_reference(loaded, pass_, layers) for key, pass_ in tiny_passes().items()}
    assert largest_difference(states_of(loaded, tiny_passes(), layers, "mlp"), expected) <= TOLERANCE
    assert largest_difference(states_of(loaded, tiny_passes(), layers), expected) > 100 * TOLERANCE


def test_other_segments_can_be_asked_for(llama: LoadedModel) -> None:
    encoded = encode_prompt(llama.tokenizer, tiny_pass())
    request = Request(tiny_pass(), HiddenStates(2, segments=("question", "turn")), "a")
    ((_, states),) = Engine(llama, 4096).run({"a": request})
    expected = plain_forward(llama, encoded.ids)[1][2][slice(*encoded.span("question", "turn"))]
    torch.testing.assert_close(states, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("family", "packed"), [*((family, True) for family in FAMILIES), ("llama", False), ("opt", False)]
)
def test_a_row_has_the_same_states_alone_in_any_batch_and_in_any_order(family: str, packed: bool) -> None:
    loaded, passes, layers = shared_model(family), tiny_passes(), (2, LAYERS)
    alone = {key: states_of(loaded, {key: pass_}, layers, packed=packed)[key] for key, pass_ in passes.items()}
    backwards = dict(reversed(passes.items()))
    for tokens in (16, 200, 10_000):  # 16: every run is cut into a chain, and goes on from kept keys and values
        together = states_of(loaded, backwards, layers, tokens=tokens, packed=packed)
        assert largest_difference(alone, together) <= TOLERANCE
    fewer = {key: passes[key] for key in ("unicode", "short")}
    part = states_of(loaded, fewer, layers, tokens=10_000)
    assert largest_difference({key: alone[key] for key in fewer}, part) <= TOLERANCE


@pytest.mark.parametrize(
    ("layers", "site", "deepest"), [((1, 3), "residual", 3), ((3, 2), "mlp", 3), ((LAYERS,), "residual", LAYERS)]
)
@pytest.mark.parametrize(("family", "packed"), [("llama", True), ("llama", False), ("gpt2", True)])
def test_nothing_above_the_deepest_layer_is_computed(
    family: str, packed: bool, layers: tuple[int, ...], site: Site, deepest: int
) -> None:
    engine = Engine(shared_model(family), 600, packed)
    with Calls(engine.loaded) as calls:
        assert len(run(engine, tiny_passes(), layers, site)) == len(layers) * len(tiny_passes())
    assert set(calls.blocks) == set(range(1, deepest + 1))
    assert set(engine.stats.layer_tokens) == set(calls.blocks)
    assert calls.head == 0 and engine.stats.vocabulary_rows == 0


def test_of_the_deepest_layer_only_what_was_asked_for_is_computed(llama: LoadedModel) -> None:
    passes = tiny_passes()
    engine, rows = Engine(llama, 10_000), Counter()
    handle = blocks_of(llama)[2].mlp.register_forward_hook(lambda _m, _i, output: rows.update([output.shape[1]]))
    states = run(engine, passes, (3,))
    handle.remove()
    asked = sum(len(rows) for rows in states.values())
    # Answers that begin alike share rows, and none of what stands before an answer went through the block's MLP.
    assert list(rows) == [engine.stats.layer_tokens[3]]
    assert engine.stats.layer_tokens[3] <= asked < engine.stats.layer_tokens[2] == engine.stats.layer_tokens[1]


def test_the_tokens_of_a_shared_prefix_are_run_once(llama: LoadedModel) -> None:
    contexts = ["The fee is 9 EUR. " * 4, "Cards come by post. " * 4]
    asked = [(f"What about {n}?", context, f"It is {n}.") for context in contexts for n in range(5)]
    passes = {f"{n}": tiny_pass(answer, context, question) for n, (question, context, answer) in enumerate(asked)}
    encoded = {key: encode_prompt(llama.tokenizer, pass_) for key, pass_ in passes.items()}
    engine = Engine(llama, 10_000)
    found = run(engine, passes, (2,))
    for key, pass_ in passes.items():
        torch.testing.assert_close(found[f"2 {key}"][None], reference(llama, pass_, (2,)), atol=TOLERANCE, rtol=0)
    # Of each context, all that stands before what its five questions differ in, once; the instruction, in this layout
    # shorter than MIN_SHARED, is not worth a run of its own.
    before = {key: one.spans["question"][0] + len("What about ") for key, one in encoded.items()}
    rest = sum(len(one.ids) - before[key] for key, one in encoded.items())
    assert engine.stats.pass_tokens == sum(len(one.ids) for one in encoded.values())
    assert engine.stats.forward_tokens == before["0"] + before["5"] + rest


def test_equal_passes_and_passes_that_go_on_from_others_cost_nothing(llama: LoadedModel) -> None:
    pass_ = tiny_pass()
    longer = (*pass_, Segment("check", "Is that right?"))
    requests = {
        "one": Request(pass_, HiddenStates(2), "one"),
        "same": Request(pass_, HiddenStates(2), "same"),
        "earlier": Request(pass_, HiddenStates(2, segments=("question",)), "earlier"),
        "longer": Request(longer, HiddenStates(2, segments=("check",)), "longer"),
    }
    engine = Engine(llama, 10_000)
    found = dict(engine.run(requests))
    assert engine.stats.forward_tokens == length(llama, longer)
    assert torch.equal(found["one"], found["same"])
    assert len(found["longer"]) == len("Is that right?")


def test_a_shallow_ask_does_not_go_deep_unless_that_saves_more(llama: LoadedModel) -> None:
    def work(packed: bool, **asked: tuple[PromptSegments, int]) -> Counter[int]:
        engine = Engine(llama, 10_000, packed)
        list(engine.run({key: Request(pass_, HiddenStates(layer), key) for key, (pass_, layer) in asked.items()}))
        return engine.stats.layer_tokens

    deep, shallow = tiny_pass("A.", "x" * 90), tiny_pass("B.", "y" * 90)
    near = tiny_pass("B.", "x" * 90)  # shares its context with the deep one
    of_deep, answer = length(llama, deep), len("B.") + 1
    found = work(True, deep=(deep, 4), shallow=(shallow, 1))
    assert (found[1], found[2]) == (of_deep + answer, of_deep)
    assert work(True, deep=(deep, 4), near=(near, 3))[1] == of_deep + answer
    padded = work(False, deep=(deep, 4), shallow=(shallow, 1))
    assert (padded[1], padded[4]) == (of_deep + length(llama, shallow), of_deep)


@pytest.mark.heavy
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("tokens", [5, 300, 10_000])
def test_a_forward_pass_stays_within_its_tokens(llama: LoadedModel, tokens: int, packed: bool) -> None:
    engine = Engine(llama, tokens, packed)
    with Calls(llama) as calls:
        run(engine, tiny_passes(), (3,))
    assert all(rows * longest <= tokens or (rows == 1 and not packed) for rows, longest in calls.shapes)
    assert sum(rows * longest for rows, longest in calls.shapes) == engine.stats.forward_tokens
    lengths = [length(llama, pass_) for pass_ in tiny_passes().values()]
    assert (engine.stats.prompts, engine.stats.pass_tokens) == (len(lengths), sum(lengths))


def test_padded_batches_hold_passes_of_like_length(llama: LoadedModel) -> None:
    passes = {f"i-{n}": tiny_pass(f"{n}") for n in range(7)}
    each = length(llama, tiny_pass("0"))
    engine = Engine(llama, 3 * each, packed=False)
    with Calls(llama) as calls:
        run(engine, passes, (1,))
    assert calls.shapes == [(3, each), (3, each), (1, each)]


def test_a_model_whose_attention_is_not_as_packing_needs_it_is_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = tiny_model()
    expected = states_of(loaded, tiny_passes(), (2, LAYERS))
    honest = attention.PackedBatch._gather_path

    def forgets_the_prefix(self: Any, run: Any, layer: int, k: Tensor, v: Tensor) -> Any:
        keys, values = honest(self, run, layer, k, v)
        return keys * 0.5, values

    monkeypatch.setattr(attention.PackedBatch, "_gather_path", forgets_the_prefix)
    assert not Engine(loaded, 4096).decoder.can_pack
    assert largest_difference(states_of(loaded, tiny_passes(), (2, LAYERS)), expected) <= TOLERANCE


def test_a_model_with_longrope_reads_what_it_was_trained_on() -> None:
    assert get_context_length(LlamaConfig(max_position_embeddings=64)) == 64
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 32}
    config = LlamaConfig(
        hidden_size=16,
        num_attention_heads=2,
        max_position_embeddings=64,
        rope_parameters={**rope, "short_factor": [1.0] * 4, "long_factor": [1.0] * 4},
    )
    assert get_context_length(config) == 32


def test_keys_and_values_are_released_after_use(llama: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[RequestPlan] = []
    honest = RequestPlan.__init__
    monkeypatch.setattr(RequestPlan, "__init__", lambda self, *given: (honest(self, *given), plans.append(self))[0])
    engine = Engine(llama, 64)
    running = engine.run({key: Request(pass_, HiddenStates(2), key) for key, pass_ in tiny_passes().items()})
    most = 0
    for _ in running:
        most = max(most, sum(len(node) for node in plans[0].kv_cache))
    longest = max(length(llama, pass_) for pass_ in tiny_passes().values())
    assert 0 < most <= longest + 64  # one path, and what the next batch has begun
    assert not plans[0].kv_cache and not plans[0].results


def test_an_early_exit_leaves_the_model_as_it_was(llama: LoadedModel) -> None:
    def seen() -> tuple[Tensor, int]:
        hooks = sum(len(module._forward_hooks) for module in llama.model.modules())
        return reference(llama, tiny_pass(), tuple(range(LAYERS + 1))), hooks

    before, hooks = seen()
    states_of(llama, tiny_passes(), (2,), "mlp")
    after, left = seen()
    assert torch.equal(before, after) and left == hooks


def test_no_passes_no_work(llama: LoadedModel) -> None:
    engine = Engine(llama, 100)
    assert list(engine.run({})) == []
    assert engine.stats.forward_tokens == 0


def test_a_weight_that_is_nan_names_the_interaction() -> None:
    loaded = tiny_model()
    blocks_of(loaded)[2].mlp.down_proj.weight.fill_(float("nan"))
    assert states_of(loaded, {"i-17": tiny_pass()}, (2,))
    with pytest.raises(AbstainError, match=r"interaction i-17: .* layer 3 are not finite; try ABSTAIN_DTYPE"):
        states_of(loaded, {"i-17": tiny_pass()}, (3,))


def test_only_the_interaction_that_is_not_finite_is_blamed() -> None:
    loaded = tiny_model()
    (poison,) = loaded.tokenizer.encode("~", add_special_tokens=False)
    loaded.model.get_input_embeddings().weight[poison] = float("inf")
    passes = {"fine": tiny_pass(), "poisoned": tiny_pass(context="There is ~ fee."), "fine too": tiny_pass("Nil..")}
    with pytest.raises(AbstainError, match="interaction poisoned:"):
        states_of(loaded, passes, (1,))
    passes.pop("poisoned")
    assert set(states_of(loaded, passes, (1,))) == set(passes)


@pytest.mark.parametrize("layer", [-1, 0, LAYERS + 1])
def test_a_layer_that_is_not_there_is_named_with_those_that_are(llama: LoadedModel, layer: int) -> None:
    with pytest.raises(
        AbstainError, match=f"^layer {layer} requested, but tiny-llama has layers 1 to {LAYERS}: set llm"
    ):
        states_of(llama, {"a": tiny_pass()}, (1, layer))


def test_a_pass_may_fill_the_window_but_not_exceed_it(llama: LoadedModel) -> None:
    room = WINDOW - length(llama, tiny_pass(answer=""))
    assert states_of(llama, {"full": tiny_pass("x" * room)}, (1,))["full"].shape[1] == room + 1
    with pytest.raises(AbstainError, match=f"^interaction over: {WINDOW + 1} tokens are more than the {WINDOW} that"):
        states_of(llama, {"full": tiny_pass("x" * room), "over": tiny_pass("x" * (room + 1))}, (1,))


def test_a_model_without_a_feed_forward_module_is_sent_to_the_residual_site() -> None:
    with pytest.raises(AbstainError, match="tiny-opt has no separate feed-forward block: set llm.site to residual"):
        states_of(shared_model("opt"), {"a": tiny_pass()}, (1,), "mlp")


HANDBOOK = (
    "## Replacement cards\n\nA replacement for a lost or stolen Harbour Gold card costs 12.50 EUR and arrives within "
    "five working days. Customers of the Premier programme pay nothing.\n\n| card | fee |\n| --- | --- |\n| Gold | 12.50 |"
)
REAL = {
    "fee": ("How much is a new Gold card?", [HANDBOOK], "A replacement Harbour Gold card costs 12.50 EUR."),
    "wrong": ("How much is a new Gold card?", [HANDBOOK, "Harbour Blue: 9 EUR."], "It costs 9 EUR."),
    "no context": ("When does the branch open?", [], "I do not know."),
    "premier": (
        "Do Premier customers pay for it?",
        [HANDBOOK] * 3,
        "No, customers of the Premier programme pay nothing.",
    ),
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
    """(layers, L + 1): of each token at each layer, the Euclidean norm of the difference over that of its own state.

    Not over the largest state: a few tokens' norms are a hundred times those of the others, and the scale of the stream
    grows with depth, so that a wrong state of an ordinary token would not be seen.
    """
    return (found - expected).norm(dim=-1) / expected.norm(dim=-1)


@pytest.fixture(scope="module")
def read_alone(embedded: LoadedModel) -> dict[str, Tensor]:
    """The embedded model's states of every real pass, read by itself."""
    return {key: states_of(embedded, {key: pass_}, REAL_LAYERS)[key] for key, pass_ in real_passes().items()}


@pytest.mark.slow
def test_embedded_model_equals_a_plain_forward(embedded: LoadedModel, read_alone: dict[str, Tensor]) -> None:
    engine = Engine(embedded, 2048)
    assert engine.decoder.can_pack
    with Calls(embedded) as calls:
        run(engine, real_passes(), (16,))
    assert calls.head == 0 and max(calls.blocks) == 16
    for key, pass_ in real_passes().items():
        assert float(relative_error(read_alone[key], reference(embedded, pass_, REAL_LAYERS)).max()) <= EXACT


@pytest.mark.slow
def test_embedded_model_gives_a_row_the_same_states_in_any_batch(
    embedded: LoadedModel, read_alone: dict[str, Tensor]
) -> None:
    for tokens in (500, 4096):
        together = states_of(embedded, dict(reversed(real_passes().items())), REAL_LAYERS, tokens=tokens)
        assert max(float(relative_error(together[key], read_alone[key]).max()) for key in read_alone) <= EXACT


@pytest.mark.slow
def test_embedded_model_in_bfloat16_points_where_float32_does(
    embedded: LoadedModel, read_alone: dict[str, Tensor]
) -> None:
    half = load_model(embedded.ref, torch.device("cpu"), torch.bfloat16)
    rounded = states_of(half, real_passes(), REAL_LAYERS)
    for key, exact in read_alone.items():
        assert rounded[key].dtype == torch.bfloat16
        assert float(relative_error(rounded[key].float(), exact).max()) <= ROUNDED
        cosines = torch.cosine_similarity(rounded[key].float(), exact, dim=-1)
        assert float(cosines.min()) >= 1 - ROUNDED**2  # 1 - e²/2 for an error e at right angles, twice that allowed
