"""JSON Lines: the only reader and writer, with checks that JSON parsers omit.

Notes:
    Parsers keep the last value of a repeated key and silently lose the others, so such a row is an error.

    A JSON array, or an object over several lines, fails at each line. It is recognized by its first value, before its
    lines are reported as broken rows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from abstain.core.codes import Code
from abstain.core.contracts import Row
from abstain.core.errors import AbstainError

Model = TypeVar("Model", bound=BaseModel)

ARRAY = "is a JSON array and not JSON Lines: write one object a line, as `jq -c '.[]'` does"
OBJECT = "holds a JSON object over several lines and is not JSON Lines: write one object a line, as `jq -c .` does"


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Read a file line by line, without blank lines.

    Args:
        path: A file of JSON Lines.

    Yields:
        The offset of each line in bytes, and the line without its break.
    """
    offset = 0
    with path.open("rb") as file:  # breaks at \n alone: a text may hold U+2028, which is no line break in JSON Lines
        for line in file:
            text = line.removesuffix(b"\n")
            if text.strip():
                yield offset, text
            offset += len(line)


def to_json_lines(rows: Iterable[Row]) -> bytes:
    """Return rows as JSON Lines."""
    return "".join(f"{row.to_json_line()}\n" for row in rows).encode()


def parse_lines(
    lines: Iterable[bytes], model: type[Model], name: str, *, strict: bool = True, untrusted: bool = True
) -> Iterator[Model]:
    """Parse the lines of a file that are not blank.

    Args:
        lines: Lines of the file, with or without their breaks.
        model: Model of each row.
        name: Name of the file, for messages.
        strict: Whether to use pydantic's strict mode, which converts no value to the field's type.
        untrusted: Whether users wrote the file: then repeated keys, and JSON that is not JSON Lines, are errors.

    Yields:
        The rows, in order.

    Raises:
        AbstainError: A line is not valid. The message names file, line, field and cause.
    """
    source, is_first = iter(lines), True
    for number, line in enumerate(source, start=1):
        if not line.strip():
            continue
        where = f"{name} line {number}"
        text = decode_utf8(line.removesuffix(b"\n"), where)
        try:
            row = model.model_validate_json(text, strict=strict)
        except ValidationError as error:
            if (
                untrusted
                and is_first
                and (format_problem := detect_other_json(b"\n".join([line, *source]), is_whole=True))
            ):
                raise AbstainError(Code.WRONG_FORMAT, f"{name}: {format_problem}") from None
            problem = error.errors()[0]
            field = ".".join(str(part) for part in problem["loc"]) or "row"
            raise AbstainError(Code.INVALID_ROW, f"{where}: {field}: {problem['msg']}") from None
        if untrusted and (keys := find_duplicate_keys(text)):
            raise AbstainError(Code.INVALID_ROW, f"{where}: {format_key(keys[0])}: this key comes twice in one object")
        is_first = False
        yield row


def decode_utf8(content: bytes, where: str) -> str:
    """Decode UTF-8.

    Args:
        content: The bytes.
        where: Beginning of the error message, such as file and line.

    Returns:
        The text.

    Raises:
        AbstainError: The bytes are not valid UTF-8.
    """
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise AbstainError(Code.INVALID_ROW, f"{where}: not valid UTF-8 (byte {error.start + 1})") from None


def find_duplicate_keys(text: str) -> tuple[str, ...]:
    """Find keys that occur more than once in one object of `text`, at any depth.

    Args:
        text: A line of JSON.

    Returns:
        The keys; empty if `text` is not JSON.
    """
    duplicate_keys: dict[str, None] = {}

    def collect_duplicates(pairs: list[tuple[str, Any]]) -> None:
        if len(dict(pairs)) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            duplicate_keys.update(dict.fromkeys(key for key, count in counts.items() if count > 1))

    try:
        # Numbers are left as text: only the keys are checked.
        json.JSONDecoder(object_pairs_hook=collect_duplicates, parse_int=str, parse_float=str, strict=False).decode(
            text
        )
    except (ValueError, RecursionError):
        return ()
    return tuple(duplicate_keys)


def format_key(key: str) -> str:
    """Return a key as one line for messages.

    Of a long key only its length is given: half of an address would not be redacted.
    """
    one_line = " ".join(key.encode("utf-8", "backslashreplace").decode().split())
    return one_line if len(one_line) <= 80 else f"a key of {len(one_line):,} characters"


def detect_other_json(beginning: bytes, *, is_whole: bool) -> str | None:
    """Detect JSON that is not JSON Lines.

    Broken rows are not reported: another format is recognized only if the text is JSON up to its end, or up to the
    point at which it was cut.

    Args:
        beginning: Beginning of the file.
        is_whole: Whether `beginning` is the complete file.

    Returns:
        The error message (`ARRAY` or `OBJECT`), or None.
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
    """Return whether `text` is a beginning of valid JSON."""
    try:
        from_json(text, allow_partial=True)
    except ValueError:
        return False
    return True
