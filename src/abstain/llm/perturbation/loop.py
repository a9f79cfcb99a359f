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
    """The proposed token for a place, and the log-likelihoods, in nats, of the old token and the new one there."""

    new: int
    old_log_likelihood: float
    new_log_likelihood: float


class TokenProposer(Protocol):
    """A perturbation model over some texts of token ids, `texts`, side by side."""

    def log_likelihoods(self, rows: Sequence[int]) -> list[Tensor]:
        """The current log-likelihood of each token of texts number `rows`, in nats, float32 (tokens,)."""

    def propose(self, places: Mapping[int, Sequence[int]]) -> dict[int, list[TokenProposal]]:
        """Text number -> the model's likeliest other tokens for these places, all masked at once."""

    def replace(self, row: int, places: Sequence[int], tokens: Sequence[int]) -> None:
        """Change text number `row`: `tokens` now stand in `places`."""


@dataclass
class EncodedText:
    """A pass as tokens. Lists of one entry a token: `ids`; `spans`, its segment and its characters there, what
    precedes it since the last token included, unless spaces are no part of tokens; `free`, whether it may be replaced.
    """

    ids: list[int] = field(default_factory=list)
    spans: list[tuple[int, int, int]] = field(default_factory=list)
    replaceable: list[bool] = field(default_factory=list)


def encode_text(pieces: TokenTexts, pass_: PromptSegments, allowed: Tensor) -> EncodedText:
    """Tokenize `pass_`, segment by segment. No literal may be replaced, nor a token that is a part of a character.

    A special token that people wrote is split into plain ones, or unknown where the vocabulary has it as a plain one,
    too (T5's `</s>`). The tokenizer must give the character offsets of its tokens (`is_fast`).
    """
    tokenizer = pieces.tokenizer
    unknown, special = tokenizer.unk_token_id, set(tokenizer.all_special_ids)
    text = EncodedText()
    for number, segment in enumerate(pass_):
        with TOKENIZER_LOCK:
            encoded = tokenizer(
                segment.text,
                add_special_tokens=False,
                split_special_tokens=not segment.literal,
                return_offsets_mapping=True,
            )
        end = 0
        for token, (first, last) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
            start, end = max(end, first) if pieces.spaceless else end, max(end, last)
            plain = segment.literal or token not in special or unknown is None
            text.ids.append(token if plain else unknown)
            text.spans.append((number, start, end))
            text.replaceable.append(start < end and not segment.literal and bool(allowed[token]))
    return text


@lru_cache(maxsize=4)
def allowed_tokens(tokenizer: Any, vocabulary: int) -> Tensor:
    """The mask of token ids that may replace others, bool (vocabulary,): not special, and whole characters of a text.

    Found once a tokenizer: all of its tokens are decoded.
    """
    allowed = torch.zeros(vocabulary, dtype=torch.bool)
    known = min(vocabulary, len(tokenizer))
    texts = tokenizer.batch_decode([[token] for token in range(known)], clean_up_tokenization_spaces=False)
    allowed[:known] = torch.tensor([bool(text) and "\ufffd" not in text for text in texts])
    special = [*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()]
    allowed[[token for token in special if token < vocabulary]] = False
    return allowed


def perturb_texts(proposer: TokenProposer, texts: Sequence[EncodedText], ask: Perturb) -> list[list[PerturbationStep]]:
    """Replace `ask.tokens` tokens of every text, or all that may be where there are fewer: the steps, in order.

    `entropy`: the least likely of those that have not been replaced; `random`: drawn beforehand, and gone through from
    left to right, which changes nothing about their being random, and lets a causal model read on from the last one.
    """
    steps: list[list[PerturbationStep]] = [[] for _ in texts]
    left = [{at for at, free in enumerate(text.replaceable) if free} for text in texts]
    drawn = [_draw(text, ask) for text in texts] if ask.where == "random" else []
    at_once = ask.tokens if ask.when == "single_shot" else 1
    for first in range(0, ask.tokens, at_once):
        rows = [row for row in range(len(texts)) if left[row]]
        if drawn:
            chosen = {row: drawn[row][first : first + at_once] for row in rows}
        else:
            found = proposer.log_likelihoods(rows)
            chosen = {row: _lowest(value, left[row], at_once) for row, value in zip(rows, found, strict=True)}
        chosen = {row: places for row, places in chosen.items() if places}
        if not chosen:
            break
        for row, fills in proposer.propose(chosen).items():
            text, places = texts[row], chosen[row]
            proposer.replace(row, places, [fill.new for fill in fills])
            left[row] -= set(places)
            steps[row] += [
                PerturbationStep(*text.spans[at], text.ids[at], *fill) for at, fill in zip(places, fills, strict=True)
            ]
    return steps


def _lowest(values: Tensor, left: set[int], count: int) -> list[int]:
    """The `count` places of `left` with the lowest values, in order of place; of equal ones the first."""
    likely = values.tolist()
    return sorted(sorted(left, key=lambda at: (likely[at], at))[:count])


def _draw(text: EncodedText, ask: Perturb) -> list[int]:
    """Places to be replaced, from left to right: equal texts give equal places in any batch."""
    digest = hashlib.sha256(f"{ask.seed}\0{text.ids}".encode()).digest()
    free = [at for at, free in enumerate(text.replaceable) if free]
    generator = np.random.default_rng(int.from_bytes(digest[:8]))
    return sorted(generator.permutation(free)[: ask.tokens].tolist())
