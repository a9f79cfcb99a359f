"""Prompt layouts: named, versioned files that turn an interaction into a prompt of named text segments.

Notes:

* Segments are tokenized one by one and joined as ids, so a segment's token span is known exactly and equal segments
  are equal prefixes.
* Only the layout's own literals may contain special tokens. Text that people wrote (question, contexts, answer) is
  tokenized with special tokens split, so a document cannot end the model's turn.
* A layout's text is part of every feature's cache key: to change a layout, add a file.
* `{segment: eos}` is the tokenizer's own. An `eos` with a literal is for a model that was not trained to generate EOS:
  that text ends its answers, and the states are read there. No layout has a BOS: tokenization.py begins every prompt
  as the tokenizer begins a text.

`auto` and NAME-auto-v1 are the ChatML files qa-chatml-v1 and NAME-chatml-v1, spelled with the chat template of the base
model's tokenizer (chat_template.py).

Questions about a given answer are laid out in the same way, in `engine/questions`: `after-NAME` continues the prompt
of layout NAME, the others are whole prompts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import resources
from typing import Any

import yaml

from abstain.core.codes import Code
from abstain.core.errors import AbstainError


@dataclass(frozen=True)
class Segment:
    """A named piece of a prompt.

    Attributes:
        name: Name of the segment.
        text: Its text.
        literal: Whether the text may hold special tokens.
        eos: Whether it stands for the tokenizer's EOS.
    """

    name: str
    text: str = ""
    literal: bool = False
    eos: bool = False


PromptSegments = tuple[Segment, ...]
LayoutEntry = dict[str, Any]


@dataclass(frozen=True)
class Layout:
    """A prompt layout from `engine/layouts/NAME.yaml`, or a question from `engine/questions/NAME.yaml`.

    Attributes:
        name: Name of the file, without its suffix.
        source: Text of the file.
    """

    name: str
    source: str

    @cached_property
    def digest(self) -> str:
        """The sha256 (hex) of the layout's entries; comments do not count."""
        return hashlib.sha256(repr(self.entries).encode()).hexdigest()

    @cached_property
    def entries(self) -> list[LayoutEntry]:
        """One entry per segment."""
        entries: list[LayoutEntry] = yaml.safe_load(self.source)
        return entries

    @property
    def takes_contexts(self) -> bool:
        """Whether the layout has a place for retrieved chunks."""
        return any(entry.get("field") == "contexts" for entry in self.entries)

    def render(self, question: str, contexts: Sequence[str], answer: str | None) -> PromptSegments:
        """Render an interaction as segments, in order.

        Args:
            question: The question.
            contexts: Retrieved chunks.
            answer: The answer; with None the prompt ends where the base model begins to answer.

        Returns:
            The segments.
        """
        fields = {"question": question, "contexts": contexts, "answer": answer}
        segments: list[Segment] = []
        for entry in self.entries:
            name = entry["segment"]
            if answer is None and name == "answer":
                break
            if "literal" in entry:
                segments.append(Segment(name, entry["literal"], literal=True))
            elif name == "eos":
                segments.append(Segment(name, eos=True))
            else:
                value = fields[entry["field"]]
                text = value if isinstance(value, str) else entry["join"].join(value or ())
                segments.append(Segment(name, entry.get("lead", "") + text))
        return tuple(segments)

    def extract_answer(self, text: str) -> str:
        """Return the answer in generated text: up to the end-of-answer text, if this layout has one.

        Args:
            text: Generated text.

        Returns:
            The answer.
        """
        end = next((entry.get("literal") for entry in self.entries if entry["segment"] == "eos"), None)
        return text.partition(end)[0].strip() if end else text


@lru_cache
def load_layout(name: str, folder: str = "layouts") -> Layout:
    """Load a prompt layout or a question from its file; `load_model_layout` spells it for a base model.

    Args:
        name: Name of the file, without its suffix; with `auto`, the file is in ChatML.
        folder: `layouts`, or `questions` for a question.

    Returns:
        The layout.

    Raises:
        AbstainError: There is no such file. The message lists the available ones.
    """
    files = resources.files("abstain.llm.engine") / folder
    source_name = re.sub(r"\bauto$", "qa-auto-v1", name).replace("-auto-", "-chatml-")
    file = files / f"{source_name}.yaml"
    if not file.is_file():
        available = sorted(item.name.removesuffix(".yaml") for item in files.iterdir() if item.name.endswith(".yaml"))
        available = ["auto", *available] if folder == "layouts" else available
        raise AbstainError(Code.UNKNOWN_NAME, f"no prompt layout '{name}' in {files}: there are {', '.join(available)}")
    return Layout(name, file.read_text(encoding="utf-8"))
