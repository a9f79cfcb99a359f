from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig

from abstain.core.errors import AbstainError
from abstain.llm.engine import attention
from abstain.llm.engine.engine import Engine
from abstain.llm.engine.loading import LoadedModel, load, window_of
from abstain.llm.engine.planner import RequestPlan
from abstain.llm.engine.prompts import Pass, Segment, load_layout
from abstain.llm.engine.requests import HiddenStates, Request, Site
from abstain.llm.engine.tokenization import encode_pass
from tests.llm.builders import LAYERS, WIDTH, WINDOW, byte_tokenizer, tiny_model, tiny_pass, tiny_passes
from tests.tolerance import tolerance

FAMILIES = ["llama", "qwen2", "gemma3", "gpt2", "opt"]
TOLERANCE = 1e-4
"""Absolute, of any entry of the tiny models' float32 states. The largest are 34, and 4e-5 is measured."""


@cache
def shared_model(family: str) -> LoadedModel:
    """For tests that leave the weights alone."""
    return tiny_model(family)


@pytest.fixture
def llama() -> LoadedModel:
    return shared_model("llama")


def blocks_of(loaded: LoadedModel) -> torch.nn.ModuleList:
    base = loaded.model.base_model
    return getattr(base, "h", None) or getattr(base, "layers", None) or base.decoder.layers


def reference(loaded: LoadedModel, pass_: Pass, layers: tuple[int, ...]) -> Tensor:
    """Answer and EOS states by a plain Hugging Face forward of one row: (layers, L + 1, d)."""
    encoded = encode_pass(loaded.tokenizer, pass_)
    with torch.inference_mode():
        output = loaded.model(input_ids=torch.tensor([encoded.ids]), output_hidden_states=True)
    first = encoded.spans["answer"][0]
    return torch.stack([output.hidden_states[layer][0, first:] for layer in layers])


def feed_forward_reference(loaded: LoadedModel, pass_: Pass, layers: tuple[int, ...]) -> Tensor:
    """The same, of the output of the blocks' feed-forward parts, seen by hooks of our own."""
    encoded = encode_pass(loaded.tokenizer, pass_)
    seen: dict[int, Tensor] = {}
    with ExitStack() as hooks, torch.inference_mode():
        for layer in layers:
            module = blocks_of(loaded)[layer - 1].mlp
            handle = module.register_forward_hook(lambda _m, _i, output, at=layer: seen.update({at: output}))
            hooks.callback(handle.remove)
        loaded.model(input_ids=torch.tensor([encoded.ids]))
    return torch.stack([seen[layer][0, encoded.spans["answer"][0] :] for layer in layers])


def states_of(
    loaded: LoadedModel,
    passes: Mapping[str, Pass],
    layers: tuple[int, ...],
    site: Site = "residual",
    tokens: int = 4096,
    packed: bool | None = None,
) -> dict[str, Tensor]:
    """(layers, L + 1, d) of every pass, all layers asked for at once."""
    requests = {
        f"{layer} {key}": Request(pass_, HiddenStates(layer, site), f"interaction {key}")
        for layer in layers
        for key, pass_ in passes.items()
    }
    found = dict(Engine(loaded, tokens, packed).run(requests))
    return {key: torch.stack([found[f"{layer} {key}"] for layer in layers]) for key in passes}


def largest_difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    assert set(one) == set(other)
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
    expected = {key: reference(loaded, pass_, layers) for key, pass_ in tiny_passes().items()}
    assert largest_difference(states_of(loaded, tiny_passes(), layers), expected) <= TOLERANCE
    # An off-by-one in layers or tokens would be seen: neighbours are far apart.
    for key, pass_ in tiny_passes().items():
        below = reference(loaded, pass_, (0, 1, LAYERS - 1))
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


@pytest.mark.parametrize("layers", [(1,), (3,), (LAYERS,), (3, 1), (LAYERS, 2, 1)])
def test_layers_come_in_the_order_asked_for(llama: LoadedModel, layers: tuple[int, ...]) -> None:
    states = states_of(llama, {"a": tiny_pass()}, layers)["a"]
    torch.testing.assert_close(states, reference(llama, tiny_pass(), layers), atol=TOLERANCE, rtol=0)


