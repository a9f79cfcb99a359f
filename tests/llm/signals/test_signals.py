import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from abstain.config.params import LLMParams
from abstain.config.settings import Settings
from abstain.core.contracts import Interaction
from abstain.llm.engine.loading import LoadedModel
from abstain.llm.engine.prompts import load_layout
from abstain.llm.engine.requests import Generate, NextTokenProbs
from abstain.llm.signals.base import FeatureBatch, Signal
from abstain.llm.signals.compute_features import collect_feature_requests, read_features
from abstain.llm.signals.likelihood import LIKELIHOOD_SIGNALS, NLL_WITH_CONTEXT, NLL_WITHOUT_CONTEXT
from abstain.llm.signals.verbalized import MAX_NEW_TOKENS, make_verbalized_signal, parse_probability
from abstain.llm.signals.yes_no import (
    MIN_PROBABILITY,
    STEPS,
    compute_yes_score,
    count_neither_replies,
    find_first_word,
    make_yes_no_signals,
)
from tests.llm.builders import byte_tokenizer, make_params, plain_surprise, save_model, shared_model, tiny_model
from tests.llm.signals.builders import TEXTS, interaction, unread


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
        (MIN_PROBABILITY, MIN_PROBABILITY, 0.5),
        (0.2, MIN_PROBABILITY, 1.0),
        (0.0, 0.2, 0.0),
        (math.nan, 0.0, math.nan),
        (0.5, math.nan, math.nan),
    ],
)
def test_yes_score_is_the_share_of_yes(yes: float, no: float, expected: float) -> None:
    assert compute_yes_score(yes, no) == pytest.approx(expected, nan_ok=True)


@given(st.floats(0, 1), st.floats(0, 1))
def test_yes_score_is_complementary_to_no(yes: float, no: float) -> None:
    assert 0 <= compute_yes_score(yes, no) <= 1
    assert compute_yes_score(yes, no) + compute_yes_score(no, yes) == pytest.approx(1)


PIECES = st.sampled_from(["Yes", "\n", " Yes", "1", "", "é", "a-b", "<|im_end|>"]) | st.text(max_size=4)


@given(st.lists(PIECES, min_size=1, max_size=8))
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
    lower = byte_tokenizer()  # one token for yes, Yes and YES
    lower.backend_tokenizer.normalizer = normalizers.Lowercase()
    lower.add_tokens(["yes", "no"])
    (once,) = by_name(lower)["yes_score_tokens"].requires
    assert once.operation == Generate(STEPS, tracked_tokens=("Yes", "No"))


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
    tokenizer = speaking_tokenizer()
    signals = by_name(tokenizer)
    (sampled,), (fused,) = signals["yes_score"].requires, signals["yes_score_fused"].requires
    results = [torch.tensor([[0.3], [0.1]]), None, torch.tensor([[math.nan], [0.1]])]
    answers = FeatureBatch([interaction(name=f"i-{n}") for n in range(3)], {fused: results})
    np.testing.assert_allclose(signals["yes_score_fused"].score(answers), [0.75, np.nan, np.nan], rtol=1e-6)
    silent, pair = steps(tokenizer, ["Maybe"], [[0.0001] * 6]), torch.tensor([[0.0005], [0.0009]])
    neither = FeatureBatch([interaction()], {sampled: [silent], fused: [pair]})
    assert [signal.score(neither).tolist() for signal in signals.values()] == [[0.5]] * 3


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


BEFORE = st.sampled_from(["", "\n", "Probability: ", "p=", "I would say ", "**", "(", "~", "about "])
AFTER = st.sampled_from(["", ".", ")", "**", "\n\nQuestion:", " because", ", I think.", "!", " - it is", ": yes"])
SCALES = ("the answer is correct (0.0 to 1.0) is", "0 to 1", "0.0 - 1.0", "between 0 and 1", "0 or 1", "0.0 and 1.0")
NOT_ANSWERED = (*SCALES, "1. Yes, it is right", "1 year", "0 days", "Response 1")


@given(BEFORE, st.integers(0, 100).map(lambda n: f"{n / 100:.2f}"), AFTER)
def test_parse_probability_number_in_text(before: str, number: str, after: str) -> None:
    assert parse_probability(before + number + after) == float(number)
    assert parse_probability(before + number.replace(".", ",") + after) == float(number)


@given(BEFORE, st.integers(0, 20), st.integers(0, 20), st.sampled_from(["/", " / ", " out of ", " of "]), AFTER)
def test_parse_probability_fraction_is_divided(before: str, part: int, whole: int, sign: str, after: str) -> None:
    found = parse_probability(f"{before}{part}{sign}{whole}{after}")
    if 0 < whole >= part:
        assert found == part / whole
    else:
        assert math.isnan(found)


@given(st.text(st.sampled_from("0123456789.,%/- \nofx٣²")) | st.text())
def test_parse_probability_is_in_range_or_nan(reply: str) -> None:
    found = parse_probability(reply)
    assert math.isnan(found) or 0 <= found <= 1


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (".7", 0.7),
        ("1", 1.0),
        ("0.85 (85%)", 0.85),
        ("The 3rd try: 0.4", 0.4),
        ("(0.0 to 1.0): 0.85", 0.85),
        ("the probability that it is correct (0.0 to 1.0) is 0.3.", 0.3),
        ("0-1: 0.7", 0.7),
        ("1. The answer is right: 0.9", 0.9),
        ("In 1 year 80 %", 0.8),
        ("1\n\nQuestion:", 1.0),
        ("1: 0.9", 0.9),
        ("Response 1: 0.9", 0.9),
        ("0 or 1? 0.5", 0.5),
        ("0-1.5", 0.0),
        *((f"(85{sign}.", 0.85) for sign in ("%", " %", " percent", " per cent", "percent")),
        *((f"0.3{sign}0.5", 0.3) for sign in ("-", "–", " - ", " to ", " or ", "…")),
    ],
)
def test_parse_probability_takes_the_first_number(reply: str, expected: float) -> None:
    assert parse_probability(reply) == expected


