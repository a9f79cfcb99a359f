"""Split bytes into UTF-8 lines in constant memory: of a line beyond `MAX_LINE_BYTES` only hash and size are kept."""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from abstain.ingest.parsing import ParsedRow, make_too_large_reason

MAX_LINE_BYTES = 16 * 1024 * 1024
"""The longest line, in bytes."""

_ENCODING_BY_MARK = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_NOT_UTF8 = b"\xff"


@dataclass(frozen=True)
class OversizedLine:
    """A line beyond `MAX_LINE_BYTES`, or a file beyond another limit.

    Attributes:
        size: Its size in bytes.
        sha256: Its digest.
    """

    size: int
    sha256: str

    def to_rejected_row(self, source: str, number: int) -> ParsedRow:
        """Make the rejected row that stands for the line.

        Args:
            source: File of the line.
            number: Number of the line.

        Returns:
            The row, without text.
        """
        reason = make_too_large_reason("line", f"{self.size:,} bytes, {MAX_LINE_BYTES:,} allowed")
        return ParsedRow(source, number, b"", (reason,), digest=self.sha256, size=self.size)


def to_utf8(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Convert text to UTF-8 without a byte order mark.

    UTF-16 is recognized by its mark; other encodings are left. Invalid UTF-16 becomes invalid UTF-8, so that only the
    lines that hold it are rejected.

    Args:
        chunks: The bytes of a file.

    Yields:
        The converted chunks.
    """
    rest = iter(chunks)
    head = b""
    for chunk in rest:
        head += chunk
        if len(head) >= len(codecs.BOM_UTF8):
            break
    encoding = _ENCODING_BY_MARK.get(head[:2])
    if encoding is None:
        yield head.removeprefix(codecs.BOM_UTF8)
        yield from rest
        return
    decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
    yield decoder.decode(head[2:]).encode("utf-8", "surrogatepass")
    for chunk in rest:
        yield decoder.decode(chunk).encode("utf-8", "surrogatepass")
    if decoder.getstate()[0]:  # half a character at the end
        yield _NOT_UTF8


def split_lines(chunks: Iterable[bytes]) -> Iterator[bytes | OversizedLine]:
    r"""Yield every line of `chunks` without its `\n`, including blank lines; the last line needs no `\n`."""
    line = _Line()
    for chunk in chunks:
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            if not line.size and len(end) <= MAX_LINE_BYTES:
                yield end
                continue
            line.add(end)
            yield line.content()
            line = _Line()
        line.add(rest)
    if line.size:
        yield line.content()


def read_whole(chunks: Iterable[bytes], limit: int) -> bytes | OversizedLine:
    """Read everything as if it were one line.

    Args:
        chunks: The bytes of a file.
        limit: The maximum size in bytes.

    Returns:
        The bytes, or their hash and size if there are more than `limit`.
    """
    line = _Line(limit)
    for chunk in chunks:
        line.add(chunk)
    return line.content()


class _Line:
    """One line while it is being read."""

    def __init__(self, limit: int | None = None) -> None:
        self.size = 0
        self._limit = MAX_LINE_BYTES if limit is None else limit
        self._parts: list[bytes] = []
        self._digest = hashlib.sha256()

    def add(self, part: bytes) -> None:
        self.size += len(part)
        self._digest.update(part)
        self._parts.append(part)
        if self.size > self._limit:
            self._parts = []

    def content(self) -> bytes | OversizedLine:
        return b"".join(self._parts) if self.size <= self._limit else OversizedLine(self.size, self._digest.hexdigest())