def test_answer_and_eos_only(llama: LoadedModel) -> None:
    for key, states in states_of(llama, tiny_passes(), (2, 3)).items():
        answer = next(segment.text for segment in tiny_passes()[key] if segment.name == "answer")
        assert states.shape == (2, len(answer.encode()) + 1, WIDTH)
        assert states.dtype == torch.float32


def test_other_segments_can_be_asked_for(llama: LoadedModel) -> None:
    pass_ = tiny_pass()
    encoded = encode_pass(llama.tokenizer, pass_)
    ask = HiddenStates(2, segments=("question", "turn"))
    ((_, states),) = Engine(llama, 4096).run({"a": Request(pass_, ask, "a")})
    with torch.inference_mode():
        whole = llama.model(input_ids=torch.tensor([encoded.ids]), output_hidden_states=True).hidden_states[2][0]
    torch.testing.assert_close(states, whole[slice(*encoded.span("question", "turn"))], atol=TOLERANCE, rtol=0)


@pytest.mark.heavy
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_has_the_same_states_alone_in_any_batch_and_in_any_order(family: str, packed: bool) -> None:
    loaded, passes, layers = shared_model(family), tiny_passes(), (2, LAYERS)
    alone = {key: states_of(loaded, {key: pass_}, layers, packed=packed)[key] for key, pass_ in passes.items()}
    backwards = dict(reversed(passes.items()))
    for tokens in (7, 200, 700, 10_000):  # 7: every run is cut into a chain, and goes on from kept keys and values
        together = states_of(loaded, backwards, layers, tokens=tokens, packed=packed)
        assert largest_difference(alone, together) <= TOLERANCE
    fewer = {key: passes[key] for key in ("unicode", "short")}
    part = states_of(loaded, fewer, layers, tokens=10_000)
    assert largest_difference({key: alone[key] for key in fewer}, part) <= TOLERANCE


@pytest.mark.parametrize(
    ("layers", "site", "deepest"),
    [
        ((1,), "residual", 1),
        ((1, 3), "residual", 3),
        ((2,), "mlp", 2),
        ((3, 2), "mlp", 3),
        ((LAYERS,), "residual", LAYERS),
    ],
)
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_nothing_above_the_deepest_layer_is_computed(
    family: str, packed: bool, layers: tuple[int, ...], site: Site, deepest: int
) -> None:
    loaded = shared_model(family)
    engine = Engine(loaded, 600, packed)
    requests = {
        f"{at} {key}": Request(pass_, HiddenStates(at, site), key)
        for at in layers
        for key, pass_ in tiny_passes().items()
    }
    with Calls(loaded) as calls:
        assert len(list(engine.run(requests))) == len(requests)
    assert set(calls.blocks) == set(range(1, deepest + 1))
    assert set(engine.work.layer_tokens) == set(calls.blocks)
    assert calls.head == 0 and engine.work.vocabulary_rows == 0


def test_of_the_deepest_layer_only_what_was_asked_for_is_computed(llama: LoadedModel) -> None:
    passes = tiny_passes()
    engine, rows = Engine(llama, 10_000), Counter()
    handle = blocks_of(llama)[2].mlp.register_forward_hook(lambda _m, _i, output: rows.update([output.shape[1]]))
    states = dict(engine.run({key: Request(pass_, HiddenStates(3), key) for key, pass_ in passes.items()}))
    handle.remove()
    asked = sum(len(rows) for rows in states.values())
    # Answers that begin alike share rows, and none of what stands before an answer went through the block's MLP.
    assert list(rows) == [engine.work.layer_tokens[3]]
    assert engine.work.layer_tokens[3] <= asked < engine.work.layer_tokens[2] == engine.work.layer_tokens[1]


