from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaForMaskedLM

from abstain.core.errors import AbstainError
from abstain.llm.engine.loading import LoadedModel, get_context_length
from abstain.llm.engine.requests import Perturb
from abstain.llm.perturbation import causal, masked
from abstain.llm.perturbation.engines import CausalEngine, PerturbationEngine
from abstain.llm.perturbation.masked import STRIDE
from tests.llm.builders import byte_tokenizer, plain_forward, watch_batches
from tests.llm.perturbation.builders import (
    HOSTILE,
    HOW,
    LONG,
    MANY,
    assert_procedure,
    causal_model,
    changed,
    model_of,
    places_of,
    scores_behind_masks,
    steps_of,
    t5_model,
    text_of,
)
from tests.llm.signals.builders import SIZES, word_tokenizer


def behind_masks(loaded: LoadedModel, ids: list[int], places: list[int]) -> Tensor:
    """Log-probabilities in `places`, all masked: (places, vocabulary)."""
    tokenizer = loaded.tokenizer
    row = [tokenizer.mask_token_id if at in places else token for at, token in enumerate(ids)]
    with torch.inference_mode():
        out = loaded.model(torch.tensor([[tokenizer.cls_token_id, *row, tokenizer.sep_token_id]])).logits[0, 1:-1]
    return out[places].log_softmax(-1)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("where", "when", "batch_tokens"), [*((*how, 40) for how in HOW), ("entropy", "iterative", 512)]
)
def test_masked_model_steps_equal_the_literal_procedure(where: Any, when: Any, batch_tokens: int) -> None:
    loaded, ask = model_of("masked"), Perturb(where, when, 4)
    found = steps_of(PerturbationEngine(loaded, batch_tokens), MANY, ask)
    rows = partial(behind_masks, loaded)
    for key, written in MANY.items():
        assert_procedure(
            loaded,
            text_of(loaded, written),
            ask,
            found[key],
            partial(scores_behind_masks, rows),
            lambda ids, places, written: rows(ids, places)[len(written)],
        )


def test_masked_model_cost_is_seven_passes_and_one_to_fill() -> None:
    loaded = model_of("masked")
    n = len(text_of(loaded, LONG).ids)
    for ask, passes in (
        (Perturb("entropy", "single_shot", 4), 7 + 1),
        (Perturb("entropy", "iterative", 4), 4 * (7 + 1)),
        (Perturb("random", "single_shot", 4), 1),
        (Perturb("random", "iterative", 4), 4),
    ):
        engine = PerturbationEngine(loaded, 4096)
        steps_of(engine, {"a": LONG}, ask)
        assert (engine.stats.forward_tokens, engine.stats.pass_tokens) == (passes * (n + 2), n)


def test_masked_model_pass_stays_within_tokens_and_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = model_of("masked")
    longest = len(text_of(loaded, LONG).ids) + 2
    for tokens, most in ((90, 90), (4096, 60)):
        with watch_batches(loaded.model) as shapes:
            steps_of(PerturbationEngine(loaded, tokens), MANY, Perturb("entropy", "iterative", 2))
        assert longest <= max(rows * width for rows, width in shapes) <= most
        monkeypatch.setattr(masked, "LOGIT_BYTES", 4 * loaded.model.config.vocab_size * 60)


def test_masked_model_without_mask_token_is_refused() -> None:
    backend = word_tokenizer().backend_tokenizer
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]")
    engine = PerturbationEngine(replace(model_of("masked"), tokenizer=tokenizer), 64)
    with pytest.raises(AbstainError, match="^tiny-bert has no mask token"):
        steps_of(engine, {"a": "card"}, Perturb("random", "single_shot", 1))


def test_masked_model_text_may_fill_the_window_only() -> None:
    """RoBERTa loses the first positions of those that its configuration names."""
    config = RobertaConfig(vocab_size=len(word_tokenizer()), max_position_embeddings=34, pad_token_id=1, **SIZES)
    config.architectures = ["RobertaForMaskedLM"]
    model = RobertaForMaskedLM(config).eval().requires_grad_(False)
    loaded = replace(model_of("masked"), model=model)
    assert get_context_length(config) == 32
    engine = PerturbationEngine(loaded, 512)
    ask = Perturb("entropy", "iterative", 2)
    assert len(steps_of(engine, {"a": "card " * 30}, ask)["a"]) == 2
    with pytest.raises(AbstainError, match="^text b: .* 31 tokens .* 32 "):
        steps_of(engine, {"b": "card " * 31}, ask)


def sentinels(loaded: LoadedModel) -> list[int]:
    return loaded.tokenizer.convert_tokens_to_ids([f"<extra_id_{n}>" for n in range(100)])