NO_NUMBERS = (
    "",
    "high",
    "-0.5",
    "p=−0.50",
    "1.01",
    "150.00%",
    "1.2.3",
    "0.85x",
    "v1",
    "1e-3",
    "50%%",
    "1/2/3",
    "1,000",
)


@pytest.mark.parametrize("reply", [*NO_NUMBERS, *NOT_ANSWERED])
def test_parse_probability_other_replies_are_nan(reply: str) -> None:
    assert math.isnan(parse_probability(reply))


def test_verbalized_signal_reads_the_generated_reply() -> None:
    tokenizer = byte_tokenizer()
    signal = make_verbalized_signal(tokenizer)
    (reading,) = signal.requires
    assert (reading.operation, reading.prompt_kind) == (Generate(MAX_NEW_TOKENS), "probability")

    def steps(reply: str, ended: bool) -> torch.Tensor:
        ids = tokenizer.encode(reply) + [tokenizer.eos_token_id] * ended
        return torch.tensor(ids, dtype=torch.float32)[:, None]

    replies = {
        " 0.25\n": (False, 0.25),
        "0.5": (True, 0.5),
        "sure": (True, math.nan),
        "It is 0.": (False, math.nan),  # what would have come next decides
        "It is 85 ": (False, math.nan),
        "8/1": (False, math.nan),
        "0.5-0.": (False, 0.5),
        "1.": (True, 1.0),
    }
    rows = [interaction(name=reply) for reply in ("unread", *replies)]
    results = [None, *(steps(reply, ended) for reply, (ended, _) in replies.items())]
    found = signal.score(FeatureBatch(rows, {reading: results}))
    assert found.tolist() == pytest.approx([math.nan, *(expected for _, expected in replies.values())], nan_ok=True)


BY_NAME = {signal.name: signal for signal in LIKELIHOOD_SIGNALS}


def surprise(p: Sequence[float], entropy: Sequence[float]) -> Tensor:
    return torch.tensor([[-math.log(one), h] for one, h in zip(p, entropy, strict=True)])


def scores(answers: FeatureBatch) -> dict[str, np.ndarray]:
    return {name: signal.score(answers) for name, signal in BY_NAME.items()}


def expected_scores(p: Sequence[float], h: Sequence[float], alone: Sequence[float]) -> dict[str, float]:
    """Equations 1 and 2 of the probe's paper, and the others, as products of probabilities."""
    own = p[:-1]
    return {
        "sequence_log_prob": math.prod(own) ** (1 / len(own)),
        "joint_log_prob": math.prod(own),
        "mean_log_prob": math.prod(p) ** (1 / len(p)),
        "min_log_prob": min(p),
        "entropy": math.exp(-sum(h) / len(h)),
        "context_gain": (1 + math.prod(own) ** (1 / len(own)) - math.prod(alone[:-1]) ** (1 / len(own))) / 2,
    }


@given(st.lists(st.tuples(st.floats(1e-6, 1), st.floats(1e-6, 1), st.floats(0, 12)), min_size=2, max_size=12))
def test_likelihood_signals_are_products_of_probabilities(tokens: list[tuple[float, float, float]]) -> None:
    p, alone, h = (list(column) for column in zip(*tokens, strict=True))
    answers = FeatureBatch(
        [interaction()], {NLL_WITH_CONTEXT: [surprise(p, h)], NLL_WITHOUT_CONTEXT: [surprise(alone, h)]}
    )
    found = scores(answers)
    assert found.keys() == expected_scores(p, h, alone).keys()
    for name, value in expected_scores(p, h, alone).items():
        assert 0 <= found[name][0] <= 1
        assert found[name][0] == pytest.approx(value, rel=1e-4, abs=1e-9), name
    assert found["min_log_prob"] <= found["mean_log_prob"] + 1e-6
    assert found["joint_log_prob"] <= found["sequence_log_prob"] + 1e-6


def test_likelihood_signals_equal_a_plain_forward(tiny_params: LLMParams, settings: Settings) -> None:
    rows = [
        interaction("5 euros", TEXTS[:1]),
        interaction("The hotline, by day or by night.", TEXTS, "Who blocks a lost card?", "i-2"),
    ]
    found = scores(read_features(tiny_params, settings, rows, [NLL_WITH_CONTEXT, NLL_WITHOUT_CONTEXT]))

    def probabilities(row: Interaction, contexts: list[str]) -> tuple[list[float], list[float]]:
        layout = load_layout(tiny_params.layout)
        encoded, plain = plain_surprise(shared_model(), layout.render(row.question, contexts, row.answer))
        nll, entropy = plain[slice(*encoded.span("answer", "eos"))].double().T
        return (-nll).exp().tolist(), entropy.tolist()

    for at, row in enumerate(rows):
        p, h = probabilities(row, [context.text for context in row.contexts])
        alone, _ = probabilities(row, [])
        for name, value in expected_scores(p, h, alone).items():
            assert found[name][at] == pytest.approx(value, abs=1e-3), (name, at)