def test_the_tokens_of_a_shared_prefix_are_run_once(llama: LoadedModel) -> None:
    contexts = ["The fee is 9 EUR. " * 4, "Cards come by post. " * 4]
    asked = [(f"What about {n}?", context, f"It is {n}.") for context in contexts for n in range(5)]
    passes = {f"{n}": tiny_pass(answer, context, question) for n, (question, context, answer) in enumerate(asked)}
    encoded = {key: encode_pass(llama.tokenizer, pass_) for key, pass_ in passes.items()}
    engine = Engine(llama, 10_000)
    found = dict(engine.run({key: Request(pass_, HiddenStates(2), key) for key, pass_ in passes.items()}))
    for key, pass_ in passes.items():
        torch.testing.assert_close(found[key][None], reference(llama, pass_, (2,)), atol=TOLERANCE, rtol=0)
    # Of each context, all that stands before what its five questions differ in, once; the instruction, in this layout
    # shorter than MIN_SHARED, is not worth a run of its own.
    before = {key: one.spans["question"][0] + len("What about ") for key, one in encoded.items()}
    rest = sum(len(one.ids) - before[key] for key, one in encoded.items())
    assert engine.work.pass_tokens == sum(len(one.ids) for one in encoded.values())
    assert engine.work.forward_tokens == before["0"] + before["5"] + rest


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
    assert engine.work.forward_tokens == len(encode_pass(llama.tokenizer, longer).ids)
    assert torch.equal(found["one"], found["same"])
    assert len(found["longer"]) == len("Is that right?")


def test_a_shallow_ask_does_not_go_deep_unless_that_saves_more(llama: LoadedModel) -> None:
    deep, shallow = tiny_pass("A.", "x" * 90), tiny_pass("B.", "y" * 90)
    near = tiny_pass("B.", "x" * 90)  # shares its context with the deep one
    engine = Engine(llama, 10_000)
    list(engine.run({"deep": Request(deep, HiddenStates(4), "d"), "shallow": Request(shallow, HiddenStates(1), "s")}))
    lengths = [len(encode_pass(llama.tokenizer, pass_).ids) for pass_ in (deep, shallow)]
    assert engine.work.layer_tokens[1] == lengths[0] + len("B.") + 1 and engine.work.layer_tokens[2] == lengths[0]
    together = Engine(llama, 10_000)
    list(together.run({"deep": Request(deep, HiddenStates(4), "d"), "near": Request(near, HiddenStates(3), "n")}))
    assert together.work.forward_tokens == lengths[0] + len("B.") + 1


@pytest.mark.heavy
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("tokens", [1, 300, 700, 10_000])
def test_a_forward_pass_stays_within_its_tokens(llama: LoadedModel, tokens: int, packed: bool) -> None:
    engine = Engine(llama, tokens, packed)
    with Calls(llama) as calls:
        list(engine.run({key: Request(pass_, HiddenStates(3), key) for key, pass_ in tiny_passes().items()}))
    assert all(rows * longest <= tokens or (rows == 1 and not packed) for rows, longest in calls.shapes)
    assert sum(rows * longest for rows, longest in calls.shapes) == engine.work.forward_tokens
    lengths = [len(encode_pass(llama.tokenizer, pass_).ids) for pass_ in tiny_passes().values()]
    assert (engine.work.passes, engine.work.pass_tokens) == (len(lengths), sum(lengths))
    if packed:
        assert all(longest == tokens for _, longest in calls.shapes[:-1] if tokens == 1)


def test_padded_batches_hold_passes_of_like_length(llama: LoadedModel) -> None:
    passes = {f"i-{n}": tiny_pass(f"{n}") for n in range(7)}
    length = len(encode_pass(llama.tokenizer, tiny_pass("0")).ids)
    engine = Engine(llama, 3 * length, packed=False)
    with Calls(llama) as calls:
        list(engine.run({key: Request(pass_, HiddenStates(1), key) for key, pass_ in passes.items()}))
    assert calls.shapes == [(3, length), (3, length), (1, length)]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_here_can_be_packed(family: str) -> None:
    assert Engine(shared_model(family), 100).decoder.packs


def test_a_model_whose_attention_is_not_as_packing_needs_it_is_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = tiny_model()
    expected = states_of(loaded, tiny_passes(), (2, LAYERS))
    honest = attention.PackedBatch._of_path

    def forgets_the_prefix(self: Any, run: Any, layer: int, k: Tensor, v: Tensor) -> Any:
        keys, values = honest(self, run, layer, k, v)
        return keys * 0.5, values

    monkeypatch.setattr(attention.PackedBatch, "_of_path", forgets_the_prefix)
    assert not Engine(loaded, 4096).decoder.packs
    assert largest_difference(states_of(loaded, tiny_passes(), (2, LAYERS)), expected) <= TOLERANCE


