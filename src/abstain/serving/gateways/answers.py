"""What a model's response holds: answers, what cannot be decided about, and what no reader reads.

Text that is not read as an answer, such as the reasoning before it, would be shown undecided: what it stands beside
cannot be decided about. What passes without a decision has no text for a reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from abstain.core.codes import Code
from abstain.core.errors import AbstainError

QUIET = frozenset(
    (
        *("role", "type", "id", "object", "index", "created", "model", "usage", "status", "signature"),
        *("finish_reason", "native_finish_reason", "stop_reason", "matched_stop", "thought_signature", "logprobs"),
        *("content_filter_results", "prompt_filter_results", "hook_results"),
        *("provider", "service_tier", "system_fingerprint", "weight_version"),
    )
)
"""What may stand beside an answer: programs read it, and no text in it is for the reader of the answer."""
QUIET_OF_RESPONSE = ("request_id", "metadata", "model_info")
"""The same, beside the choices of a response alone."""


class Passed(Enum):
    """Why something passes without a decision."""

    REQUEST = "request"
    TOOL_CALL = "tool_call"
    NO_TEXT = "no_text"


Answer = str | AbstainError | Passed
"""The text of an answer, or why it cannot be read, or why it passes."""


def read_answers(response: Any, text: str | None = None) -> list[Answer]:
    """The answers in a model's response of OpenAI's form: one a choice, or `text` where it has no choices.

    Text, or a number, at a name that is neither an answer's nor quiet makes unreadable what it stands beside: one
    choice, or all.

    Args:
        response: a chat completion or a completion.
        text: what the gateway found in it; it is one more answer where the choices do not hold it.
    """
    choices = choices_of(response)
    if name := _name_of_text(_without(response, "choices", *QUIET_OF_RESPONSE) if choices else response):
        return [_unreadable(name)] * max(1, len(choices))
    answers = [_read(choice) for choice in choices]
    read = "".join(answer for answer in answers if isinstance(answer, str))
    if text and not any(isinstance(answer, AbstainError) for answer in answers) and _packed(text) not in _packed(read):
        answers.append(text)
    return answers or [_passed(response)]


def choices_of(response: Any) -> list[Any]:
    """The choices of a model's response; none where it has none."""
    choices = response.get("choices") if isinstance(response, dict) else None
    return choices if isinstance(choices, list) else []


def quiet(value: Any) -> dict[str, Any]:
    """What of an object has no text for a reader, nor the tokens of one."""
    fields = value.items() if isinstance(value, dict) else ()
    return {name: one for name, one in fields if name != "logprobs" and not _name_of_text({name: one})}


def with_text(choice: Any, text: str) -> dict[str, Any]:
    """A choice with `text` in place of all that a reader may see."""
    if isinstance(choice, dict) and "text" in choice and "message" not in choice:
        return {**quiet(choice), "text": text}
    message = choice.get("message") if isinstance(choice, dict) else None
    return {**quiet(choice), "message": {"role": "assistant", **quiet(message), "content": text}}


def text_of(value: Any) -> str | None:
    """The text that `value` is or has: a message's content may be a list of parts. None where there is none."""
    if isinstance(value, list):
        parts = [part.get("text") for part in value if isinstance(part, dict)]
        value = "\n".join(part for part in parts if isinstance(part, str))
    return value.strip() or None if isinstance(value, str) else None


def _read(choice: Any) -> Answer:
    """What a choice of a chat completion, or of a completion, has for its reader."""
    if not isinstance(choice, dict):
        return _unreadable("choices")
    used = "message" if "message" in choice else "text"
    message = choice["message"] if used == "message" else {"content": choice.get("text")}
    if not isinstance(message, dict):
        return _unreadable("message")
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    if not all(isinstance(part, dict) and isinstance(part.get("text"), str | None) for part in parts):
        return _unreadable("content")
    beside = [_without(choice, used), _without(message, "content", "name"), *(_without(part, "text") for part in parts)]
    if name := _name_of_text(beside):
        return _unreadable(name)
    return text_of(content) or _passed(message)


def _unreadable(name: str) -> AbstainError:
    message = (
        f"answer: what it has at {name[:40]!r} cannot be decided about: have the model or its gateway leave it out"
    )
    return AbstainError(Code.INVALID_ROW, message)


def _passed(response: Any) -> Passed:
    called = isinstance(response, dict) and any(_is_call(name, value) for name, value in response.items())
    return Passed.TOOL_CALL if called else Passed.NO_TEXT


def _is_call(name: str, value: Any) -> bool:
    """Whether a field is a call of tools or of a function, as programs read it."""
    if name == "tool_calls" and isinstance(value, list):
        return bool(value) and all(isinstance(one, dict) and ("function" in one or "type" in one) for one in value)
    return name == "function_call" and isinstance(value, dict) and bool(value)


def _name_of_text(value: Any) -> str | None:
    """The name of a text or number in `value`, at any depth, that is not quiet; None where there is none."""
    left = [("response", value)]
    while left:
        name, value = left.pop()
        if isinstance(value, int | float) or (isinstance(value, str) and value.strip()):
            return name
        if isinstance(value, dict):
            left += [pair for pair in value.items() if pair[0] not in QUIET and not _is_call(*pair)]
        elif isinstance(value, list):
            left += [(name, item) for item in value]
    return None


def _without(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key not in names}


def _packed(text: str) -> str:
    return "".join(text.split())
