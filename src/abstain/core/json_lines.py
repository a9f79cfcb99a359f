"""Checks of JSON Lines that a JSON parser does not make: duplicate keys, and files of another format.

Notes:

* Of a duplicate key, parsers silently keep the last value, so one of the two is lost: such a row is refused.
* A JSON array, or an object over several lines, breaks at every line. It is recognised by its first value, before its
  lines are taken for broken rows.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from pydantic_core import from_json

ARRAY = "is a JSON array and not JSON Lines: write one object a line, as `jq -c '.[]'` does"
OBJECT = "holds a JSON object over several lines and is not JSON Lines: write one object a line, as `jq -c .` does"


def repeated_keys(text: str) -> tuple[str, ...]:
    """The keys that one object of `text`, at any depth, has more than once; empty where `text` is not JSON."""
    found: dict[str, None] = {}

    def look(pairs: list[tuple[str, Any]]) -> None:
        if len(dict(pairs)) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            found.update(dict.fromkeys(key for key, count in counts.items() if count > 1))

    try:
        # Numbers are left as text: only the keys are checked.
        json.JSONDecoder(object_pairs_hook=look, parse_int=str, parse_float=str, strict=False).decode(text)
    except (ValueError, RecursionError):
        return ()
    return tuple(found)


def one_line(key: str) -> str:
    """`key` on one line, shortened, for messages."""
    return " ".join(key.encode("utf-8", "backslashreplace").decode().split())[:80]


def no_lines(beginning: bytes, *, is_whole: bool) -> str | None:
    """The format of a file that begins with `beginning`, where it is not JSON Lines; `is_whole`: nothing follows it.

    None for rows, broken ones included: other formats are recognised only if the text is JSON up to its end, or up to
    where it was cut.
    """
    text = beginning.decode("utf-8", "ignore").lstrip()
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except RecursionError:
        return None
    except ValueError:
        if is_whole or not text.startswith("[") or not _is_cut(text):
            return None
        return ARRAY
    if "\n" in text[:end].strip():
        return ARRAY if text.startswith("[") else OBJECT
    return ARRAY if text.startswith("[") and not text[end:].strip() else None


def _is_cut(text: str) -> bool:
    """Whether `text` is JSON that was cut somewhere."""
    try:
        from_json(text, allow_partial=True)
    except ValueError:
        return False
    return True
