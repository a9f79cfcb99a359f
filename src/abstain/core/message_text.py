"""The text of a question, an answer or a context, in whatever form a model, framework or gateway holds it.

A form is a text, a part or block of a message, a message, an object that has one of these, or a list of them.
Reasoning that a model writes into its answer is no part of the answer: `remove_reasoning` cuts it out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Literal

from abstain.core.contracts import Interaction
from abstain.core.text import ReasoningMarker

Role = Literal["user", "assistant"]
REASONING_FIELDS = ("reasoning", "reasoning_content", "reasoning_details", "thinking", "thinking_blocks")
"""Fields of a message that hold its reasoning, apart from the answer."""
REASONING_TYPES = ("thinking", "redacted_thinking", "reasoning")
"""Types of the parts of a message that hold its reasoning."""

_ROLE_NAMES = {"user": ("user", "human"), "assistant": ("assistant", "ai", "model")}
_ALL_ROLES = (*_ROLE_NAMES["user"], *_ROLE_NAMES["assistant"], "system", "developer", "tool", "function")
_TEXT_FIELDS = ("content", "text", "page_content", "refusal", "parts", "messages", "message", "response")
_NO_ANSWER_TYPES = (
    *(*REASONING_TYPES, "tool_use", "tool_call", "tool_result", "function_call", "server_tool_use"),
    *("web_search_tool_result", "image", "image_url", "input_image", "audio", "input_audio"),
)
"""Types of parts that hold no text of the question or answer itself."""
_MAX_DEPTH = 8
"""How deep a text may be nested."""

_FENCE = r"(?P<fence>^[ ]{0,3}(?P<ticks>`{3,}|~{3,})[^\n]*\n.*?(?:^[ ]{0,3}(?P=ticks)[`~]*[ ]*$|\Z)|`[^`\n]+`)"
_STARTS = {
    "think": r"<(?P<close>/?)(?P<tag>think|thinking|reasoning)>",
    "details": r"<(?P<details>details)\b(?=[^>]{0,500}\btype=[\"']?(?:reasoning|tool_calls|code_interpreter)\b)[^>]*>",
    "channel": r"(?:<\|start\|>\s*assistant\s*)?<\|channel\|>(?P<channel>\w+)[^<]*<\|message\|>",
}
_CHANNEL_END = re.compile(r"<\|(?:end|return|call)\|>|(?=<\|start\|>|<\|channel\|>)|\Z")


def extract_text(value: Any, role: Role = "user") -> str | None:
    """Extract the text of a question, an answer or a context.

    Blocks of an answer are continued by one another, as they are when it is streamed; parts of anything else are
    separate lines. Of several messages the last one of the role is meant.

    Args:
        value: A text, part, message or other object with a text, or a list of them.
        role: Whose text it is; a context is the user's.

    Returns:
        The text without white space around it; None if there is none.
    """
    return (_join_texts(value, role, _MAX_DEPTH) or "").strip() or None


def _join_texts(value: Any, role: Role, depth: int) -> str | None:
    if isinstance(value, str):
        return value
    if value is None or depth == 0:
        return None
    if isinstance(value, list | tuple):
        if any(_get_role(item) for item in value):
            message = next((item for item in reversed(value) if _get_role(item) in _ROLE_NAMES[role]), None)
            return _join_texts(message, role, depth - 1)
        texts = [_join_texts(item, role, depth - 1) for item in value]
        return ("" if role == "assistant" else "\n").join(filter(None, texts))
    if _get(value, "type") in _NO_ANSWER_TYPES:
        return None
    for name in _TEXT_FIELDS:
        if text := _join_texts(_get(value, name), role, depth - 1):
            return text
    return None


def _get(value: Any, name: str) -> Any:
    """Return the field `name` of a JSON object or of another object that holds texts; None if there is none."""
    if isinstance(value, Mapping):
        return value.get(name)
    field = getattr(value, name, None)
    return None if callable(field) and not isinstance(field, str) else field


def _get_role(value: Any) -> str | None:
    """Return the role of a message, as its framework names it; None if `value` is no message."""
    if isinstance(value, str | None):
        return None
    role = _get(value, "role") or _get(value, "type")
    role = getattr(role, "value", role)  # of an enumeration
    return role if isinstance(role, str) and role in _ALL_ROLES else None


def cut_reasoning(interaction: Interaction, markers: Collection[ReasoningMarker]) -> Interaction:
    """Cut the model's reasoning out of an answer.

    Args:
        interaction: The answer as it came.
        markers: The markers that are looked for.

    Returns:
        The answer without it, and without the log-probabilities of its tokens, which include the reasoning's;
        `interaction` itself if there is none.

    Raises:
        ValueError: The reasoning does not end, or nothing else is in the answer.
    """
    answer = remove_reasoning(interaction.answer, markers)
    if not answer:
        raise ValueError("it is nothing but reasoning")
    if answer == interaction.answer:
        return interaction
    return interaction.model_copy(update={"answer": answer, "token_log_probs": None})


def remove_reasoning(text: str, markers: Collection[ReasoningMarker]) -> str:
    """Cut the reasoning out of an answer; markers within code are text.

    Args:
        text: The answer.
        markers: The markers that are looked for.

    Returns:
        The answer without its reasoning; `text` itself if it has none.

    Raises:
        ValueError: The reasoning does not end, so that nothing says where the answer begins.
    """
    if not markers or "<" not in text:
        return text
    pattern = re.compile("|".join((_FENCE, *(_STARTS[name] for name in markers))), re.MULTILINE | re.DOTALL | re.I)
    pieces: list[str] = []
    position, is_cut = 0, False
    while match := pattern.search(text, position):
        fields = match.groupdict()
        if fields["fence"] is not None:
            pieces.append(text[position : match.end()])
            position = match.end()
            continue
        is_cut = True
        pieces.append(text[position : match.start()])
        if fields.get("channel"):
            end = _CHANNEL_END.search(text, match.end())
            assert end is not None  # \Z matches
            if fields["channel"].lower() == "final":
                pieces.append(text[match.end() : end.start()])
            elif end.start() == len(text):
                raise ValueError(f"its reasoning ({match[0]}) does not end")
            position = end.end()
        elif fields.get("close"):  # a prompt that ends with the opening tag leaves the model only this one to write
            pieces, position = [], match.end()
        else:
            position = _find_closing_tag(text, match.end(), fields.get("tag") or fields["details"])
    return "".join((*pieces, text[position:])).strip() if is_cut else text


def _find_closing_tag(text: str, start: int, tag: str) -> int:
    """Return where the element ends whose content begins at `start`. Raises `ValueError` if it does not."""
    depth = 1
    for match in re.compile(rf"<(?P<close>/?){tag}\b[^>]{{0,500}}>", re.IGNORECASE).finditer(text, start):
        depth += -1 if match["close"] else 1
        if depth == 0:
            return match.end()
    raise ValueError(f"its reasoning (<{tag}>) does not end")
