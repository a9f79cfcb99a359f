"""Log-probabilities of an answer's tokens in the response of an OpenAI-style API, as NLLs.

They are those of the model that wrote the answer, under the prompt that it read. They can replace the base model's only
if model and prompt are those of the live scorer's `FeatureSpec`. Entropies are not among them, and only some servers
return a log-probability of the tokens that end an answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.engine.tokenization import EncodedPrompt
from abstain.llm.features.extraction import UnreadableInteraction
from abstain.serving.feature_spec import FeatureSpec

MIN_LOG_PROB = -9999.0
"""Value that servers send for a log-probability that they do not know, or that is minus infinity."""
TokenLogProb = tuple[str, float]


@dataclass(frozen=True)
class AnswerLogProbs:
    """Log-probabilities of an answer.

    Attributes:
        token_log_probs: Log-probabilities of the answer's tokens.
        eos_log_prob: Log-probability of the tokens that end the answer; None if the response has none.
    """

    token_log_probs: tuple[float, ...]
    eos_log_prob: float | None

    def to_nll_and_entropy(self) -> Tensor:
        """Return NLL and entropy of the answer's tokens and of EOS, float32 (tokens + 1, 2); nan if unknown."""
        nll = [
            -log_prob
            for log_prob in (*self.token_log_probs, math.nan if self.eos_log_prob is None else self.eos_log_prob)
        ]
        return torch.stack([torch.tensor(nll, dtype=torch.float32), torch.full((len(nll),), math.nan)], 1)


def parse_log_probs(
    response: Mapping[str, Any],
    spec: FeatureSpec,
    answer: str | None = None,
    tokens: EncodedPrompt | UnreadableInteraction | None = None,
) -> AnswerLogProbs:
    """Parse the log-probabilities of the only choice in a response of chat completions or completions.

    Args:
        response: Response of an OpenAI-style API.
        spec: Specification of what the live scorer reads.
        answer: Text of the answer, which is compared with the tokens; None if unknown.
        tokens: Tokens that the base model reads, whose number is compared; None if the texts are unknown.

    Returns:
        The log-probabilities of the answer's tokens.

    Raises:
        AbstainError: There are no log-probabilities, they are invalid or of another answer, it is unknown whether the
            last one is of EOS, or the base model cannot read the texts.
    """
    if isinstance(tokens, UnreadableInteraction):
        raise AbstainError(Code.TOO_LONG, tokens.reason)
    token_log_probs = _parse_token_log_probs(response)
    for text, value in token_log_probs:
        if not MIN_LOG_PROB < value <= 0:
            _raise_mismatch(
                f"the log-probability of {text!r} is {value:g}: give natural logarithms of probabilities above 0"
            )
    ends_with_eos = _ends_with_eos(token_log_probs, spec, tokens)
    answer_log_probs = token_log_probs[:-1] if ends_with_eos else token_log_probs
    if not answer_log_probs:
        _raise_mismatch("there is none of the answer itself: there is nothing to decide about")
    if tokens is not None and len(answer_log_probs) != (expected := _count_answer_tokens(tokens)):
        _raise_mismatch(
            f"there are those of {len(answer_log_probs)} tokens, the answer has {expected}: they are of another "
            "one, or not of all"
        )
    if (
        answer is not None
        and "\ufffd" not in (text := "".join(text for text, _ in answer_log_probs))
        and text.strip() != answer
    ):
        _raise_mismatch("their tokens do not make this answer: they are of another one")
    return AnswerLogProbs(
        tuple(value for _, value in answer_log_probs), token_log_probs[-1][1] if ends_with_eos else None
    )


def _parse_token_log_probs(response: Mapping[str, Any]) -> list[TokenLogProb]:
    """Return the tokens and their log-probabilities, in order."""
    try:
        (choice,) = response["choices"]
        logprobs = choice["logprobs"]
        if logprobs.get("content") is not None:
            pairs = [(entry["token"], entry["logprob"]) for entry in logprobs["content"]]
        else:
            pairs = list(zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True))
        token_log_probs = [
            (text, float(value)) for text, value in pairs if isinstance(text, str) and type(value) in (int, float)
        ]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        _raise_mismatch(
            "the response has not one choice with logprobs.content (chat) or logprobs.tokens and token_logprobs "
            "(completions): ask for logprobs, n = 1, without a stream"
        )
    if len(token_log_probs) < len(pairs):
        _raise_mismatch(
            "a log-probability is no number, as of a prompt that is echoed: ask for those of the answer alone"
        )
    if not token_log_probs:
        _raise_mismatch("the response holds none: ask for logprobs")
    return token_log_probs


def _ends_with_eos(token_log_probs: Sequence[TokenLogProb], spec: FeatureSpec, tokens: EncodedPrompt | None) -> bool:
    """Return whether the last token is EOS."""
    if token_log_probs[-1][0]:
        return token_log_probs[-1][0] == spec.eos_text
    if tokens is None:  # some servers write an empty text for EOS, and for a token that is half a character
        _raise_mismatch("the last token has an empty text, so it may be EOS or not: give the texts that were read")
    return len(token_log_probs) == _count_answer_tokens(tokens) + 1


def _count_answer_tokens(tokens: EncodedPrompt) -> int:
    start, end = tokens.span("answer")
    return end - start


def _raise_mismatch(message: str) -> NoReturn:
    raise AbstainError(Code.STATES_MISMATCH, f"log-probabilities: {message}")
