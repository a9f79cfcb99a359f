"""Yes-score, also known as P(True): the probability of "yes" if the base model is asked whether the answer is correct.

It is from Baak (2024). The report shows the rank correlation of its three variants:

* `yes_score`, the one of the post: its prompt, up to five greedy tokens, raw probabilities at the first position whose
  decoded token consists of letters: yes = p(Yes) / (p(Yes) + p(No)), 0.5 if neither is above 0.001.
* `yes_score_tokens`: the same position, with the sum over all single tokens that mean yes, or no.
* `yes_score_fused`: asked after the prompt with the answer (engine/questions), at its end: one prompt serves the probe,
  the NLLs of the answer and this score.
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
"""A less likely token counts as missing (the preselection of the post)."""
EXACT = ("Yes", "No")
MEANS_YES = ("Yes", "yes", "YES", "True", "true", "TRUE")
MEANS_NO = ("No", "no", "NO", "False", "false", "FALSE")


def make_yes_no_signals(tokenizer: Any) -> tuple[Signal, ...]:
    """Return the three variants for a base model with the tokenizer `tokenizer`.

    Of the tokens that mean yes or no, with and without a space before them, they use those in the vocabulary.
    """
    positive, negative = (_find_single_tokens(tokenizer, words) for words in (MEANS_YES, MEANS_NO))
    tracked_tokens = (*EXACT, *(token for token in (*positive, *negative) if token not in EXACT))
    request = FeatureRequest(Generate(STEPS, tracked_tokens=tracked_tokens), "yes_score")
    fused_request = FeatureRequest(NextTokenProbs(EXACT), "asked_after")

    def read_first_word(steps: Tensor, tokens: Sequence[str]) -> Tensor:
        row = steps[find_first_word(_decode_tokens(tokenizer, steps))]
        return row[[1 + tracked_tokens.index(token) for token in tokens]]

    def score_exact(_: Interaction, features: Sequence[Tensor]) -> float:
        yes, no = read_first_word(features[0], EXACT)
        return compute_yes_score(float(yes), float(no))

    def score_token_sets(_: Interaction, features: Sequence[Tensor]) -> float:
        return compute_yes_score(
            *(float(read_first_word(features[0], tokens).sum()) for tokens in (positive, negative))
        )

    def score_fused(_: Interaction, features: Sequence[Tensor]) -> float:
        yes, no = features[0][:, 0]
        return compute_yes_score(float(yes), float(no))

    return (
        Signal("yes_score", (request,), score_exact),
        Signal("yes_score_tokens", (request,), score_token_sets),
        Signal("yes_score_fused", (fused_request,), score_fused),
    )


def count_neither_replies(tokenizer: Any, batch: FeatureBatch) -> dict[str, int] | None:
    """Count the replies to the question of the Yes-score that mean neither yes nor no, by first word.

    Such a reply is scored all the same, by the probabilities of the two words there.

    Args:
        tokenizer: Tokenizer of the base model.
        batch: Answers with their features.

    Returns:
        The numbers of such replies (`neither`) and of all `replies`; None if the question was not asked.
    """
    (request,) = make_yes_no_signals(tokenizer)[0].requires
    if request not in batch.features:
        return None
    replies = [_decode_tokens(tokenizer, steps) for steps in batch.features[request] if steps is not None]
    n_neither = sum(reply[find_first_word(reply)].strip() not in (*MEANS_YES, *MEANS_NO) for reply in replies)
    return {"neither": n_neither, "replies": len(replies)}


def compute_yes_score(yes: float, no: float) -> float:
    """Compute yes / (yes + no); 0.5 if both count as 0, and nan stays nan.

    Args:
        yes: Probability of yes; one of at most `MIN_PROBABILITY` counts as 0.
        no: Probability of no, likewise.

    Returns:
        The score in [0, 1].
    """
    yes, no = (0.0 if p <= MIN_PROBABILITY else p for p in (yes, no))
    return yes / (yes + no) if yes or no else 0.5


def find_first_word(decoded: Sequence[str]) -> int:
    """Return the index of the first of the `decoded` tokens that consists of letters.

    If none does, it is the last one, as in the loop of the post.
    A special token is decoded to nothing, which counts as letters there: nothing comes after the end of an answer.
    """
    return next((index for index, text in enumerate(decoded) if text.isalpha() or not text), len(decoded) - 1)


def _decode_tokens(tokenizer: Any, steps: Tensor) -> list[str]:
    """Return the text of each generated token."""
    return [tokenizer.decode([int(token)], skip_special_tokens=True) for token in steps[:, 0]]


def _find_single_tokens(tokenizer: Any, words: Sequence[str]) -> tuple[str, ...]:
    """Return the forms of `words`, with and without a space before them, that are one token; equal ones once."""
    forms_by_id: dict[int, str] = {}
    for form in (form for word in words for form in (word, f" {word}")):
        ids = tokenizer.encode(form, add_special_tokens=False)
        if len(ids) == 1:
            forms_by_id.setdefault(ids[0], form)
    return tuple(forms_by_id.values())
