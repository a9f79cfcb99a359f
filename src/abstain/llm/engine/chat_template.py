"""Layouts in the tokenizer's own chat template: `llm.layout: auto`.

A layout in ChatML is a list of turns, so it can be spelled with any template: rendered once with a private character
for each text that people write, and cut there into the entries that a layout's file has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from jinja2 import TemplateError

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.engine.prompts import Layout, LayoutEntry

_TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>|\Z)", re.DOTALL)
_WRITTEN = "\ue000"
_FIXED_DATE = (
    "{% macro strftime_now(format) %}{{ format | replace('%d', '26') | replace('%b', 'Jul') | replace('%B', 'July') "
    "| replace('%m', '07') | replace('%Y', '2024') }}{% endmacro %}"
)
"""Begins a template: with the real date, a layout would be another one every day."""
_Messages = list[dict[str, str]]
_USER, _ASSISTANT = ({"role": role, "content": _WRITTEN} for role in ("user", "assistant"))


def spell_layout(layout: Layout, tokenizer: Any, after: Layout | None = None) -> Layout:
    """Spell a layout in ChatML with a tokenizer's chat template.

    Args:
        layout: The layout.
        tokenizer: The tokenizer.
        after: What precedes the layout; None if it is a whole prompt.

    Returns:
        The layout with the same segments.

    Raises:
        AbstainError: There is no chat template, or it cannot write these turns.
    """
    previous = after.entries if after else []
    entries = _spell([*previous, *layout.entries], tokenizer)[len(previous) :]
    return Layout(layout.name, yaml.safe_dump(entries, sort_keys=False))


def apply_chat_tokens(tokenizer: Any, folder: Path) -> None:
    """Let a tokenizer treat the tokens of its chat template as such.

    A marker of the template, such as Qwen's `<think>`, is a special token, so that texts that people write are read
    without it. EOS is the token that ends an answer in the template, if the model stops there.

    Args:
        tokenizer: The tokenizer.
        folder: Folder of the model.
    """
    if not tokenizer.chat_template:
        return
    markers = [
        token.content
        for token in tokenizer.added_tokens_decoder.values()
        if not token.special and token.content.strip() and token.content in str(tokenizer.chat_template)
    ]
    tokenizer.add_tokens(markers, special_tokens=True)
    file = folder / "generation_config.json"
    stops = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id") if file.is_file() else None
    with suppress(AbstainError):  # a template that writes no answer
        end = _split_end(_render([_USER, _ASSISTANT], tokenizer)[-1], tokenizer)[0]
        if tokenizer.get_added_vocab().get(end, -1) in (stops if isinstance(stops, list) else [stops]):
            tokenizer.eos_token = end


def _spell(entries: Sequence[LayoutEntry], tokenizer: Any) -> list[LayoutEntry]:
    text = "".join(
        _WRITTEN if "field" in entry else "<|im_end|>" if entry["segment"] == "eos" else entry["literal"]
        for entry in entries
    )
    messages = [{"role": role, "content": content or _WRITTEN} for role, content in _TURN.findall(text)]
    pieces = iter(_render(messages, tokenizer))
    lead, spelled = "", []
    for entry in entries:
        if "field" in entry:
            spelled.append({**entry, "lead": lead} if lead else entry)
        elif entry["segment"] == "eos":
            end, rest = _split_end(next(pieces), tokenizer)
            pieces = chain([rest], pieces)
            spelled.append(entry if end in ("", tokenizer.eos_token) else {**entry, "literal": end})
        else:
            # A space at the end would be a token of its own, which no model was trained on.
            piece = next(pieces)
            literal = piece.rstrip(" ")
            lead = piece[len(literal) :]
            spelled.append({**entry, "literal": literal})
    return spelled


def _split_end(text: str, tokenizer: Any) -> tuple[str, str]:
    """Split what follows an answer into the text that ends it, a token if it begins with one, and the rest."""
    ending = text.lstrip()
    tokens = [token.content for token in tokenizer.added_tokens_decoder.values() if ending.startswith(token.content)]
    end = max(tokens, key=len) if tokens else next(iter(ending.split()), "")
    return end, ending[len(end) :] if end else text


def _render(messages: _Messages, tokenizer: Any) -> list[str]:
    """Return the texts around the written ones. The system's turn joins the user's if the template has none."""
    if tokenizer.chat_template is None:
        raise AbstainError(
            Code.MODEL_UNSUITABLE,
            f"the tokenizer of {tokenizer.name_or_path} has no chat template: set llm.layout to a file in "
            "src/abstain/llm/engine/layouts instead of auto",
        )
    reason = ""
    for turns in (messages, _fold_system(messages)):
        contents = "".join(turn["content"] for turn in turns)
        try:
            text: str = tokenizer.apply_chat_template(
                turns, chat_template=_FIXED_DATE + tokenizer.get_chat_template(), tokenize=False, enable_thinking=False
            )
        except (TemplateError, TypeError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            continue
        parts = [part.strip() for turn in turns for part in turn["content"].split(_WRITTEN)]
        if text.count(_WRITTEN) == contents.count(_WRITTEN) and all(part in text for part in parts):
            return text.split(_WRITTEN)
        reason = "it does not write every text once"
    raise AbstainError(
        Code.MODEL_UNSUITABLE,
        f"the chat template of {tokenizer.name_or_path} makes no layout ({reason}): set llm.layout to a file in "
        "src/abstain/llm/engine/layouts instead of auto",
    )


def _fold_system(messages: _Messages) -> _Messages:
    if messages[0]["role"] != "system":
        return messages
    system, user, *rest = messages
    return [{**user, "content": f"{system['content']}\n\n{user['content']}"}, *rest]
