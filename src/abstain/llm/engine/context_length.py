"""Whether a pass fits the base model's window, without loading its weights, and mostly without tokenizing."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from abstain.llm.engine.loading import ModelRef, load_tokenizer, read_window
from abstain.llm.engine.prompts import Pass
from abstain.llm.engine.tokenization import encode_pass


class Window:
    """The most tokens that the model `ref` reads in one pass."""

    def __init__(self, ref: ModelRef) -> None:
        self._ref = ref

    @cached_property
    def _tokens(self) -> int | None:
        return read_window(self._ref)

    @cached_property
    def _tokenizer(self) -> Any:
        return load_tokenizer(self._ref)

    def excess(self, pass_: Pass, more: int = 0) -> str:
        """Why `pass_`, and `more` tokens after it, do not fit; empty where they do."""
        # A token is at least a byte: most passes are short enough for that alone to tell.
        at_most = sum(len(segment.text.encode()) for segment in pass_) + len(pass_) + more
        if self._tokens is None or at_most <= self._tokens:
            return ""
        length = len(encode_pass(self._tokenizer, pass_).ids) + more
        if length <= self._tokens:
            return ""
        return f"{length} tokens are more than the {self._tokens} that {self._ref.name} reads"
