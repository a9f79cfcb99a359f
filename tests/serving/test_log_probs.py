"""Log-probabilities of an OpenAI-style response."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given as drawn
from hypothesis import strategies as st

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.engine.tokenization import EncodedPrompt
from abstain.serving.log_probs import AnswerLogProbs, parse_log_probs
from tests.serving.test_engine_states import SPEC

ANSWER = [("It", -0.5), (" is", -0.25), (" 5.", -1.5)]
EOS = ("<|im_end|>", -0.125)
TOKENS = EncodedPrompt([1, 2, 3, 4, 5, 9], {"question": (0, 2), "answer": (2, 5), "eos": (5, 6)})


def chat(*tokens: tuple[Any, Any]) -> dict[str, Any]:
    content = [{"token": text, "logprob": value, "bytes": None, "top_logprobs": []} for text, value in tokens]
    return {"choices": [{"index": 0, "finish_reason": "stop", "logprobs": {"content": content, "refusal": None}}]}


def completion(*tokens: tuple[Any, Any]) -> dict[str, Any]:
    texts, values = zip(*tokens, strict=True)
    return {"choices": [{"text": "", "logprobs": {"tokens": [*texts], "token_logprobs": [*values], "text_offset": []}}]}


def reject(response: dict[str, Any], **more: Any) -> str:
    with pytest.raises(AbstainError) as error:
        parse_log_probs(response, SPEC, **more)
    assert error.value.code == Code.STATES_MISMATCH and error.value.message.startswith("log-probabilities: ")
    return error.value.message


@pytest.mark.parametrize("shape", [chat, completion])
@pytest.mark.parametrize("more", [{}, {"answer": "It is 5."}, {"answer": "It is 5.", "tokens": TOKENS}])
def test_parse_log_probs_separates_answer_and_eos(shape: Any, more: dict[str, Any]) -> None:
    expected = AnswerLogProbs((-0.5, -0.25, -1.5), None)
    assert parse_log_probs(shape(*ANSWER), SPEC, **more) == expected
    assert parse_log_probs(shape(*ANSWER, EOS), SPEC, **more) == AnswerLogProbs(expected.token_log_probs, -0.125)


def test_log_probs_to_nll_and_entropy_has_nan_for_unknown() -> None:
    nan = math.nan
    without = parse_log_probs(chat(*ANSWER), SPEC).to_nll_and_entropy()
    expected = torch.tensor([[0.5, nan], [0.25, nan], [1.5, nan], [nan, nan]])
    torch.testing.assert_close(without, expected, equal_nan=True)
    with_eos = parse_log_probs(chat(*ANSWER, EOS), SPEC).to_nll_and_entropy()
    assert with_eos[-1, 0] == 0.125 and with_eos.dtype == torch.float32


def test_parse_log_probs_of_a_last_token_without_text() -> None:
    silent = ("", -0.125)
    assert parse_log_probs(chat(*ANSWER, silent), SPEC, tokens=TOKENS).eos_log_prob == -0.125
    assert parse_log_probs(chat(*ANSWER[:2], silent), SPEC, tokens=TOKENS).eos_log_prob is None
    assert "it may be EOS or not" in reject(chat(*ANSWER, silent))


def test_parse_log_probs_rejects_those_of_another_answer() -> None:
    assert "do not make this answer" in reject(chat(*ANSWER), answer="It is 6.")
    assert "those of 2 tokens, the answer has 3" in reject(chat(*ANSWER[:2]), tokens=TOKENS)
    assert "those of 4 tokens, the answer has 3" in reject(chat(*ANSWER, (" x", -1.0)), tokens=TOKENS)
    half = chat(("\ufffd", -1.0), ("\ufffd", -1.0))  # of one character, whose bytes are two tokens
    assert len(parse_log_probs(half, SPEC, answer="é").token_log_probs) == 2


@pytest.mark.parametrize(
    ("response", "message"),
    [
        ({}, "ask for logprobs, n = 1"),
        ({"choices": [chat(*ANSWER)["choices"][0]] * 2}, "n = 1"),
        ({"choices": [{"logprobs": {"tokens": ["a"], "token_logprobs": []}}]}, "ask for logprobs"),
        ({"choices": ["a"]}, "ask for logprobs"),
        (chat(), "holds none"),
        (chat(EOS), "none of the answer itself"),
        (completion(("It", None), *ANSWER), "as of a prompt that is echoed"),
        (chat(("It", True)), "no number"),
        (chat(("It", 0.5)), "is 0.5: give natural logarithms"),
        (chat(("It", -9999.0)), "is -9999: give"),
    ],
)
def test_parse_log_probs_rejects_other_responses(response: dict[str, Any], message: str) -> None:
    assert message in reject(response)


@drawn(response=st.recursive(st.none() | st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["choices", "logprobs", "content", "token", "logprob", "tokens", "token_logprobs"]), inner, max_size=3), max_leaves=12))  # fmt: skip
def test_parse_log_probs_reads_or_rejects_any_json(response: Any) -> None:
    try:
        assert parse_log_probs(response, SPEC).token_log_probs
    except AbstainError as error:
        assert error.code == Code.STATES_MISMATCH
