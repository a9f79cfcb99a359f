"""JSON Lines: the one reader and the one writer, and the checks that a JSON parser leaves out.

Notes:
    Parsers keep the last value of a repeated key, which loses the others silently: such a row is an error.

    A JSON array, or an object over several lines, fails at each line. Its first value identifies it, before its lines
    are reported as broken rows.
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
    """(offset, line without its break) of each line that is not blank."""
    offset = 0
    with path.open("rb") as file:  # breaks at \n alone: a text may hold U+2028, which is no line break in JSON Lines
        for line in file:
            text = line.removesuffix(b"\n")
            if text.strip():
                yield offset, text
            offset += len(line)


def to_json_lines(rows: Iterable[Row]) -> bytes:
    """Rows as JSON Lines."""
    return "".join(f"{row.to_json_line()}\n" for row in rows).encode()


def parse_lines(
    lines: Iterable[bytes], model: type[Model], name: str, *, strict: bool = True, untrusted: bool = True
) -> Iterator[Model]:
    """Each line of the file `name` that is not blank, as a `model`.

    Args:
        strict: pydantic's strict mode: no value is converted to the field's type.
        untrusted: users write the file: repeated keys, and JSON that is not JSON Lines, are reported as such.

    Raises:
        AbstainError: a line is not valid; the message names file, line, field and problem.
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
            if untrusted and is_first and (other := detect_other_json(b"\n".join([line, *source]), is_whole=True)):
                raise AbstainError(Code.WRONG_FORMAT, f"{name}: {other}") from None
            problem = error.errors()[0]
            field = ".".join(str(part) for part in problem["loc"]) or "row"
            raise AbstainError(Code.INVALID_ROW, f"{where}: {field}: {problem['msg']}") from None
        if untrusted and (keys := find_duplicate_keys(text)):
            raise AbstainError(Code.INVALID_ROW, f"{where}: {format_key(keys[0])}: this key comes twice in one object")
        is_first = False
        yield row


def decode_utf8(content: bytes, where: str) -> str:
    """UTF-8, or an `AbstainError` that names `where`."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise AbstainError(Code.INVALID_ROW, f"{where}: not valid UTF-8 (byte {error.start + 1})") from None


def find_duplicate_keys(text: str) -> tuple[str, ...]:
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


def format_key(key: str) -> str:
    """`key` on one line, for messages; of a long one only its length: half of an address would not be redacted."""
    shown = " ".join(key.encode("utf-8", "backslashreplace").decode().split())
    return shown if len(shown) <= 80 else f"a key of {len(shown):,} characters"


def detect_other_json(beginning: bytes, *, is_whole: bool) -> str | None:
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
