"""The replacement loop: which tokens are replaced, and when; any perturbation model proposes the new tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from abstain.llm.engine.prompts import PromptSegments
from abstain.llm.engine.requests import Perturb
from abstain.llm.engine.tokenization import TOKENIZER_LOCK
from abstain.llm.perturbation.text import PerturbationStep, TokenTexts


class TokenProposal(NamedTuple):
    """A token proposed for a place.

    Attributes:
        new: Token id of the new token.
        old_log_likelihood: Log-likelihood of the old token in that place, in nats.
        new_log_likelihood: Log-likelihood of the new token in that place, in nats.
    """

    new: int
    old_log_likelihood: float
    new_log_likelihood: float


class TokenProposer(Protocol):
    """A perturbation model over some texts of token ids, side by side."""

    def compute_log_likelihoods(self, rows: Sequence[int]) -> list[Tensor]:
        """Compute the current log-likelihood of each token of some texts.

        Args:
            rows: Indices of the texts.

        Returns:
            Log-likelihoods of each text, (tokens,), float32, in nats.
        """

    def propose(self, places_by_row: Mapping[int, Sequence[int]]) -> dict[int, list[TokenProposal]]:
        """Propose the model's likeliest other tokens for some places, all masked at once.

        Args:
            places_by_row: Index of a text -> places in it.

        Returns:
            Index of a text -> a proposal for each place.
        """

    def replace(self, row: int, places: Sequence[int], tokens: Sequence[int]) -> None:
        """Replace tokens of a text.

        Args:
            row: Index of the text.
            places: Places in the text.
            tokens: Token id that now stands in each place.
        """


@dataclass
class EncodedText:
    """A prompt as tokens. Each list has one entry per token.

    Attributes:
        ids: Token ids.
        spans: (segment, start, end) of its characters. They include the characters between the previous token and this
            one, unless spaces are no part of tokens.
        replaceable: Whether the token may be replaced.
    """

    ids: list[int] = field(default_factory=list)
    spans: list[tuple[int, int, int]] = field(default_factory=list)
    replaceable: list[bool] = field(default_factory=list)


def encode_text(token_texts: TokenTexts, prompt: PromptSegments, allowed: Tensor) -> EncodedText:
    """Tokenize a prompt segment by segment, and mark the tokens that may be replaced.

    Literals may not be replaced, nor a token that is a part of a character. A special token that people wrote is split
    into plain tokens, or becomes unknown if the vocabulary also has it as a plain token (T5's `</s>`).

    Args:
        token_texts: Texts of the tokenizer's tokens. The tokenizer must give character offsets (`is_fast`).
        prompt: Segments of the prompt.
        allowed: Mask of the tokens that may take a place, bool (vocabulary,).

    Returns:
        The tokens.
    """
    tokenizer = token_texts.tokenizer
    unknown, special = tokenizer.unk_token_id, set(tokenizer.all_special_ids)
    text = EncodedText()
    for index, segment in enumerate(prompt):
        with TOKENIZER_LOCK:
            encoded = tokenizer(
                segment.text,
                add_special_tokens=False,
                split_special_tokens=not segment.literal,
                return_offsets_mapping=True,
            )
        end = 0
        for token, (first, last) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
            start, end = max(end, first) if token_texts.spaceless else end, max(end, last)
            is_plain = segment.literal or token not in special or unknown is None
            text.ids.append(token if is_plain else unknown)
            text.spans.append((index, start, end))
            text.replaceable.append(start < end and not segment.literal and bool(allowed[token]))
    return text


@lru_cache(maxsize=4)
def make_allowed_mask(tokenizer: Any, vocabulary: int) -> Tensor:
    """Make the mask of the tokens that may replace others: not special, and whole characters of a text.

    It is computed once for a tokenizer, since all of its tokens are decoded.

    Args:
        tokenizer: Tokenizer of the perturbation model.
        vocabulary: Size of the model's vocabulary.

    Returns:
        The mask, bool (vocabulary,).
    """
    allowed = torch.zeros(vocabulary, dtype=torch.bool)
    n_decoded = min(vocabulary, len(tokenizer))
    texts = tokenizer.batch_decode([[token] for token in range(n_decoded)], clean_up_tokenization_spaces=False)
    allowed[:n_decoded] = torch.tensor([bool(text) and "\ufffd" not in text for text in texts])
    special = [*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()]
    allowed[[token for token in special if token < vocabulary]] = False
    return allowed


def perturb_texts(
    proposer: TokenProposer, texts: Sequence[EncodedText], operation: Perturb
) -> list[list[PerturbationStep]]:
    """Replace `operation.tokens` tokens of every text, or all replaceable ones if there are fewer.

    With `entropy`, the least likely of the tokens that have not been replaced are chosen. With `random`, places are
    drawn beforehand and replaced from left to right: they are as random in any order, and a causal model can read on
    from the last one.

    Args:
        proposer: The perturbation model with the same texts.
        texts: The texts.
        operation: Where and when to replace.

    Returns:
        The replacements of each text, in the order in which they were made.
    """
    steps: list[list[PerturbationStep]] = [[] for _ in texts]
    remaining = [{place for place, is_replaceable in enumerate(text.replaceable) if is_replaceable} for text in texts]
    random_places = [_draw_places(text, operation) for text in texts] if operation.selection == "random" else []
    step_size = operation.tokens if operation.schedule == "single_shot" else 1
    for first in range(0, operation.tokens, step_size):
        rows = [row for row in range(len(texts)) if remaining[row]]
        if random_places:
            chosen = {row: random_places[row][first : first + step_size] for row in rows}
        else:
            log_likelihoods = proposer.compute_log_likelihoods(rows)
            chosen = {
                row: _find_lowest(values, remaining[row], step_size)
                for row, values in zip(rows, log_likelihoods, strict=True)
            }
        chosen = {row: places for row, places in chosen.items() if places}
        if not chosen:
            break
        for row, proposals in proposer.propose(chosen).items():
            text, places = texts[row], chosen[row]
            proposer.replace(row, places, [proposal.new for proposal in proposals])
            remaining[row] -= set(places)
            steps[row] += [
                PerturbationStep(*text.spans[place], text.ids[place], *proposal)
                for place, proposal in zip(places, proposals, strict=True)
            ]
    return steps


def _find_lowest(values: Tensor, places: set[int], count: int) -> list[int]:
    """Return the `count` of `places` with the lowest values, in order of place; of equal values the first."""
    scores = values.tolist()
    return sorted(sorted(places, key=lambda place: (scores[place], place))[:count])


def _draw_places(text: EncodedText, operation: Perturb) -> list[int]:
    """Draw places to be replaced, from left to right: equal texts give equal places in any batch."""
    digest = hashlib.sha256(f"{operation.seed}\0{text.ids}".encode()).digest()
    places = [place for place, is_replaceable in enumerate(text.replaceable) if is_replaceable]
    generator = np.random.default_rng(int.from_bytes(digest[:8]))
    return sorted(generator.permutation(places)[: operation.tokens].tolist())
