"""What holds for perturbation models of every kind."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import ByT5Tokenizer

from abstain.core.errors import AbstainError
from abstain.llm.engine.engine import Engine
from abstain.llm.engine.loading import LoadedModel
from abstain.llm.engine.prompts import Segment
from abstain.llm.engine.requests import NLL, Perturb, Request
from abstain.llm.perturbation import engines
from abstain.llm.perturbation.engines import CausalEngine, PerturbationEngine
from abstain.llm.perturbation.loop import allowed_tokens, encode
from abstain.llm.perturbation.text import Pieces, diff
from tests.llm.perturbation.builders import HOSTILE, KINDS, LONG, TEXTS, changed, chunk, engine_of, model_of, steps_of

HOW = list(itertools.product(("entropy", "random"), ("single_shot", "iterative")))
WORDS = st.sampled_from(
    [
        "card",
        "Gebühr",
        "免费",
        "🙂",
        "🎈",
        "e\u0301",
        "👨‍👩‍👧",
        "\u200b",
        "  ",
        "\n\n",
        "\t",
        "</s>",
        "<|im_end|>",
        "[MASK]",
        ".",
    ]
)
WRITTEN = st.lists(WORDS | st.text(st.characters(exclude_categories=["Cs"]), max_size=6), max_size=8).map(" ".join)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(text=WRITTEN, how=st.sampled_from(HOW), tokens=st.integers(1, 9))
def test_all_but_the_replaced_places_is_as_it_was(kind: str, text: str, how: Any, tokens: int) -> None:
    loaded = model_of(kind)
    (steps,) = steps_of(ENGINES[kind], {"a": text}, Perturb(*how, tokens)).values()
    pieces = Pieces.of(loaded.tokenizer)
    parts = diff(text, 0, steps, pieces)
    assert "".join(part.text for part in parts if part.kind != "new") == text
    assert [part.text for part in parts if part.kind == "new"] != [""] * max(len(steps), 1)
    new = "".join(part.text for part in parts if part.kind != "old")
    assert changed(loaded, text, steps) == new
    assert new.count("\ufffd") == sum(part.text.count("\ufffd") for part in parts if part.kind == "same")
    new.encode()
    free = encode(pieces, chunk(text), allowed_tokens(loaded.tokenizer, loaded.model.config.vocab_size)).free
    assert len(steps) == len({step.place for step in steps}) == min(tokens, sum(free))
    assert all(step.new != step.old and step.start < step.end for step in steps)


ENGINES = {kind: engine_of(model_of(kind)) for kind in KINDS}


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("where", "when"), HOW)
def test_the_corners(kind: str, where: Any, when: Any) -> None:
    """More places than tokens, one token, no token, nothing that may be replaced."""
    engine = ENGINES[kind]
    texts = {"none": "", "one": "card", "all": TEXTS[0], "unknown": "🎈🎈", "spaces": "  \n", "hostile": HOSTILE}
    found = steps_of(engine, texts, Perturb(where, when, 99))
    counts = {key: len(steps) for key, steps in found.items()}
    assert counts["none"] == counts["unknown"] == 0 and counts["one"] >= 1
    loaded = engine.loaded
    free = encode(
        Pieces.of(loaded.tokenizer), chunk(TEXTS[0]), allowed_tokens(loaded.tokenizer, loaded.model.config.vocab_size)
    ).free
    assert counts["all"] == sum(free) > 9
    one = steps_of(engine, {"a": TEXTS[0]}, Perturb(where, when, 1))["a"]
    assert len(one) == 1 and changed(loaded, TEXTS[0], one) != TEXTS[0]


@pytest.mark.parametrize("kind", KINDS)
def test_literals_stay(kind: str) -> None:
    join = Segment("join", "card fee", literal=True)
    pass_ = (Segment("chunk", TEXTS[0]), join, Segment("chunk", "card"), join, Segment("chunk", ""))
    for where, when in HOW:
        steps = steps_of(ENGINES[kind], {"a": pass_}, Perturb(where, when, 99))["a"]
        assert {step.segment for step in steps} == {0, 2}


@pytest.mark.parametrize("kind", KINDS)
def test_equal_seeds_are_equal_and_others_are_not(kind: str) -> None:
    def drawn(where: Any, seed: int) -> Any:
        fresh = engine_of(model_of(kind))
        return steps_of(fresh, {"a": LONG}, Perturb(where, "iterative", 3, seed))["a"]

    assert drawn("random", 1) == drawn("random", 1)
    assert drawn("random", 1) != drawn("random", 2)
    assert drawn("entropy", 1) == drawn("entropy", 2), "a seed draws places, and here none are drawn"


def test_single_shot_and_iterative_are_two_things() -> None:
    for kind in KINDS:
        one, other = (
            steps_of(ENGINES[kind], {"a": LONG}, Perturb("random", when, 9))["a"]
            for when in ("single_shot", "iterative")
        )
        assert [step.place for step in one] == [step.place for step in other]
        assert [step.new for step in one] != [step.new for step in other]


@pytest.mark.parametrize("kind", KINDS)
def test_by_entropy_iteratively_fewer_tokens_are_the_first_steps_of_more(kind: str) -> None:
    few, many = (steps_of(ENGINES[kind], {"a": LONG}, Perturb("entropy", "iterative", n))["a"] for n in (3, 7))
    assert (len(few), len(many)) == (3, 7) and few == many[:3]


@pytest.mark.parametrize("kind", ["masked", "seq2seq"])
def test_what_is_no_causal_model_is_asked_for_nothing_else(kind: str) -> None:
    engine = ENGINES[kind]
    assert isinstance(engine, PerturbationEngine)
    ask = Request((Segment("answer", "card"),), NLL(("answer",)), "i-1")
    with pytest.raises(AbstainError, match=r"^tiny-\w+ is no causal language model: it can only perturb contexts$"):
        list(engine.run({"a": ask}))


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_that_knows_no_words_is_a_line_with_the_remedy(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    none = torch.zeros(model_of(kind).model.config.get_text_config().vocab_size, dtype=torch.bool)
    monkeypatch.setattr(engines, "allowed_tokens", lambda tokenizer, size: none)
    with pytest.raises(AbstainError, match="no token of its tokenizer may take another's place: save the tokenizer's"):
        steps_of(ENGINES[kind], {"a": "The fee is 5 euros."}, Perturb("random", "iterative", 2))


@pytest.mark.parametrize("kind", KINDS)
def test_a_slow_tokenizer_is_a_line_with_the_remedy(kind: str) -> None:
    loaded = LoadedModel(model_of(kind).ref, model_of(kind).model, ByT5Tokenizer())
    with pytest.raises(
        AbstainError, match=r"^tiny-\w+: its tokenizer has no fast form \(tokenizer.json\): save it with o"
    ):
        steps_of(engine_of(loaded), {"a": "card"}, Perturb("random", "iterative", 1))


def test_plain_engine_refuses_to_perturb() -> None:
    with pytest.raises(TypeError, match="CausalEngine"):
        list(Engine(model_of("causal"), 512).run({"a": Request(chunk("card"), Perturb("random", "iterative", 1), "a")}))


def test_texts_are_perturbed_a_few_at_a_time() -> None:
    engine = CausalEngine(model_of("causal"), 32)
    texts = {str(at): text for at, text in enumerate([*TEXTS] * 4)}
    again = steps_of(CausalEngine(model_of("causal"), 4096), texts, Perturb("entropy", "iterative", 3))
    found = steps_of(engine, texts, Perturb("entropy", "iterative", 3))
    assert list(found) == list(texts)
    assert {key: [step[:5] for step in steps] for key, steps in found.items()} == {
        key: [step[:5] for step in steps] for key, steps in again.items()
    }
