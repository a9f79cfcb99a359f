from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from abstain.core.errors import AbstainError
from abstain.llm.engine.loading import LoadedModel
from abstain.llm.engine.prompts import Segment
from abstain.llm.engine.requests import NLL, Perturb, Request
from abstain.llm.perturbation import causal
from abstain.llm.perturbation.causal import CausalProposer, get_best_alternatives
from abstain.llm.perturbation.engines import CausalEngine
from tests.llm.builders import byte_tokenizer, plain_forward
from tests.llm.perturbation.builders import (
    HOW,
    LONG,
    MANY,
    TEXTS,
    assert_procedure,
    bpe_tokenizer,
    causal_model,
    chunk,
    places_of,
    steps_of,
    text_of,
)

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
    seen: list[tuple[int, int]] = []
    handle = engine.loaded.model.base_model.register_forward_pre_hook(
        lambda _module, _args, named: seen.append(tuple(named["input_ids"].shape)), with_kwargs=True
    )
    steps_of(engine, MANY, Perturb("entropy", "iterative", 3))
    handle.remove()
    longest = max(len(text_of(engine.loaded, text).ids) for text in MANY.values())
    assert longest > 64 and all(rows * width <= 64 or (rows == 1 and not packed) for rows, width in seen)


def test_causal_proposer_keeps_only_valid_keys_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[tuple[int, int]] = []
    replace = CausalProposer.replace

    def watch(self: CausalProposer, *given: Any) -> None:
        replace(self, *given)
        own = sum(
            k.untyped_storage().nbytes() // (k.shape[0] * k.shape[2] * 4)
            for kv in self._kv_cache.values()
            for k, _ in kv[:1]
        )
        kept.append((own, sum(row.n_read for row in self._rows)))

    monkeypatch.setattr(CausalProposer, "replace", watch)
    steps_of(CausalEngine(causal_model(), 512), {"a": LONG, "b": TEXTS[1]}, Perturb("entropy", "iterative", 5))
    assert len(kept) == 10 and all(tokens == known for tokens, known in kept)


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
    assert {key: [step[:5] for step in steps] for key, steps in parts.items()} == {
        key: [step[:5] for step in steps] for key, steps in whole.items()
    }


def test_best_alternatives_are_allowed_and_different() -> None:
    logits = torch.tensor([[9.0, 5.0, 4.0, 3.0], [1.0, 2.0, 0.0, 0.0]])
    fills = get_best_alternatives(logits, torch.tensor([1, 0]), torch.tensor([False, True, True, True]))
    assert [fill.new for fill in fills] == [2, 1]
    assert [fill.old_log_likelihood for fill in fills] == pytest.approx([-4.0272, -1.4938], abs=1e-4)
    assert [fill.new_log_likelihood for fill in fills] == pytest.approx([-5.0272, -0.4938], abs=1e-4)


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


def test_causal_engine_runs_other_operations_too() -> None:
    requests = {
        "p": Request(chunk(LONG), Perturb("entropy", "single_shot", 2), "p"),
        "n": Request((Segment("answer", LONG),), NLL(("answer",)), "n"),
        "q": Request(chunk(TEXTS[0]), Perturb("random", "iterative", 3), "q"),
    }
    found = dict(CausalEngine(causal_model(), 512).run(requests))
    assert {key: tuple(value.shape) for key, value in found.items() if isinstance(value, Tensor)} == {
        "p": (2, 7),
        "q": (3, 7),
        "n": (len(bpe_tokenizer().encode(LONG)), 2),
    }
