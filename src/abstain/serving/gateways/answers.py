"""Parts of a model's response: answers, parts that cannot be decided about, and fields without text for a reader.

A choice with text that is not recognized as an answer cannot be decided about: otherwise that text would be shown
undecided. A message's reasoning is no part of the answer, and is left out of what is delivered. Only what has no text
for a reader passes without a decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.message_text import REASONING_FIELDS, REASONING_TYPES, extract_text
from abstain.serving.decision import Decision

QUIET_FIELDS = frozenset(
    (
        *("role", "type", "id", "object", "index", "created", "model", "usage", "status", "signature"),
        *("finish_reason", "native_finish_reason", "stop_reason", "matched_stop", "thought_signature", "logprobs"),
        *("content_filter_results", "prompt_filter_results", "hook_results"),
        *("provider", "service_tier", "system_fingerprint", "weight_version"),
    )
)
"""Fields that may accompany an answer: programs read them, and the reader of the answer sees no text of them."""
QUIET_RESPONSE_FIELDS = ("request_id", "metadata", "model_info")
"""Further such fields, only next to the choices of a response."""


class PassReason(Enum):
    """Why something passes without a decision."""

    REQUEST = "request"
    TOOL_CALL = "tool_call"
    NO_TEXT = "no_text"


Answer = str | AbstainError | PassReason
"""The text of an answer, or why it cannot be read, or why it passes."""


def read_answers(response: Any, text: str | None = None) -> list[Answer]:
    """Read the answers in a model's response of OpenAI's form.

    A text or number in a field that is neither an answer nor quiet makes unreadable what it belongs to: one choice, or
    all.

    Args:
        response: A chat completion or a completion.
        text: Text that the gateway found in it; it is one more answer if the choices do not contain it.

    Returns:
        One answer per choice, or `text` if there are no choices.
    """
    choices = get_choices(response)
    if name := _find_text_field(_drop_fields(response, "choices", *QUIET_RESPONSE_FIELDS) if choices else response):
        return [_make_unreadable_error(name)] * max(1, len(choices))
    answers = [_read_choice(choice) for choice in choices]
    read = "".join(answer for answer in answers if isinstance(answer, str))
    if (
        text
        and not any(isinstance(answer, AbstainError) for answer in answers)
        and _remove_whitespace(text) not in _remove_whitespace(read)
    ):
        answers.append(text)
    return answers or [_get_pass_reason(response)]


def get_choices(response: Any) -> list[Any]:
    """Return the choices of a model's response; empty if it has none."""
    choices = response.get("choices") if isinstance(response, dict) else None
    return choices if isinstance(choices, list) else []


def select_quiet_fields(value: Any) -> dict[str, Any]:
    """Return the fields of an object that have neither text for a reader nor its tokens."""
    fields = value.items() if isinstance(value, dict) else ()
    return {
        name: field_value
        for name, field_value in fields
        if name != "logprobs" and not _find_text_field({name: field_value})
    }


def clean_choice(choice: Any, decision: Decision | None) -> Any:
    """Return a choice that is shown without its reasoning; the choice itself if it has none.

    Args:
        choice: The choice.
        decision: The decision about its answer; None if it passed without any.
    """
    message = choice.get("message") if isinstance(choice, dict) else None
    content = message.get("content") if isinstance(message, dict) else None
    text = decision.cleaned_answer if decision else None
    if text is None and not (_has_reasoning(message) or any(map(_has_reasoning, _to_parts(content)))):
        return choice
    return replace_text(choice, text or extract_text(content, "assistant") or "")


def replace_text(choice: Any, text: str) -> dict[str, Any]:
    """Replace everything in a choice that a reader may see.

    Args:
        choice: The choice.
        text: The new text.

    Returns:
        The choice with `text` and its quiet fields.
    """
    if isinstance(choice, dict) and "text" in choice and "message" not in choice:
        return {**select_quiet_fields(choice), "text": text}
    message = choice.get("message") if isinstance(choice, dict) else None
    return {
        **select_quiet_fields(choice),
        "message": {"role": "assistant", **select_quiet_fields(message), "content": text},
    }


def _read_choice(choice: Any) -> Answer:
    """Return the answer in a choice of a chat completion or of a completion."""
    if not isinstance(choice, dict):
        return _make_unreadable_error("choices")
    content_key = "message" if "message" in choice else "text"
    message = choice["message"] if content_key == "message" else {"content": choice.get("text")}
    if not isinstance(message, dict):
        return _make_unreadable_error("message")
    text_name = "content" if extract_text(message.get("content"), "assistant") else "refusal"
    parts = [part for part in _to_parts(message.get(text_name)) if not _has_reasoning(part)]
    if not all(isinstance(part, dict) and isinstance(part.get("text"), str | None) for part in parts):
        return _make_unreadable_error(text_name)
    siblings = [
        _drop_fields(choice, content_key),
        _drop_fields(message, text_name, "name", *REASONING_FIELDS),
        *(_drop_fields(part, "text" if part.get("text") else "refusal") for part in parts),
    ]
    if name := _find_text_field(siblings):
        return _make_unreadable_error(name)
    return extract_text(parts, "assistant") or _get_pass_reason(message)


def _to_parts(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [{"text": content}]


def _has_reasoning(value: Any) -> bool:
    """Return whether a message, or a part of it, is or has the model's reasoning."""
    return isinstance(value, dict) and (
        value.get("type") in REASONING_TYPES or any(value.get(name) for name in REASONING_FIELDS)
    )


def _make_unreadable_error(name: str) -> AbstainError:
    message = (
        f"answer: what it has at {name[:40]!r} cannot be decided about: have the model or its gateway leave it out"
    )
    return AbstainError(Code.INVALID_ROW, message)


def _get_pass_reason(response: Any) -> PassReason:
    is_call = isinstance(response, dict) and any(_is_call(name, value) for name, value in response.items())
    return PassReason.TOOL_CALL if is_call else PassReason.NO_TEXT


def _is_call(name: str, value: Any) -> bool:
    """Return whether a field is a call of tools or of a function, as programs read it."""
    if name == "tool_calls" and isinstance(value, list):
        return bool(value) and all(isinstance(call, dict) and ("function" in call or "type" in call) for call in value)
    return name == "function_call" and isinstance(value, dict) and bool(value)


def _find_text_field(value: Any) -> str | None:
    """Return the name of a text or number in `value`, at any depth, that is not quiet; None if there is none."""
    stack = [("response", value)]
    while stack:
        name, value = stack.pop()
        if isinstance(value, int | float) or (isinstance(value, str) and value.strip()):
            return name
        if isinstance(value, dict):
            stack += [pair for pair in value.items() if pair[0] not in QUIET_FIELDS and not _is_call(*pair)]
        elif isinstance(value, list):
            stack += [(name, item) for item in value]
    return None


def _drop_fields(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key not in names}


def _remove_whitespace(text: str) -> str:
    return "".join(text.split())
