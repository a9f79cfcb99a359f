import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers
from transformers import PreTrainedTokenizerFast

from abstain.config.settings import Settings
from abstain.core.contracts import Interaction
from abstain.llm.engine.loading import LoadedModel
from abstain.llm.engine.requests import Generate, NextTokenProbs
from abstain.llm.signals.base import FeatureBatch, Signal
from abstain.llm.signals.compute_features import collect_feature_requests, read_features
from abstain.llm.signals.yes_no import (
    MIN_PROBABILITY,
    STEPS,
    compute_yes_score,
    count_neither_replies,
    find_first_word,
    make_yes_no_signals,
)
from tests.llm.builders import byte_tokenizer, make_params, save_model, tiny_model
from tests.llm.signals.builders import TEXTS, interaction, unread

PROBABILITIES = st.floats(0, 1)


def speaking_tokenizer() -> PreTrainedTokenizerFast:
    """Single bytes, and some words that are one token."""
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["Yes", "No", "yes", " Yes", "no", "TRUE", "Maybe"])
    return tokenizer


def by_name(tokenizer: Any) -> dict[str, Signal]:
    return {signal.name: signal for signal in make_yes_no_signals(tokenizer)}


@pytest.mark.parametrize(
    ("yes", "no", "expected"),
    [
        (0.3, 0.1, 0.75),
        (0.1, 0.3, 0.25),
        (MIN_PROBABILITY, MIN_PROBABILITY, 0.5),
        (0.0, 0.0, 0.5),
        (0.2, MIN_PROBABILITY, 1.0),
        (0.0, 0.2, 0.0),
        (math.nan, math.nan, math.nan),
        (math.nan, 0.5, math.nan),
        (0.5, math.nan, math.nan),
        (math.nan, 0.0, math.nan),
    ],
)
def test_yes_score_is_the_share_of_yes(yes: float, no: float, expected: float) -> None:
    assert compute_yes_score(yes, no) == pytest.approx(expected, nan_ok=True)


@given(PROBABILITIES, PROBABILITIES)
def test_yes_score_is_complementary_to_no(yes: float, no: float) -> None:
    assert 0 <= compute_yes_score(yes, no) <= 1
    assert compute_yes_score(yes, no) + compute_yes_score(no, yes) == pytest.approx(1)


FIRST_WORDS = st.sampled_from(["Yes", "\n", " Yes", "1", "", "é", "a-b", "**", "<|im_end|>", "ok"])


@given(st.lists(FIRST_WORDS | st.text(), min_size=1))
def test_find_first_word_is_the_first_of_letters(decoded: list[str]) -> None:
    found = find_first_word(decoded)
    words = [at for at, text in enumerate(decoded) if all(letter.isalpha() for letter in text)]
    assert found == (words[0] if words else len(decoded) - 1)


def test_yes_no_signals_require_tokens_of_the_tokenizer() -> None:
    signals = by_name(speaking_tokenizer())
    assert signals.keys() == {"yes_score", "yes_score_tokens", "yes_score_fused"}
    (one,), (sets,), (fused,) = (signal.requires for signal in signals.values())
    assert one == sets
    tracked = ("Yes", "No", " Yes", "yes", "TRUE", "no")
    assert (one.prompt_kind, one.operation) == ("yes_score", Generate(STEPS, tracked_tokens=tracked))
    assert (fused.prompt_kind, fused.operation) == ("asked_after", NextTokenProbs(("Yes", "No")))


def test_yes_no_signals_count_equal_tokens_once() -> None:
    """A lower-casing tokenizer has one token for yes, Yes and YES."""
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.add_tokens(["yes", "no"])
    (reading,) = by_name(tokenizer)["yes_score_tokens"].requires
    assert reading.operation == Generate(STEPS, tracked_tokens=("Yes", "No"))


def steps(tokenizer: Any, tokens: list[str], choices: list[list[float]]) -> torch.Tensor:
    ids = [tokenizer.convert_tokens_to_ids(token) for token in tokens]
    return torch.tensor([[float(at), *row] for at, row in zip(ids, choices, strict=True)])


def test_yes_no_signals_score_where_the_first_word_is() -> None:
    tokenizer = speaking_tokenizer()
    signals = by_name(tokenizer)
    (reading,) = signals["yes_score"].requires
    here = [0.2, 0.3, 0.1, 0.05, 0.02, 0.15]  # Yes, No, " Yes", yes, TRUE, no
    other = [0.9, 0.0, 0.0, 0.0, 0.0, 0.0]
    found = {
        "at once": steps(tokenizer, ["Maybe", "1"], [here, other]),
        "after a number": steps(tokenizer, ["1", "!", "Maybe"], [other, other, here]),
        "a space before it": steps(tokenizer, [" Yes", "Maybe"], [other, here]),
        "no word": steps(tokenizer, ["1", "<|im_end|>"], [other, here]),
    }
    answers = FeatureBatch([interaction(name=name) for name in found], {reading: list(found.values())})
    assert signals["yes_score"].score(answers) == pytest.approx([0.2 / 0.5] * 4)
    assert signals["yes_score_tokens"].score(answers) == pytest.approx([0.37 / (0.37 + 0.45)] * 4)