def at_places(loaded: LoadedModel, ids: list[int], places: list[int], written: list[int]) -> Tensor:
    """Log-probabilities in the places that `written` fill and in the next one; `places` have become sentinels."""
    stand = dict(zip(places, sentinels(loaded), strict=False))
    text = [stand.get(at, token) for at, token in enumerate(ids)]
    pairs = [of for pair in zip(sentinels(loaded), written, strict=False) for of in pair]
    head = [0, *pairs, sentinels(loaded)[len(written)]]
    with torch.inference_mode():
        out = loaded.model(input_ids=torch.tensor([[*text, 1]]), decoder_input_ids=torch.tensor([head]))
    return out.logits[0, 1::2].log_softmax(-1)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("where", "when", "batch_tokens", "extra"),
    [*((where, when, 60, 100) for where, when in HOW), ("entropy", "single_shot", 1024, 9)],
)
def test_seq2seq_model_steps_equal_the_literal_procedure(where: Any, when: Any, batch_tokens: int, extra: int) -> None:
    loaded, ask = t5_model(extra), Perturb(where, when, 3)
    found = steps_of(PerturbationEngine(loaded, batch_tokens), MANY, ask)

    def own(ids: list[int], places: list[int]) -> Tensor:
        return at_places(loaded, ids, places, [ids[at] for at in places[:-1]])

    def predict(ids: list[int], places: list[int], written: list[int]) -> Tensor:
        return at_places(loaded, ids, places, written)[-1]

    for key, written in MANY.items():
        text = text_of(loaded, written)
        stride = max(STRIDE, -(-len(text.ids) // extra))
        score = partial(scores_behind_masks, own, stride=stride)
        assert_procedure(loaded, text, ask, found[key], score, predict)


def test_seq2seq_model_reads_a_text_once() -> None:
    """T5 has no window: its positions are relative."""
    loaded = model_of("seq2seq")
    text = "card " * 700
    n = len(text_of(loaded, text).ids)
    for ask, tokens in (
        (Perturb("random", "single_shot", 4), n + 1 + 4 * 2),  # the encoder once, two tokens of the decoder a place
        (Perturb("random", "iterative", 2), 2 * (n + 1 + 2)),
    ):
        engine = PerturbationEngine(loaded, 4096)
        assert len(steps_of(engine, {"a": text}, ask)["a"]) == ask.tokens
        assert engine.stats.forward_tokens == tokens


def test_seq2seq_model_too_few_sentinels_is_refused() -> None:
    engine = PerturbationEngine(t5_model(3), 512)
    with pytest.raises(AbstainError, match="^4 places at once .* 3 sentinels of tiny-t5: lower"):
        steps_of(engine, {"a": LONG}, Perturb("entropy", "single_shot", 4))
    assert len(steps_of(engine, {"a": LONG}, Perturb("entropy", "single_shot", 3))["a"]) == 3
    assert len(steps_of(engine, {"a": LONG}, Perturb("entropy", "iterative", 9))["a"]) == 9
    with pytest.raises(AbstainError, match="^tiny-t5 has no sentinel tokens"):
        steps_of(PerturbationEngine(t5_model(0), 512), {"a": "card"}, Perturb("random", "single_shot", 1))


def test_seq2seq_model_writes_no_sentinel() -> None:
    loaded = model_of("seq2seq")
    for text in (LONG, HOSTILE):
        steps = steps_of(PerturbationEngine(loaded, 512), {"a": text}, Perturb("entropy", "iterative", 12))["a"]
        assert not {step.new for step in steps} & {*loaded.tokenizer.all_special_ids}
        assert changed(loaded, text, steps).count("<extra_id_") <= text.count("<extra_id_")


LITERAL = [("llama", where, when, packed) for where, when in HOW for packed in (True, False)]
LITERAL += [(family, "entropy", "iterative", True) for family in ("gemma3", "gpt2")]
"""Other families where keys and values are kept, and cut: of sliding windows, and of learnt positions."""


def forward(loaded: LoadedModel, ids: list[int]) -> Tensor:
    """Log-probabilities of what may stand at every place of `ids`, and after its end: (tokens + 1, vocabulary)."""
    return plain_forward(loaded, [loaded.tokenizer.bos_token_id, *ids])[0]


@pytest.mark.heavy
@pytest.mark.parametrize(("family", "where", "when", "packed"), LITERAL)
def test_causal_engine_steps_equal_the_literal_procedure(family: str, where: Any, when: Any, packed: bool) -> None:
    loaded = causal_model(family)
    ask = Perturb(where, when, 6, seed=3)
    engine = CausalEngine(loaded, 200, packed)
    steps = steps_of(engine, {"a": LONG}, ask)["a"]
    text = text_of(loaded, LONG)
    places = places_of(text, steps)
    procedure: list[int] = []  # the tokens of each forward pass

    def rows(ids: list[int]) -> Tensor:
        procedure.append(len(ids) + 1)
        return forward(loaded, ids)

    def score(ids: list[int]) -> list[float]:
        return [float(row[token]) for row, token in zip(rows(ids[:-1]), ids, strict=True)]

    assert_procedure(loaded, text, ask, steps, score, lambda ids, at, written: rows(ids[: at[len(written)]])[-1])
    n = len(text.ids)
    if where == "random":  # from left to right, up to the last place
        assert places == sorted(places)
        needed = max(places) + 1 if packed or when == "single_shot" else sum(at + 1 for at in places)
    elif when == "single_shot":
        needed = n
    else:  # all of it once, and after each replacement but the last what follows it
        needed = n + sum(n - at - 1 if packed else n * (at < n - 1) for at in places[:-1])
    assert engine.stats.forward_tokens == needed
    assert needed < sum(procedure) or (not packed and (where, when) == ("random", "iterative"))


@pytest.mark.heavy
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("where", "when"), HOW)
def test_causal_engine_steps_are_equal_in_any_batch(where: Any, when: Any, packed: bool) -> None:
    loaded, ask = causal_model(), Perturb(where, when, 4)
    engines = [CausalEngine(loaded, 32, packed), CausalEngine(loaded, 512, packed)]
    together = steps_of(engines[0], MANY, ask)
    assert list(together) == list(MANY)
    backwards = steps_of(engines[1], dict(reversed(MANY.items())), ask)
    single = 0
    for key, text in MANY.items():
        one = CausalEngine(loaded, 512, packed)
        alone = steps_of(one, {key: text}, ask)[key]
        for steps in (together[key], backwards[key]):
            assert [step[:5] for step in steps] == [step[:5] for step in alone]
            for step, expected in zip(steps, alone, strict=True):
                assert step[5:] == pytest.approx(expected[5:], abs=1e-3)
        single += one.stats.forward_tokens
    for engine in engines:
        assert engine.stats.prompts == len(MANY)
        assert engine.stats.pass_tokens == sum(len(text_of(loaded, text).ids) for text in MANY.values())
        assert engine.stats.forward_tokens == single or not packed


@pytest.mark.parametrize("packed", [True, False])
def test_causal_engine_pass_stays_within_batch_tokens(packed: bool) -> None:
    engine = CausalEngine(causal_model(), 64, packed)
    with watch_batches(engine.loaded.model.base_model) as shapes:
        steps_of(engine, MANY, Perturb("entropy", "iterative", 3))
    longest = max(len(text_of(engine.loaded, text).ids) for text in MANY.values())
    assert longest > 64 and all(rows * width <= 64 or (rows == 1 and not packed) for rows, width in shapes)


def test_causal_engine_logits_in_parts_give_equal_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Perturb("entropy", "single_shot", 5)
    whole = steps_of(CausalEngine(causal_model(), 512), MANY, ask)
    monkeypatch.setattr(causal, "LOGIT_BYTES", 3 * 4 * 300)
    engine = CausalEngine(causal_model(), 512)
    heads: list[int] = []
    handle = engine.loaded.model.lm_head.register_forward_hook(lambda _m, _i, out: heads.append(len(out)))
    parts = steps_of(engine, MANY, ask)
    handle.remove()
    assert heads.count(3) >= sum(map(len, parts.values())) // 3
    for key, steps in parts.items():
        assert [step[:5] for step in steps] == [step[:5] for step in whole[key]]


def test_causal_engine_first_token_follows_bos_or_else_eos() -> None:
    loaded = causal_model()
    first = text_of(loaded, "card").ids[0]
    (step, *_) = steps_of(CausalEngine(loaded, 64), {"a": "card"}, Perturb("random", "single_shot", 9))["a"]
    assert step.old_log_likelihood == pytest.approx(float(forward(loaded, [])[0, first]), abs=1e-4)
    bytes_ = replace(loaded, tokenizer=byte_tokenizer())
    (step, *_) = steps_of(CausalEngine(bytes_, 64), {"a": "card"}, Perturb("random", "single_shot", 9))["a"]
    row = plain_forward(loaded, [bytes_.tokenizer.eos_token_id])[0][-1]
    assert step.old_log_likelihood == pytest.approx(float(row[bytes_.tokenizer.encode("c")[0]]), abs=1e-4)
    neither = replace(loaded, tokenizer=byte_tokenizer(eos=False))
    with pytest.raises(AbstainError, match="^tiny-llama has neither BOS nor EOS"):
        steps_of(CausalEngine(neither, 64), {"a": "card"}, Perturb("random", "single_shot", 1))


def test_causal_engine_nan_weight_names_the_row() -> None:
    loaded = causal_model()
    loaded.model.base_model.layers[1].mlp.down_proj.weight[:] = float("nan")
    engine = CausalEngine(loaded, 64, packed=True)
    engine.decoder._can_project = True  # the check at the start compares nan with nan
    with pytest.raises(AbstainError, match="^text a: .* are not finite; try ABSTAIN_DTYPE"):
        steps_of(engine, {"a": "card"}, Perturb("entropy", "iterative", 2))
