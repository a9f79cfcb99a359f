from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from abstain.errors import AbstainError
from abstain.llm.engine import Engine, Site, States
from abstain.llm.layout import Pass, load_layout
from abstain.llm.loading import LoadedModel, load
from abstain.llm.tokens import encode_pass

from .builders import LAYERS, WIDTH, WINDOW, byte_tokenizer, tiny_model, tiny_pass, tiny_passes

FAMILIES = ["llama", "qwen2", "gemma3", "gpt2", "opt"]
TOLERANCE = 1e-4


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
) -> dict[str, Tensor]:
    return dict(Engine(loaded, tokens).states(passes, States(layers, site)))


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
    ask = States((2,), segments=("question", "turn"))
    (_, states), *_ = Engine(llama, 4096).states({"a": pass_}, ask)
    with torch.inference_mode():
        whole = llama.model(input_ids=torch.tensor([encoded.ids]), output_hidden_states=True).hidden_states[2][0]
    torch.testing.assert_close(states[0], whole[encoded.spans["question"][0] : encoded.spans["turn"][1]])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_has_the_same_states_alone_in_any_batch_and_in_any_order(family: str) -> None:
    loaded, passes, layers = shared_model(family), tiny_passes(), (2, LAYERS)
    alone = states_of(loaded, passes, layers, tokens=1)
    backwards = dict(reversed(passes.items()))
    for tokens in (200, 700, 10_000):
        assert largest_difference(alone, states_of(loaded, backwards, layers, tokens=tokens)) <= TOLERANCE
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
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_nothing_above_the_deepest_layer_is_computed(
    family: str, layers: tuple[int, ...], site: Site, deepest: int
) -> None:
    loaded = shared_model(family)
    with Calls(loaded) as calls:
        states_of(loaded, tiny_passes(), layers, site, tokens=600)
    assert len(calls.shapes) > 1
    assert calls.blocks == {layer: len(calls.shapes) for layer in range(1, deepest + 1)}
    assert calls.head == 0


@pytest.mark.parametrize("tokens", [1, 300, 700, 10_000])
def test_work_is_counted_and_a_batch_stays_within_its_tokens(llama: LoadedModel, tokens: int) -> None:
    engine = Engine(llama, tokens)
    lengths = {key: len(encode_pass(llama.tokenizer, pass_).ids) for key, pass_ in tiny_passes().items()}
    with Calls(llama) as calls:
        keys = [key for key, _ in engine.states(tiny_passes(), States((1, 3)))]
    assert [lengths[key] for key in keys] == sorted(lengths.values(), reverse=True)
    assert all(rows == 1 or rows * longest <= tokens for rows, longest in calls.shapes)
    padded = sum(rows * longest for rows, longest in calls.shapes)
    assert (engine.work.passes, engine.work.tokens) == (len(lengths), sum(lengths.values()))
    assert (engine.work.padded_tokens, engine.work.token_layers) == (padded, 3 * padded)


def test_batches_are_as_few_as_their_bound_allows(llama: LoadedModel) -> None:
    pass_ = tiny_pass()
    length = len(encode_pass(llama.tokenizer, pass_).ids)
    with Calls(llama) as calls:
        states_of(llama, {f"i-{n}": pass_ for n in range(7)}, (1,), tokens=3 * length)
    assert calls.shapes == [(3, length), (3, length), (1, length)]


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
    assert list(engine.states({}, States((1,)))) == []
    assert engine.work.padded_tokens == 0


def test_a_weight_that_is_nan_names_the_interaction() -> None:
    loaded = tiny_model()
    blocks_of(loaded)[2].mlp.down_proj.weight.fill_(float("nan"))
    assert states_of(loaded, {"i-17": tiny_pass()}, (2,))
    with pytest.raises(AbstainError, match=r"interaction i-17: .* layer \(3,\) are not finite; try ABSTAIN_DTYPE"):
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
        AbstainError, match=f"^layer {layer} asked for, but tiny-llama has layers 1 to {LAYERS}: set llm"
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


def real_passes() -> dict[str, Pass]:
    layout = load_layout("rag-chatml-v1")
    return {key: layout.render(*texts) for key, texts in REAL.items()}


def relative(one: Tensor, other: Tensor) -> Tensor:
    """Per layer and token, the norm of the difference over the norm: the stream's scale grows with depth."""
    return (one - other).norm(dim=-1) / other.norm(dim=-1)


@pytest.mark.slow
def test_embedded_model_equals_a_plain_forward(embedded: LoadedModel) -> None:
    layers = (1, 16, 30)
    with Calls(embedded) as calls:
        states = states_of(embedded, real_passes(), layers, tokens=2048)
    assert calls.head == 0
    for key, pass_ in real_passes().items():
        expected = reference(embedded, pass_, layers)
        assert float((states[key] - expected).abs().max()) <= TOLERANCE * float(expected.abs().max())
        assert float(relative(states[key], expected).max()) <= TOLERANCE


@pytest.mark.slow
def test_embedded_model_gives_a_row_the_same_states_in_any_batch(embedded: LoadedModel) -> None:
    layers = (1, 16, 30)
    alone = states_of(embedded, real_passes(), layers, tokens=1)
    for tokens in (500, 4096):
        together = states_of(embedded, dict(reversed(real_passes().items())), layers, tokens=tokens)
        assert max(float(relative(together[key], alone[key]).max()) for key in alone) <= TOLERANCE


@pytest.mark.slow
def test_embedded_model_in_bfloat16_points_where_float32_does(embedded: LoadedModel) -> None:
    half = load(embedded.ref, torch.device("cpu"), torch.bfloat16)
    layers = (1, 16, 30)
    exact, rounded = (states_of(loaded, real_passes(), layers) for loaded in (embedded, half))
    cosines = torch.cat([torch.cosine_similarity(exact[k], rounded[k].float(), dim=-1) for k in exact], dim=1)
    print(cosines.min(dim=1), cosines.mean(dim=1))
