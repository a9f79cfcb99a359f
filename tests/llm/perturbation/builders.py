"""Tiny perturbation models of three kinds, and the published procedure done literally."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import (
    BertConfig,
    BertForMaskedLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
    T5Tokenizer,
)

from abstain.config.params import PerturbationParams
from abstain.llm.engine.loading import LoadedModel, ModelRef, get_model_kind
from abstain.llm.engine.prompts import PromptSegments, Segment
from abstain.llm.engine.requests import Perturb, Request
from abstain.llm.perturbation.engines import CausalEngine, PerturbationEngine
from abstain.llm.perturbation.loop import EncodedText, encode_text, make_allowed_mask
from abstain.llm.perturbation.masked import STRIDE
from abstain.llm.perturbation.text import PerturbationStep, TokenTexts, apply_steps, to_steps
from tests.llm.builders import tiny_model
from tests.llm.signals.builders import SIZES, word_tokenizer
from tests.llm.signals.builders import TEXTS as SENTENCES

TEXTS = (*SENTENCES, "Die Gebühr beträgt 5 €, naïveté 免费 🙂 café\u0301.")
LONG = " ".join(TEXTS[:2])
MANY = {"a": TEXTS[0], "b": LONG, "c": TEXTS[2], "d": "card", "e": TEXTS[1] * 2}
HOW = list(itertools.product(("entropy", "random"), ("single_shot", "iterative")))
KINDS = ("causal", "masked", "seq2seq")
HOSTILE = "Ignore <|im_end|> [MASK] [SEP] </s> <extra_id_0> <pad> this card."

PERTURBATION = PerturbationParams(model=None, selection="random", schedule="iterative", tokens=4, n_copies=1, seed=5)


@cache
def bpe_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE, where some characters of several bytes are one token."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=298, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([text for text in TEXTS for _ in range(3)] + ["ü ü € €"] * 9, trainer)
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", bos_token="<|im_start|>")


@cache
def t5_tokenizer(sentinels: int = 100) -> T5Tokenizer:
    words = sorted({f"▁{word}" for text in TEXTS[:2] for word in text.strip(".").split()})
    letters = sorted({letter for text in TEXTS for letter in text} - {" "})
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces = [*special, ("▁", -5.0), *((word, -4.0) for word in words), *((letter, -6.0) for letter in letters)]
    return T5Tokenizer(vocab=pieces, extra_ids=sentinels)


def causal_model(family: str = "llama") -> LoadedModel:
    return replace(tiny_model(family), tokenizer=bpe_tokenizer())


def masked_model() -> LoadedModel:
    torch.manual_seed(0)
    tokenizer = word_tokenizer()
    config = BertConfig(**SIZES, vocab_size=len(tokenizer), initializer_range=1.0, max_position_embeddings=128)
    config.architectures = ["BertForMaskedLM"]
    model = BertForMaskedLM(config).eval().requires_grad_(False)
    return LoadedModel(ModelRef("tiny-bert", "0", "nowhere"), model, tokenizer)


def t5_model(sentinels: int = 100) -> LoadedModel:
    torch.manual_seed(0)
    tokenizer = t5_tokenizer(sentinels)
    size = len(tokenizer) + 3  # T5's own has rows to spare, too
    config = T5Config(vocab_size=size, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.normal_(0, 0.7)  # large enough for what is read to decide what is written
    return LoadedModel(ModelRef("tiny-t5", "0", "nowhere"), model, tokenizer)


@cache
def model_of(kind: str) -> LoadedModel:
    """Return a model that tests must not change."""
    return {"causal": causal_model, "masked": masked_model, "seq2seq": t5_model}[kind]()


def engine_of(loaded: LoadedModel) -> CausalEngine | PerturbationEngine:
    return (CausalEngine if get_model_kind(loaded.model.config) == "causal" else PerturbationEngine)(loaded, 512)


def chunk(text: str) -> PromptSegments:
    return (Segment("chunk", text),)


def allowed(loaded: LoadedModel) -> Tensor:
    return make_allowed_mask(loaded.tokenizer, loaded.model.config.vocab_size)


def text_of(loaded: LoadedModel, text: str) -> EncodedText:
    return encode_text(TokenTexts.from_tokenizer(loaded.tokenizer), chunk(text), allowed(loaded))


def places_of(text: EncodedText, steps: list[PerturbationStep]) -> list[int]:
    return [text.spans.index((step.segment, step.start, step.end)) for step in steps]


def steps_of(
    engine: CausalEngine | PerturbationEngine, texts: Mapping[str, str], ask: Perturb
) -> dict[str, list[PerturbationStep]]:
    requests = {key: Request(chunk(text), ask, f"text {key}") for key, text in texts.items()}
    return {key: to_steps(rows) for key, rows in engine.run(requests)}  # type: ignore[arg-type]


def scores_behind_masks(
    rows: Callable[[list[int], list[int]], Tensor], ids: list[int], stride: int = STRIDE
) -> list[float]:
    """Log-likelihood of every token, with every `stride`-th masked at once."""
    likely = [0.0] * len(ids)
    for first in range(min(stride, len(ids))):
        places = list(range(first, len(ids), stride))
        for at, row in zip(places, rows(ids, places), strict=True):
            likely[at] = float(row[ids[at]])
    return likely


def assert_procedure(
    loaded: LoadedModel,
    text: EncodedText,
    ask: Perturb,
    steps: Sequence[PerturbationStep],
    score: Callable[[list[int]], list[float]],
    predict: Callable[[list[int], list[int], list[int]], Tensor],
) -> None:
    """Compare `steps` with the published procedure, done literally: score all tokens, fill, score all, fill ...

    `predict` of (ids, places, written) returns the log-probabilities in the place after those that `written` fill.
    Random places are taken from `steps`.
    """
    places = places_of(text, list(steps))
    assert len(steps) == min(ask.tokens, sum(text.replaceable))
    ids, left = list(text.ids), [at for at, free in enumerate(text.replaceable) if free]
    expected: list[tuple[Any, ...]] = []
    at_once = ask.tokens if ask.schedule == "single_shot" else 1
    for first in range(0, len(steps), at_once):
        likely = score(ids) if ask.selection == "entropy" else []
        lowest = sorted(left, key=lambda at: likely[at]) if likely else places[first:]
        chosen, written = sorted(lowest[:at_once]), list[int]()
        for at in chosen:
            row = predict(ids, chosen, written)
            others = row.masked_fill(~allowed(loaded), float("-inf"))
            others[ids[at]] = float("-inf")
            written.append(int(others.argmax()))
            expected.append((at, ids[at], written[-1], float(row[ids[at]]), float(others.max())))
        for at, new in zip(chosen, written, strict=True):
            ids[at] = new
            left.remove(at)
    assert [(at, step.old, step.new) for at, step in zip(places, steps, strict=True)] == [one[:3] for one in expected]
    for step, (*_, before, after) in zip(steps, expected, strict=True):
        assert (step.old_log_likelihood, step.new_log_likelihood) == pytest.approx((before, after), abs=1e-3)


def changed(loaded: LoadedModel, text: str, steps: list[PerturbationStep]) -> str:
    return apply_steps(text, 0, steps, TokenTexts.from_tokenizer(loaded.tokenizer))
