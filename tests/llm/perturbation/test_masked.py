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
from abstain.llm.perturbation import masked
from abstain.llm.perturbation.engines import PerturbationEngine
from tests.llm.perturbation.builders import (
    HOW,
    LONG,
    MANY,
    assert_procedure,
    model_of,
    scores_behind_masks,
    steps_of,
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
    seen: list[int] = []
    handle = loaded.model.register_forward_pre_hook(
        lambda _module, _args, named: seen.append(named["input_ids"].numel()), with_kwargs=True
    )
    steps_of(PerturbationEngine(loaded, 90), MANY, Perturb("entropy", "iterative", 2))
    longest = len(text_of(loaded, LONG).ids) + 2
    assert longest <= max(seen) <= 90
    seen.clear()
    monkeypatch.setattr(masked, "LOGIT_BYTES", 4 * loaded.model.config.vocab_size * 60)
    steps_of(PerturbationEngine(loaded, 4096), MANY, Perturb("entropy", "iterative", 2))
    handle.remove()
    assert longest <= max(seen) <= 60


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
