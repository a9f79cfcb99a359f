"""Prompts as token ids, with the span of every segment, and whether they fit the base model's window."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.engine.loading import ModelRef, load_tokenizer, read_context_length
from abstain.llm.engine.prompts import PromptSegments

TOKENIZER_LOCK = threading.Lock()
"""A tokenizer keeps how it splits special tokens as a state: another thread's choice must not come in between."""


@dataclass(frozen=True)
class EncodedPrompt:
    """`ids`: the pass as token ids; `spans`: segment name -> (first, past the last) index into `ids`."""

    ids: list[int]
    spans: dict[str, tuple[int, int]]

    def span(self, *segments: str) -> tuple[int, int]:
        """The span from the first to past the last of adjacent `segments`."""
        return self.spans[segments[0]][0], self.spans[segments[-1]][1]


def encode_prompt(tokenizer: Any, pass_: PromptSegments) -> EncodedPrompt:
    """Tokenize `pass_` segment by segment.

    A literal keeps its special tokens; in text that people wrote they are split into plain characters, so it
    cannot end a turn. A segment named `bos` may be empty (`get_bos_tokens`). Raises `AbstainError` when the pass needs
    an EOS token that the tokenizer does not have.
    """
    ids: list[int] = []
    spans: dict[str, tuple[int, int]] = {}
    for segment in pass_:
        if segment.eos:
            if tokenizer.eos_token_id is None:
                raise AbstainError(
                    Code.MODEL_UNSUITABLE,
                    "the base model's tokenizer has no EOS token: choose a layout without an eos segment",
                )
            new = [tokenizer.eos_token_id]
        elif segment.bos:
            new = get_bos_tokens(tokenizer)
        else:
            with TOKENIZER_LOCK:
                new = tokenizer.encode(segment.text, add_special_tokens=False, split_special_tokens=not segment.literal)
        spans[segment.name] = (len(ids), len(ids) + len(new))
        ids += new
    return EncodedPrompt(ids, spans)


def get_bos_tokens(tokenizer: Any) -> list[int]:
    """BOS, where the tokenizer itself begins a text with it; empty otherwise.

    That a tokenizer has a BOS does not mean that its model was trained to see one first: SmolLM2's is `<|im_start|>`,
    with which it reads plain text worse than without.
    """
    with TOKENIZER_LOCK:
        first: list[int] = tokenizer.encode("")[:1]
    return first if first == [tokenizer.bos_token_id] else []


class ContextWindow:
    """The most tokens that the model `ref` reads in one pass."""

    def __init__(self, ref: ModelRef) -> None:
        self._ref = ref

    @cached_property
    def _tokens(self) -> int | None:
        return read_context_length(self._ref)

    @cached_property
    def _tokenizer(self) -> Any:
        return load_tokenizer(self._ref)

    def describe_overflow(self, pass_: PromptSegments, more: int = 0) -> str:
        """Why `pass_`, and `more` tokens after it, do not fit; empty where they do."""
        # A token is at least a byte: for most passes the byte count alone decides.
        at_most = sum(len(segment.text.encode()) for segment in pass_) + len(pass_) + more
        if self._tokens is None or at_most <= self._tokens:
            return ""
        length = len(encode_prompt(self._tokenizer, pass_).ids) + more
        if length <= self._tokens:
            return ""
        return f"{length} tokens are more than the {self._tokens} that {self._ref.name} reads"
