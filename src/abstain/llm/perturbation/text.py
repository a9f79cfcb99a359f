"""Replacements in a text: numbers for the feature cache, a text for the base model, a diff for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from abstain.llm.engine.tokenization import TOKENIZER_LOCK


class PerturbationStep(NamedTuple):
    """The replacement of one token.

    Log-likelihoods are those of the perturbation model in that place, in the text as it was then.

    Attributes:
        segment: Index of the segment in the prompt.
        start: Index of the first character that is replaced, in the segment's text.
        end: Index past the last one.
        old: Token id of the old token, of the perturbation model.
        new: Token id of the new token.
        old_log_likelihood: Log-likelihood of the old token, in nats.
        new_log_likelihood: Log-likelihood of the new token, in nats.
    """

    segment: int
    start: int
    end: int
    old: int
    new: int
    old_log_likelihood: float
    new_log_likelihood: float

    @property
    def place(self) -> tuple[int, int]:
        """The position in the prompt, for sorting."""
        return self.segment, self.start


def to_rows(steps: Sequence[PerturbationStep]) -> Tensor:
    """Convert replacements to rows of the feature cache.

    Args:
        steps: Replacements of one text.

    Returns:
        (replacements, 7), float32, which holds ids and positions exactly up to 2**24.
    """
    return torch.tensor(steps, dtype=torch.float32).reshape(-1, len(PerturbationStep._fields))


def to_steps(rows: Tensor) -> list[PerturbationStep]:
    """Convert rows of the feature cache to replacements; the inverse of `to_rows`.

    Args:
        rows: (replacements, 7).

    Returns:
        The replacements.
    """
    return [PerturbationStep(*map(int, row[:5]), *row[5:]) for row in rows.tolist()]


class DiffPart(NamedTuple):
    """A part of a perturbed text.

    Attributes:
        kind: `same` if it is in both texts, `old` if it was removed, `new` if it was added.
        text: Its text.
    """

    kind: Literal["same", "old", "new"]
    text: str


@dataclass(frozen=True)
class TokenTexts:
    """The texts of a tokenizer's tokens, as they stand after other tokens.

    Attributes:
        tokenizer: The tokenizer.
        anchor: Token ids after which a token is decoded.
        spaceless: Whether spaces between words are no part of tokens (WordPiece). A replacement then leaves them as
            they were.
        prefixed: Whether a text begins as if there were a space before it, and a run of spaces counts as one (T5).
    """

    tokenizer: Any
    anchor: tuple[int, ...]
    spaceless: bool
    prefixed: bool

    @classmethod
    def from_tokenizer(cls, tokenizer: Any) -> TokenTexts:
        """Find out how a tokenizer treats spaces.

        Args:
            tokenizer: The tokenizer.

        Returns:
            The texts of its tokens.
        """
        with TOKENIZER_LOCK:
            first, *_ = ids = tuple(tokenizer.encode("a", add_special_tokens=False))
            # Not a comma: some tokenizers of this kind take the space before one away again.
            semicolon = tokenizer.encode("a;", add_special_tokens=False)[-1]
        plain = cls(tokenizer, ids, False, False)
        spaceless = plain.decode_token(semicolon).startswith(" ")
        return cls(tokenizer, ids, spaceless, not spaceless and plain.decode_token(first).startswith(" "))

    def decode_token(self, token: int) -> str:
        """Return the text that a token adds; empty if it cannot be determined from the token alone.

        Args:
            token: Token id.

        Returns:
            The text.
        """
        anchor_text, full_text = self._decode(self.anchor), self._decode((*self.anchor, token))
        return full_text[len(anchor_text) :] if full_text.startswith(anchor_text) else ""

    def make_replacement(self, old: str, token: int, first: bool) -> str:
        """Return the text that replaces some characters if a token takes their place.

        Args:
            old: The characters.
            token: Token id.
            first: Whether the characters are the first of a text.

        Returns:
            The text.
        """
        text = self.decode_token(token)
        if self.spaceless:
            return text.lstrip()
        lead = old[: len(old) - len(old.lstrip())]
        if self.prefixed and text.startswith(" ") and (lead or first) and lead != old:
            return lead + text[1:]
        return text

    def can_reproduce(self, text: str) -> bool:
        """Return whether the tokenizer decodes a text to itself.

        Args:
            text: The text.

        Returns:
            Whether the decoded text is equal.
        """
        with TOKENIZER_LOCK:
            ids = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        return self._decode(ids) == text

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))


def make_diff(text: str, segment: int, steps: Sequence[PerturbationStep], token_texts: TokenTexts) -> list[DiffPart]:
    """Cut a perturbed text into unchanged, removed and added parts.

    Args:
        text: The text before perturbation.
        segment: Index of its segment in the prompt.
        steps: Replacements in the prompt.
        token_texts: Texts of the perturbation model's tokens.

    Returns:
        The parts, in order.
    """
    parts: list[DiffPart] = []
    position = 0
    for step in sorted((step for step in steps if step.segment == segment), key=lambda step: step.place):
        old = text[step.start : step.end]
        parts += [DiffPart("same", text[position : step.start])] if position < step.start else []
        parts += [DiffPart("old", old), DiffPart("new", token_texts.make_replacement(old, step.new, step.start == 0))]
        position = step.end
    return [*parts, DiffPart("same", text[position:])] if position < len(text) else parts


def apply_steps(text: str, segment: int, steps: Sequence[PerturbationStep], token_texts: TokenTexts) -> str:
    """Apply replacements to a text.

    Args:
        text: The text before perturbation.
        segment: Index of its segment in the prompt.
        steps: Replacements in the prompt.
        token_texts: Texts of the perturbation model's tokens.

    Returns:
        The perturbed text.
    """
    return "".join(part.text for part in make_diff(text, segment, steps, token_texts) if part.kind != "old")


def format_diff(parts: Sequence[DiffPart]) -> str:
    """Format a diff as one line of text: [-old-]{+new+}, as `git diff --word-diff` writes it.

    Args:
        parts: Parts of the diff.

    Returns:
        The line.
    """
    marks = {"same": ("", ""), "old": ("[-", "-]"), "new": ("{+", "+}")}
    return "".join(marks[part.kind][0] + part.text + marks[part.kind][1] for part in parts)