def test_count_neither_replies_by_first_word() -> None:
    tokenizer = speaking_tokenizer()
    (asked,) = by_name(tokenizer)["yes_score"].requires
    row = [0.2, 0.3, 0.1, 0.05, 0.02, 0.15]
    replies = [["Yes"], ["1", " Yes"], ["Maybe"], ["1", "!"], ["Maybe", "Yes"]]
    found = [steps(tokenizer, reply, [row] * len(reply)) for reply in replies]
    answers = FeatureBatch([interaction(name=f"i-{n}") for n in range(6)], {asked: [*found, None]})
    assert count_neither_replies(tokenizer, answers) == {"neither": 3, "replies": 5}
    assert count_neither_replies(tokenizer, unread(interaction())) is None


def test_yes_score_fused_reads_the_end_of_the_pass() -> None:
    fused = by_name(speaking_tokenizer())["yes_score_fused"]
    results = [torch.tensor([[0.3], [0.1]]), None, torch.tensor([[math.nan], [0.1]])]
    answers = FeatureBatch([interaction(name=f"i-{n}") for n in range(3)], {fused.requires[0]: results})
    np.testing.assert_allclose(fused.score(answers), [0.75, np.nan, np.nan], rtol=1e-6)


def test_yes_no_signals_neither_is_half() -> None:
    tokenizer = speaking_tokenizer()
    signals = by_name(tokenizer)
    (sampled,), (fused,) = signals["yes_score"].requires, signals["yes_score_fused"].requires
    silent, pair = steps(tokenizer, ["Maybe"], [[0.0001] * 6]), torch.tensor([[0.0005], [0.0009]])
    answers = FeatureBatch([interaction()], {sampled: [silent], fused: [pair]})
    assert [signal.score(answers).tolist() for signal in signals.values()] == [[0.5]] * 3


def post_yes_score(loaded: LoadedModel, row: Interaction) -> float:
    """The post's own code (Baak 2024, appendix), for one answer."""
    model, tokenizer = loaded.model, loaded.tokenizer
    context = "\n\n".join(context.text for context in row.contexts)
    prompt = (
        f"Context: {context}\n\nQuestion: {row.question}\n\nResponse: {row.answer}\n\n"
        "Based on the given Context and Question, answer this question:\n\n"
        "Is the provided Response correct? Answer only Yes or No.\n\nAnswer:\n"
    )
    input_ids = tokenizer(prompt, return_tensors="pt").input_ids
    outputs = model.generate(
        input_ids,
        output_logits=True,
        return_dict_in_generate=True,
        max_new_tokens=5,
        do_sample=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
    )
    generated_tokens = outputs.sequences[:, input_ids.shape[1] :]
    for idx, tok in enumerate(generated_tokens[0]):  # noqa: B007
        next_token_str = tokenizer.decode(tok, skip_special_tokens=True)
        n_letters = sum(c.isalpha() for c in next_token_str)
        if n_letters != len(next_token_str):
            continue
        break
    probs_all = torch.nn.functional.softmax(outputs.logits[idx][0], dim=-1)
    indices = torch.argwhere(probs_all > 0.001)[:, -1]
    tokens_max = [tokenizer.decode(index, skip_special_tokens=True) for index in indices]
    next_token_dict = {str(t): float(p) for t, p in zip(tokens_max, probs_all[indices], strict=True)}
    yes, no = next_token_dict.get("Yes", 0.0), next_token_dict.get("No", 0.0)
    return yes / (yes + no) if yes != 0 or no != 0 else 0.5


ROWS = [
    interaction(),
    interaction("The hotline, by day or by night.", TEXTS, "Who blocks a lost card?", "i-2"),
    interaction("The fee is 50 pounds.", TEXTS[1:], "What is the annual fee of the gold card?", "i-3"),
    interaction("Nobody knows", TEXTS[:1], "Who blocks a lost card", "i-4"),
]


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(2))
def test_yes_score_equals_the_code_of_the_post(tmp_path: Path, seed: int) -> None:
    settings = Settings(home=tmp_path, device="cpu", dtype="float32")
    loaded = replace(tiny_model(seed=seed), tokenizer=speaking_tokenizer())
    loaded.model.resize_token_embeddings(len(loaded.tokenizer))  # the post's loop counts a token without text as a word
    params = make_params(save_model(loaded, tmp_path / "tiny-bank"))
    signals = by_name(loaded.tokenizer)
    answers = read_features(params, settings, ROWS, collect_feature_requests(signals.values()))
    found = {name: signal.score(answers) for name, signal in signals.items()}
    expected = [post_yes_score(loaded, row) for row in ROWS]
    np.testing.assert_allclose(found["yes_score"], expected, atol=1e-3)
    assert len(set(expected)) > 1
    assert all(((scores >= 0) & (scores <= 1)).all() for scores in found.values())
    assert len({tuple(scores.round(3)) for scores in found.values()}) == 3, "none is a copy of another"
