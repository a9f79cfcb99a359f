"""Texts by people and other programs: how they are shown, and names and refusals that are recognized in them.

Foreign text must not control a terminal: escape sequences move the cursor, rewrite lines, or fill the clipboard.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Literal

from abstain.core.markdown import UNPRINTABLE

PSEUDONYM = re.compile(r"[ur]-[0-9a-f]{20}")
"""The pseudonym of a user (`u-`) or a reviewer (`r-`), as ingest generates it."""
WITHHELD_TEXT = "I could not find an answer that I am sure enough of. Please ask a colleague who knows the subject."
"""The default text that replaces a withheld answer."""
ReasoningMarker = Literal["think", "details", "channel"]
"""How a model marks its reasoning within an answer.

"think": `<think>`, `<thinking>` and `<reasoning>`. "details": `<details type="reasoning">` of Open WebUI, also of the
types tool_calls and code_interpreter. "channel": every `<|channel|>` of gpt-oss but `final`.
"""
_SHORT_NAME_CHARS = 10
_LINE_BREAK = re.compile("\r\n?")


def replace_control_characters(text: str) -> str:
    """Return `text` with its lines and tabs, and U+FFFD for every other character that cannot be printed."""
    return UNPRINTABLE.sub("\ufffd", _LINE_BREAK.sub("\n", text))


def shorten_name(person: str) -> str:
    """Cut a pseudonym to its first ten characters, which a search of data/ finds; return any other name unchanged."""
    return person[:_SHORT_NAME_CHARS] if PSEUDONYM.fullmatch(person) else person


def find_nearest_name(word: str, valid: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Find the valid name that is most similar to a word.

    Args:
        word: The unknown word.
        valid: Valid names.
        cutoff: Lowest similarity, in [0, 1].

    Returns:
        The name, or None if no similarity reaches `cutoff`.
    """
    matches = difflib.get_close_matches(word, list(valid), n=1, cutoff=cutoff)
    return matches[0] if matches else None


def suggest_name(word: str, valid: Iterable[str], names: str = "valid", cutoff: float = 0.6) -> str:
    """Return the end of a message about an unknown word: the nearest valid name, otherwise all of them.

    Args:
        word: The unknown word.
        valid: Valid names.
        names: Word for the valid names in the message.
        cutoff: Lowest similarity of the nearest name, in [0, 1].

    Returns:
        The end of the message.
    """
    valid = list(valid)
    nearest_name = find_nearest_name(word, valid, cutoff)
    return f"did you mean '{nearest_name}'?" if nearest_name else f"{names}: {', '.join(valid)}"


def is_refusal(answer: str, beginnings: Sequence[str]) -> bool:
    """Return whether an answer is a fixed refusal ("I don't know what ...", "[Unanswerable ...]"; `labels.refusals`).

    It is recognized by its beginning, because assistants refuse by templates whose ends often vary. Case, white space
    and the form of apostrophes do not matter.

    Args:
        answer: The answer.
        beginnings: Beginnings of refusals. They are texts and not regular expressions, in which the bracket of
            "[Unanswerable" would silently mean something else.
    """
    return _normalize(answer).startswith(tuple(map(_normalize, beginnings)))


def is_whole_refusal(answer: str, refusals: Sequence[str]) -> bool:
    """Return whether an answer says nothing but one of `refusals`; a full stop does not matter."""
    return _normalize(answer).rstrip(".!") in {_normalize(refusal).rstrip(".!") for refusal in refusals}


def _normalize(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().replace("\u2019", "'").split())
