"""The Yes-score, also known as P(True): the base model's probability of "yes" when asked whether the answer is correct
(Baak 2024).

Three variants, whose rank correlation is in the report:

* `yes_score`, the post's own: its prompt, up to five greedy tokens, raw probabilities at the first position whose
  decoded token is letters alone: yes = p(Yes) / (p(Yes) + p(No)), 0.5 where neither is above 0.001.
* `yes_score_tokens`: the same position, with all single tokens that mean yes, or no, summed.
* `yes_score_fused`: asked after the answer's own pass (engine/questions), at its end: one pass serves the probe, the
  answer's NLLs and this score.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from abstain.core.contracts import Interaction
from abstain.llm.engine.requests import Generate, NextTokenProbs
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.base import FeatureBatch, Signal

STEPS = 5
MIN_PROBABILITY = 1e-3
"""A token that is less likely than this counts as not there (the post's preselection)."""
EXACT = ("Yes", "No")
MEANS_YES = ("Yes", "yes", "YES", "True", "true", "TRUE")
MEANS_NO = ("No", "no", "NO", "False", "false", "FALSE")


def yes_no_signals(tokenizer: Any) -> tuple[Signal, ...]:
    """The three variants for a base model that reads by `tokenizer`.

    Of the tokens that mean yes or no, with and without a space before them, it uses those in the vocabulary.
    """
    positive, negative = (_single(tokenizer, words) for words in (MEANS_YES, MEANS_NO))
    offered = (*EXACT, *(token for token in (*positive, *negative) if token not in EXACT))
    asked = FeatureRequest(Generate(STEPS, tracked_tokens=offered), "yes_score")
    fused = FeatureRequest(NextTokenProbs(EXACT), "asked_after")

    def at_first_word(steps: Tensor, wanted: Sequence[str]) -> Tensor:
        row = steps[first_word(_reply(tokenizer, steps))]
        return row[[1 + offered.index(token) for token in wanted]]

    def one_token(_: Interaction, found: Sequence[Tensor]) -> float:
        yes, no = at_first_word(found[0], EXACT)
        return yes_score(float(yes), float(no))

    def token_sets(_: Interaction, found: Sequence[Tensor]) -> float:
        return yes_score(*(float(at_first_word(found[0], tokens).sum()) for tokens in (positive, negative)))

    def in_one_pass(_: Interaction, found: Sequence[Tensor]) -> float:
        yes, no = found[0][:, 0]
        return yes_score(float(yes), float(no))

    return (
        Signal("yes_score", (asked,), one_token),
        Signal("yes_score_tokens", (asked,), token_sets),
        Signal("yes_score_fused", (fused,), in_one_pass),
    )


def count_neither_replies(tokenizer: Any, answers: FeatureBatch) -> dict[str, int] | None:
    """The number of `replies` to the Yes-score's question that mean `neither` yes nor no, by first word; None where
    the question was not asked. Such a reply is scored all the same, by the probabilities of the two there."""
    (asked,) = yes_no_signals(tokenizer)[0].requires
    if asked not in answers.features:
        return None
    replies = [_reply(tokenizer, steps) for steps in answers.features[asked] if steps is not None]
    meant = sum(reply[first_word(reply)].strip() not in (*MEANS_YES, *MEANS_NO) for reply in replies)
    return {"neither": meant, "replies": len(replies)}


def yes_score(yes: float, no: float) -> float:
    """yes / (yes + no), of probabilities; one of at most `MIN_PROBABILITY` counts as 0, 0.5 is neither, and nan stays nan."""
    yes, no = (0.0 if p <= MIN_PROBABILITY else p for p in (yes, no))
    return yes / (yes + no) if yes or no else 0.5


def first_word(decoded: Sequence[str]) -> int:
    """The first of the generated tokens that is letters alone; where none is, the last one, as in the post's loop.

    A special token is decoded to nothing, which counts as letters there: nothing comes after the end of an answer.
    """
    return next((at for at, text in enumerate(decoded) if text.isalpha() or not text), len(decoded) - 1)


def _reply(tokenizer: Any, steps: Tensor) -> list[str]:
    """The generated tokens, each as text."""
    return [tokenizer.decode([int(token)], skip_special_tokens=True) for token in steps[:, 0]]


def _single(tokenizer: Any, words: Sequence[str]) -> tuple[str, ...]:
    """The forms of `words`, with and without a space before them, that are one token; equal ones once."""
    found: dict[int, str] = {}
    for form in (form for word in words for form in (word, f" {word}")):
        ids = tokenizer.encode(form, add_special_tokens=False)
        if len(ids) == 1:
            found.setdefault(ids[0], form)
    return tuple(found.values())
