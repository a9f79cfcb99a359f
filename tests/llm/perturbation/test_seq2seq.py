from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from abstain.core.errors import AbstainError
from abstain.llm.engine.loading import LoadedModel
from abstain.llm.engine.requests import Perturb
from abstain.llm.perturbation.engines import PerturbationEngine
from abstain.llm.perturbation.masked import STRIDE
from tests.llm.perturbation.builders import (
    HOSTILE,
    HOW,
    LONG,
    MANY,
    assert_procedure,
    changed,
    model_of,
    scores_behind_masks,
    steps_of,
    t5_model,
    text_of,
)


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


def test_seq2seq_model_without_sentinels_is_refused() -> None:
    with pytest.raises(AbstainError, match="^tiny-t5 has no sentinel tokens"):
        steps_of(PerturbationEngine(t5_model(0), 512), {"a": "card"}, Perturb("random", "single_shot", 1))


def test_seq2seq_model_writes_no_sentinel() -> None:
    loaded = model_of("seq2seq")
    for text in (LONG, HOSTILE):
        steps = steps_of(PerturbationEngine(loaded, 512), {"a": text}, Perturb("entropy", "iterative", 12))["a"]
        assert not {step.new for step in steps} & {*loaded.tokenizer.all_special_ids}
        assert changed(loaded, text, steps).count("<extra_id_") <= text.count("<extra_id_")
