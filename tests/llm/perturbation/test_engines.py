from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import ByT5Tokenizer

from abstain.core.errors import AbstainError
from abstain.llm.engine.engine import Engine
from abstain.llm.engine.prompts import Segment
from abstain.llm.engine.requests import Perturb, Request
from abstain.llm.perturbation import engines
from abstain.llm.perturbation.text import TokenTexts, make_diff
from tests.llm.perturbation.builders import (
    HOW,
    KINDS,
    LONG,
    TEXTS,
    changed,
    chunk,
    engine_of,
    model_of,
    steps_of,
    text_of,
)

SPECIAL = ["</s>", "<|im_end|>", "[MASK]", ".", "  ", "\n\n", "\t"]
WORDS = st.sampled_from(["card", "Gebühr", "免费", "🙂", "🎈", "é", "👨\u200d👩\u200d👧", "\u200b", *SPECIAL])
WRITTEN = st.lists(WORDS | st.text(st.characters(exclude_categories=["Cs"]), max_size=6), max_size=8).map(" ".join)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(text=WRITTEN, how=st.sampled_from(HOW), tokens=st.integers(1, 9))
def test_engine_replaces_its_places_only(kind: str, text: str, how: Any, tokens: int) -> None:
    loaded = model_of(kind)
    (steps,) = steps_of(ENGINES[kind], {"a": text}, Perturb(*how, tokens)).values()
    parts = make_diff(text, 0, steps, TokenTexts.from_tokenizer(loaded.tokenizer))
    assert "".join(part.text for part in parts if part.kind != "new") == text
    assert [part.text for part in parts if part.kind == "new"] != [""] * max(len(steps), 1)
    new = "".join(part.text for part in parts if part.kind != "old")
    assert changed(loaded, text, steps) == new
    assert new.count("\ufffd") == sum(part.text.count("\ufffd") for part in parts if part.kind == "same")
    assert len(steps) == len({step.place for step in steps}) == min(tokens, sum(text_of(loaded, text).replaceable))
    assert all(step.new != step.old and step.start < step.end for step in steps)


ENGINES = {kind: engine_of(model_of(kind)) for kind in KINDS}


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("where", "when"), HOW)
def test_engine_more_places_than_tokens_or_none(kind: str, where: Any, when: Any) -> None:
    """More places than tokens, one token, no token, nothing that may be replaced."""
    engine = ENGINES[kind]
    texts = {"none": "", "one": "card", "all": TEXTS[0], "unknown": "🎈🎈", "spaces": "  \n"}
    found = steps_of(engine, texts, Perturb(where, when, 99))
    counts = {key: len(steps) for key, steps in found.items()}
    assert counts["none"] == counts["unknown"] == 0 and counts["one"] >= 1
    assert counts["all"] == sum(text_of(engine.loaded, TEXTS[0]).replaceable) > 9


@pytest.mark.parametrize("kind", KINDS)
def test_engine_keeps_literals(kind: str) -> None:
    join = Segment("join", "card fee", literal=True)
    pass_ = (Segment("chunk", TEXTS[0]), join, Segment("chunk", "card"), join, Segment("chunk", ""))
    for where in ("entropy", "random"):
        steps = steps_of(ENGINES[kind], {"a": pass_}, Perturb(where, "single_shot", 99))["a"]
        assert {step.segment for step in steps} == {0, 2}


@pytest.mark.parametrize("kind", KINDS)
def test_engine_places_depend_on_the_seed(kind: str) -> None:
    def drawn(where: Any, seed: int, tokens: int = 3, when: Any = "iterative") -> Any:
        fresh = engine_of(model_of(kind))
        return steps_of(fresh, {"a": LONG}, Perturb(where, when, tokens, seed))["a"]

    random, other, by_entropy = drawn("random", 1, 9), drawn("random", 2, 9), drawn("entropy", 1)
    assert random == drawn("random", 1, 9) and [step.place for step in random] != [step.place for step in other]
    assert by_entropy == drawn("entropy", 2), "a seed draws places, and here none are drawn"
    assert by_entropy == drawn("entropy", 1, 7)[:3], "fewer tokens are the first steps of more"
    at_once = drawn("random", 1, 9, "single_shot")
    assert [step.place for step in at_once] == [step.place for step in random]
    assert [step.new for step in at_once] != [step.new for step in random], "in a text that was changed"


def test_engine_unfit_tokenizer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = model_of("masked")
    slow = engine_of(replace(loaded, tokenizer=ByT5Tokenizer()))
    with pytest.raises(AbstainError, match="^tiny-bert: its tokenizer has no fast form"):
        steps_of(slow, {"a": "card"}, Perturb("random", "iterative", 1))
    none = torch.zeros(loaded.model.config.vocab_size, dtype=torch.bool)
    monkeypatch.setattr(engines, "make_allowed_mask", lambda tokenizer, size: none)
    with pytest.raises(AbstainError, match="no token of its tokenizer may take another's place"):
        steps_of(ENGINES["masked"], {"a": "card"}, Perturb("random", "iterative", 2))


def test_plain_engine_refuses_to_perturb() -> None:
    with pytest.raises(TypeError, match="CausalEngine"):
        list(Engine(model_of("causal"), 512).run({"a": Request(chunk("card"), Perturb("random", "iterative", 1), "a")}))
