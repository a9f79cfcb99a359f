"""Replacements in a text: numbers for the feature cache, a text for the base model, a diff for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from abstain.llm.engine.tokenization import TOKENIZER_LOCK


class PerturbationStep(NamedTuple):
    """One token replaced, in the order of replacement.

    `segment`: of the pass, from 0; `start`, `end`: characters of its text that went; `old`, `new`: token ids of the
    perturbation model; `before`, `after`: the log-likelihoods, in nats, that it gave to the old token and to the new
    one in that place, in the text as it was then.
    """

    segment: int
    start: int
    end: int
    old: int
    new: int
    before: float
    after: float

    @property
    def place(self) -> tuple[int, int]:
        """Its position in the pass, for sorting."""
        return self.segment, self.start


def to_rows(steps: Sequence[PerturbationStep]) -> Tensor:
    """(steps, 7), float32, which holds ids and places exactly up to 2**24."""
    return torch.tensor(steps, dtype=torch.float32).reshape(-1, len(PerturbationStep._fields))


def to_steps(rows: Tensor) -> list[PerturbationStep]:
    """The inverse of `to_rows`."""
    return [PerturbationStep(*map(int, row[:5]), *row[5:]) for row in rows.tolist()]


class DiffPart(NamedTuple):
    """A part of a perturbed text: `same` in both, `old` gone, or `new` come."""

    kind: Literal["same", "old", "new"]
    text: str


@dataclass(frozen=True)
class TokenTexts:
    """The texts of a tokenizer's tokens, as they stand after other tokens.

    `spaceless`: spaces between words are no part of tokens (WordPiece), so a replacement leaves those that were there.
    `prefixed`: a text begins as if there were a space before it, and all spaces in a row are one (T5).
    """

    tokenizer: Any
    anchor: tuple[int, ...]
    spaceless: bool
    prefixed: bool

    @classmethod
    def from_tokenizer(cls, tokenizer: Any) -> TokenTexts:
        with TOKENIZER_LOCK:
            first, *_ = ids = tuple(tokenizer.encode("a", add_special_tokens=False))
            # Not a comma: some tokenizers of this kind take the space before one away again.
            after = tokenizer.encode("a;", add_special_tokens=False)[-1]
        plain = cls(tokenizer, ids, False, False)
        spaceless = plain.text(after).startswith(" ")
        return cls(tokenizer, ids, spaceless, not spaceless and plain.text(first).startswith(" "))

    def text(self, token: int) -> str:
        """The text that `token` adds; empty where it cannot be determined from the token alone."""
        before, after = self._decode(self.anchor), self._decode((*self.anchor, token))
        return after[len(before) :] if after.startswith(before) else ""

    def replacement(self, old: str, token: int, first: bool) -> str:
        """The text that replaces the characters `old`, perhaps the `first` of a text, if `token` takes their place."""
        text = self.text(token)
        if self.spaceless:
            return text.lstrip()
        lead = old[: len(old) - len(old.lstrip())]
        if self.prefixed and text.startswith(" ") and (lead or first) and lead != old:
            return lead + text[1:]
        return text

    def reproduces(self, text: str) -> bool:
        """Whether the tokenizer writes back what it read."""
        with TOKENIZER_LOCK:
            ids = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        return self._decode(ids) == text

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))


def diff(text: str, segment: int, steps: Sequence[PerturbationStep], pieces: TokenTexts) -> list[DiffPart]:
    """`text`, which was segment number `segment` of a perturbed pass, cut into what stayed, what went and what came."""
    found: list[DiffPart] = []
    at = 0
    for step in sorted((step for step in steps if step.segment == segment), key=lambda step: step.place):
        old = text[step.start : step.end]
        found += [DiffPart("same", text[at : step.start])] if at < step.start else []
        found += [DiffPart("old", old), DiffPart("new", pieces.replacement(old, step.new, step.start == 0))]
        at = step.end
    return [*found, DiffPart("same", text[at:])] if at < len(text) else found


def apply_steps(text: str, segment: int, steps: Sequence[PerturbationStep], pieces: TokenTexts) -> str:
    """`text` with its replacements."""
    return "".join(piece.text for piece in diff(text, segment, steps, pieces) if piece.kind != "old")


def format_diff(parts: Sequence[DiffPart]) -> str:
    """A diff as one line of text: [-old-]{+new+}, as `git diff --word-diff` writes it."""
    marks = {"same": ("", ""), "old": ("[-", "-]"), "new": ("{+", "+}")}
    return "".join(marks[part.kind][0] + part.text + marks[part.kind][1] for part in parts)
