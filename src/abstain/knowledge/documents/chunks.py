"""`Document` -> retrievable `Chunk`s, section by section.

Notes:

* A chunk stays within its section and holds one kind of content: running text, one table, or one list.
* Table rows and list items, with everything nested in them, are not cut: a chunk may exceed the budget instead. Text is
  cut between blocks, else lines, else sentences, else words. A table that needs several chunks repeats its header in
  each. The same holds for raw HTML and block quotes: see `normalize_markdown`.
* The budget counts tokens of the encoder's own tokenizer: text that the encoder cuts off cannot be found.
* Every chunk begins with its section path ("Aurora Gold Card > Fees"), so that it can be read alone; the line counts
  towards the budget, but takes at most half of it.
* A chunk's id is made of its document and its content: one id always means the same text, and identical text in one
  document is one chunk.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from markdown_it.token import Token

from abstain.core.codes import Code
from abstain.core.contracts import Chunk, Document
from abstain.core.errors import AbstainError
from abstain.knowledge.documents.normalize_markdown import normalize_markdown
from abstain.knowledge.documents.sections import DocumentSection, parse_blocks, split_sections
from abstain.knowledge.documents.tokens import token_counter

Count = Callable[[str], int]
"""Tokens of a text. Of texts joined by white space it is their sum, as with tokenizers that first split there."""

DEFAULT_BUDGET = 192
"""Tokens. all-MiniLM-L6-v2 reads 256, two of them its own, and an atom may need some more than the budget."""

MAX_CHUNKS = 10_000
"""The most chunks of a document: each repeats the path of its section, so many short ones hold far more than it."""

MAX_HEADER = 2_000
"""Characters; a longer header of a table is not repeated in each of its chunks, but stands in the first one."""

ID_DIGITS = 10
PATH_SEPARATOR = " > "

_LINE_END = re.compile(r"\n")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_WHITE_SPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class _Piece:
    """A piece that is not cut, and the white space that joins it to the piece before it in the same chunk."""

    joint: str
    text: str


@dataclass(frozen=True)
class _Block:
    """A run of pieces of one section and kind; `head` is repeated in every chunk."""

    kind: Literal["text", "table", "list"]
    pieces: tuple[_Piece, ...]
    head: str = ""


def chunk_document(document: Document, budget: int = DEFAULT_BUDGET, count: Count | None = None) -> list[Chunk]:
    """Cut `document` into chunks of at most about `budget` tokens, in the order of the text.

    `count` counts them; by default the embedded encoder's tokenizer does. Raises `AbstainError` for more than
    `MAX_CHUNKS`, and where two different chunks would have the same id, which in a document of a thousand chunks has a
    chance of one in a million.
    """
    count = count or token_counter()
    chunks: dict[str, Chunk] = {}
    for section in split_sections(document):
        for kind, text in _chunks(section, budget, count):
            digest = hashlib.sha256(text.encode()).hexdigest()
            chunk = Chunk(
                chunk_id=f"{document.doc_id}#{digest[:ID_DIGITS]}",
                doc_id=document.doc_id,
                section_path=section.path,
                kind=kind,
                text=text,
                entitlements=document.entitlements,
                updated_at=document.updated_at,
                content_hash=digest,
            )
            if chunks.setdefault(chunk.chunk_id, chunk).content_hash != digest:
                raise AbstainError(
                    Code.FAILED_CHECK, f"{chunk.chunk_id} would be the id of two chunks: change a word in one of them"
                )
            if len(chunks) > MAX_CHUNKS:
                raise AbstainError(
                    Code.TOO_LARGE, f"the document has more than the {MAX_CHUNKS:,} chunks allowed: divide it"
                )
    return list(chunks.values())


def _chunks(
    section: DocumentSection, budget: int, count: Count
) -> Iterator[tuple[Literal["text", "table", "list"], str]]:
    path = PATH_SEPARATOR.join(section.path)
    for block in _joined(_blocks(section)):
        prefix = path + "\n" + (block.head and block.head + "\n")
        room = max(budget - count(prefix), budget // 2)
        pieces = _fitting(block.pieces, room, count) if block.kind == "text" else block.pieces
        for content in _pack(pieces, room, count):
            yield block.kind, (prefix + content).rstrip()


def _joined(blocks: Iterable[_Block]) -> Iterator[_Block]:
    """`blocks`, neighbouring paragraphs joined to one."""
    for kind, run in groupby(blocks, key=lambda block: block.kind):
        if kind == "text":
            yield _Block(kind, tuple(piece for block in run for piece in block.pieces))
        else:
            yield from run


def _blocks(section: DocumentSection) -> Iterator[_Block]:
    lines, tokens = parse_blocks(normalize_markdown(section.body))
    for position, token in enumerate(tokens):
        if token.level or token.map is None or token.nesting < 0:
            continue
        source = _source(lines, token)
        if token.type == "table_open":
            start, end = token.map
            header, *rows = (line.strip() for line in (lines[start], *lines[start + 2 : end]))
            head = f"{header}\n{lines[start + 1].strip()}"
            if len(head) > MAX_HEADER:
                head, rows = "", [head, *rows]
            yield _Block("table", tuple(_Piece("\n", row) for row in rows) or (_Piece("", ""),), head)
        elif token.type in ("bullet_list_open", "ordered_list_open"):
            yield _Block("list", tuple(_Piece("\n", _source(lines, item)) for item in _items(tokens, position)))
        elif token.type == "paragraph_open":
            first, *rest = _SENTENCE_END.split(source.strip())
            yield _Block("text", (_Piece("\n\n", first), *(_Piece(" ", sentence) for sentence in rest)))
        elif token.type == "heading_open":  # too long to be one
            yield _Block("text", (_Piece("\n\n", tokens[position + 1].content),))
        elif token.type != "hr":  # code, quotes and HTML of text
            yield _Block("text", (_Piece("\n\n", source),))


def _items(tokens: list[Token], list_open: int) -> Iterator[Token]:
    """The items of the top-level list that opens at `list_open`, nested lists left inside them."""
    for token in tokens[list_open + 1 :]:
        if token.level == 0:
            return
        if token.type == "list_item_open" and token.level == 1:
            yield token


def _source(lines: list[str], token: Token) -> str:
    assert token.map is not None
    return "\n".join(lines[slice(*token.map)]).strip("\n").rstrip()


def _fitting(pieces: Iterable[_Piece], room: int, count: Count) -> Iterator[_Piece]:
    """`pieces` of text, those above `room` tokens cut between lines, else sentences, else words, else anywhere."""
    for piece in pieces:
        size = count(piece.text)
        yield from _cut(piece, size, room, count) if size > room else (piece,)


def _cut(piece: _Piece, size: int, room: int, count: Count) -> Iterator[_Piece]:
    joint, parts = _divided(piece.text, max(len(piece.text) * room // size, 1))
    if len(parts) < 2:  # a single character
        yield piece
        return
    yield from _fitting((_Piece(joint if at else piece.joint, part) for at, part in enumerate(parts)), room, count)


def _divided(text: str, length: int) -> tuple[str, list[str]]:
    """The separator and the parts of `text`: lines, else sentences, else words, else runs of `length` characters."""
    for joint, end in (("\n", _LINE_END), (" ", _SENTENCE_END), (" ", _WHITE_SPACE)):
        parts = [part for part in end.split(text) if part]
        if len(parts) > 1:
            return joint, parts
    return "", [text[at : at + length] for at in range(0, len(text), length)]


def _pack(pieces: Iterable[_Piece], room: int, count: Count) -> Iterator[str]:
    """Join neighbouring `pieces` greedily while they fit into `room` tokens; a longer piece stands alone."""
    held: list[str] = []
    used = 0
    for piece in pieces:
        if held and used + (size := count(piece.joint + piece.text)) <= room:
            held += [piece.joint, piece.text]
            used += size
        else:
            if held:
                yield "".join(held)
            held, used = [piece.text], count(piece.text)
    if held:
        yield "".join(held)