def test_without_shared_prefixes_no_ask_goes_deeper_than_it_needs(llama: LoadedModel) -> None:
    passes = {"deep": (tiny_pass("A."), HiddenStates(4)), "shallow": (tiny_pass("B."), HiddenStates(1))}
    engine = Engine(llama, 4096, packed=False)
    list(engine.run({key: Request(pass_, ask, key) for key, (pass_, ask) in passes.items()}))
    lengths = [len(encode_pass(llama.tokenizer, pass_).ids) for pass_, _ in passes.values()]
    assert engine.work.layer_tokens[1] == sum(lengths) and engine.work.layer_tokens[4] == lengths[0]


def test_a_model_with_longrope_reads_what_it_was_trained_on() -> None:
    assert window_of(LlamaConfig(max_position_embeddings=64)) == 64
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 32}
    config = LlamaConfig(
        hidden_size=16,
        num_attention_heads=2,
        max_position_embeddings=64,
        rope_parameters={**rope, "short_factor": [1.0] * 4, "long_factor": [1.0] * 4},
    )
    assert window_of(config) == 32


def test_keys_and_values_are_released_after_use(llama: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[RequestPlan] = []
    honest = RequestPlan.__init__
    monkeypatch.setattr(RequestPlan, "__init__", lambda self, *given: (honest(self, *given), plans.append(self))[0])
    engine = Engine(llama, 64)
    running = engine.run({key: Request(pass_, HiddenStates(2), key) for key, pass_ in tiny_passes().items()})
    most = 0
    for _ in running:
        most = max(most, sum(len(node) for node in plans[0].kept))
    longest = max(len(encode_pass(llama.tokenizer, pass_).ids) for pass_ in tiny_passes().values())
    assert 0 < most <= longest + 64  # one path, and what the next batch has begun
    assert not plans[0].kept and not plans[0].results


def test_an_early_exit_leaves_the_model_as_it_was(llama: LoadedModel) -> None:
    before = reference(llama, tiny_pass(), tuple(range(LAYERS + 1)))
    hooks = hooks_of(llama)
    states_of(llama, tiny_passes(), (2,), "mlp")
    assert torch.equal(before, reference(llama, tiny_pass(), tuple(range(LAYERS + 1))))
    assert hooks_of(llama) == hooks


def hooks_of(loaded: LoadedModel) -> int:
    return sum(len(module._forward_hooks) for module in loaded.model.modules())


def test_no_passes_no_work(llama: LoadedModel) -> None:
    engine = Engine(llama, 100)
    assert list(engine.run({})) == []
    assert engine.work.forward_tokens == 0


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
    room = WINDOW - len(encode_pass(llama.tokenizer, tiny_pass(answer="")).ids)
    assert states_of(llama, {"full": tiny_pass("x" * room)}, (1,))["full"].shape[1] == room + 1
    with pytest.raises(AbstainError, match=f"^interaction over: {WINDOW + 1} tokens are more than the {WINDOW} that"):
        states_of(llama, {"full": tiny_pass("x" * room), "over": tiny_pass("x" * (room + 1))}, (1,))


def test_a_tokenizer_without_eos_is_told_so(llama: LoadedModel) -> None:
    loaded = LoadedModel(llama.ref, llama.model, byte_tokenizer(eos=False))
    with pytest.raises(AbstainError, match="no EOS token: choose a layout without an eos segment"):
        states_of(loaded, {"a": tiny_pass()}, (1,))


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


def real_passes() -> dict[str, Pass]:
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
    assert engine.decoder.packs
    with Calls(embedded) as calls:
        list(engine.run({key: Request(pass_, HiddenStates(16), key) for key, pass_ in real_passes().items()}))
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
    half = load(embedded.ref, torch.device("cpu"), torch.bfloat16)
    rounded = states_of(half, real_passes(), REAL_LAYERS)
    for key, exact in read_alone.items():
        assert rounded[key].dtype == torch.bfloat16
        assert float(relative_error(rounded[key].float(), exact).max()) <= ROUNDED
        cosines = torch.cosine_similarity(rounded[key].float(), exact, dim=-1)
        assert float(cosines.min()) >= 1 - ROUNDED**2  # 1 - e²/2 for an error e at right angles, twice that allowed
