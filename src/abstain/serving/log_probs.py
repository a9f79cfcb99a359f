"""Log-probabilities of an answer's tokens in the response of an OpenAI-style API, as NLLs.

They are those of the model that wrote the answer, under the prompt that it read: they stand for the base model's only
where both are what the live scorer's `FeatureSpec` says. Entropies are not among them, and of what ends an answer some
servers give a log-probability, others do not.
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
"""What servers write for a log-probability that they do not know, or that is minus infinity."""
Token = tuple[str, float]


@dataclass(frozen=True)
class AnswerLogProbs:
    """`token_log_probs`: the log-probabilities of the answer's tokens; `eos_log_prob`: that of what ends it, None if not given."""

    token_log_probs: tuple[float, ...]
    eos_log_prob: float | None

    def to_nll_and_entropy(self) -> Tensor:
        """NLL and entropy of the answer's tokens and of EOS, (tokens + 1, 2), float32; nan where not known."""
        nll = [-one for one in (*self.token_log_probs, math.nan if self.eos_log_prob is None else self.eos_log_prob)]
        return torch.stack([torch.tensor(nll, dtype=torch.float32), torch.full((len(nll),), math.nan)], 1)


def parse_log_probs(
    response: Mapping[str, Any],
    spec: FeatureSpec,
    answer: str | None = None,
    tokens: EncodedPrompt | UnreadableInteraction | None = None,
) -> AnswerLogProbs:
    """The log-probabilities of the one choice of `response`, of chat completions or of completions.

    `answer`, and `tokens`, what the base model reads, are compared where they are given. Raises `AbstainError` where
    there are none, where they are no log-probabilities, or of another answer, where it cannot be known whether the last
    one is of EOS, and for texts that the base model cannot read.
    """
    if isinstance(tokens, UnreadableInteraction):
        raise AbstainError(Code.TOO_LONG, tokens.reason)
    found = _tokens(response)
    for text, value in found:
        if not MIN_LOG_PROB < value <= 0:
            _refuse(f"the log-probability of {text!r} is {value:g}: give natural logarithms of probabilities above 0")
    ended = _ends_with_eos(found, spec, tokens)
    own = found[:-1] if ended else found
    if not own:
        _refuse("there is none of the answer itself: there is nothing to decide about")
    if tokens is not None and len(own) != (expected := _length(tokens)):
        _refuse(
            f"there are those of {len(own)} tokens, the answer has {expected}: they are of another one, or not of all"
        )
    if answer is not None and "\ufffd" not in (text := "".join(text for text, _ in own)) and text.strip() != answer:
        _refuse("their tokens do not make this answer: they are of another one")
    return AnswerLogProbs(tuple(value for _, value in own), found[-1][1] if ended else None)


def _tokens(response: Mapping[str, Any]) -> list[Token]:
    """The tokens and their log-probabilities, in order."""
    try:
        (choice,) = response["choices"]
        given = choice["logprobs"]
        if given.get("content") is not None:
            pairs = [(one["token"], one["logprob"]) for one in given["content"]]
        else:
            pairs = list(zip(given["tokens"], given["token_logprobs"], strict=True))
        found = [(text, float(value)) for text, value in pairs if isinstance(text, str) and type(value) in (int, float)]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        _refuse(
            "the response has not one choice with logprobs.content (chat) or logprobs.tokens and token_logprobs "
            "(completions): ask for logprobs, n = 1, without a stream"
        )
    if len(found) < len(pairs):
        _refuse("a log-probability is no number, as of a prompt that is echoed: ask for those of the answer alone")
    if not found:
        _refuse("the response holds none: ask for logprobs")
    return found


def _ends_with_eos(found: Sequence[Token], spec: FeatureSpec, tokens: EncodedPrompt | None) -> bool:
    """Whether the last one is of what ends the answer."""
    if found[-1][0]:
        return found[-1][0] == spec.eos_text
    if tokens is None:  # some servers write an empty text for EOS, and for a token that is half a character
        _refuse("the last token has an empty text, so it may be EOS or not: give the texts that were read")
    return len(found) == _length(tokens) + 1


def _length(tokens: EncodedPrompt) -> int:
    start, end = tokens.span("answer")
    return end - start


def _refuse(message: str) -> NoReturn:
    raise AbstainError(Code.STATES_MISMATCH, f"log-probabilities: {message}")
