"""Bytes as they come -> UTF-8 lines, in constant memory.

Two decisions:

* A line beyond `LIMIT` is never held: it is hashed and counted on the way, and of its bytes only the first `KEPT` stay.
* A file that opens with the byte order mark of UTF-16 is read as what it is. What it holds that is no text comes out as
  bytes that are no UTF-8 either, so that only the lines that hold it are refused.
"""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

LIMIT = 16 * 1024 * 1024
"""The longest line or document, in bytes."""

KEPT = 4096
"""How much is kept of a longer one, in bytes."""

_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_NO_TEXT = b"\xff"


@dataclass(frozen=True)
class TooLong:
    """What stands for a line or document beyond `LIMIT`."""

    head: bytes
    size: int
    sha256: str

    @property
    def raw(self) -> bytes:
        """The beginning, and enough to tell this content from any other with the same one."""
        return self.head + f" [... {self.size} bytes in all, sha256 {self.sha256}]".encode()

    @property
    def reason(self) -> str:
        return f"line: {self.size:,} bytes, {LIMIT:,} allowed; the first {KEPT:,} are kept (sha256 {self.sha256[:16]})"


def utf8(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """`chunks` in UTF-8 without a byte order mark; what is neither UTF-8 nor UTF-16 with a mark is left as it is."""
    pending = iter(chunks)
    head = b""
    for chunk in pending:
        head += chunk
        if len(head) >= len(codecs.BOM_UTF8):
            break
    encoding = _MARKS.get(head[:2])
    if encoding is None:
        yield head.removeprefix(codecs.BOM_UTF8)
        yield from pending
        return
    decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
    yield decoder.decode(head[2:]).encode("utf-8", "surrogatepass")
    for chunk in pending:
        yield decoder.decode(chunk).encode("utf-8", "surrogatepass")
    try:
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:  # half a character at the end
        yield _NO_TEXT


def lines(chunks: Iterable[bytes]) -> Iterator[bytes | TooLong]:
    """Every line, without the `\\n` at its end, blank ones too; the last needs none."""
    held = _Held()
    for chunk in chunks:
        first, *rest = chunk.split(b"\n")
        held.add(first)
        if not rest:
            continue
        yield held.take()
        for line in rest[:-1]:
            held.add(line)
            yield held.take()
        held.add(rest[-1])
    if held.size:
        yield held.take()


def whole(chunks: Iterable[bytes]) -> bytes | TooLong:
    """Everything, as if it were one line."""
    held = _Held()
    for chunk in chunks:
        held.add(chunk)
    return held.take()


class _Held:
    """One line in the making."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.size = 0
        self._parts: list[bytes] = []
        self._hash: Any = None

    def add(self, part: bytes) -> None:
        if not part:
            return
        self.size += len(part)
        if self._hash is None:
            self._parts.append(part)
            if self.size <= LIMIT:
                return
            held = b"".join(self._parts)
            self._parts, self._hash = [held[:KEPT]], hashlib.sha256(held)
        else:
            self._hash.update(part)

    def take(self) -> bytes | TooLong:
        """The line; the next one begins."""
        content = b"".join(self._parts)
        taken = content if self._hash is None else TooLong(content, self.size, self._hash.hexdigest())
        self._clear()
        return taken
