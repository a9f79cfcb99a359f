"""Cut a `Document` into retrievable `Chunk`s, section by section.

Notes:

* A chunk stays within its section and holds one kind of content: running text, one table, or one list.
* Table rows and list items, with everything nested in them, are not cut: a chunk may exceed the budget instead. Text is
  cut between blocks, else lines, else sentences, else words. A table that needs several chunks repeats its header in
  each. The same holds for raw HTML and block quotes: see `normalize_markdown`.
* The budget counts tokens of the encoder's own tokenizer: text that the encoder cuts off cannot be retrieved.
* Every chunk begins with its section path ("Aurora Gold Card > Fees"), so that it can be read by itself; the line
  counts towards the budget, but takes at most half of it.
* A line that tells a page ends no run of text and is in no chunk; a chunk's page is that of its first piece.
* A chunk's id is made from its document and its content: one id always means the same text, and identical text in one
  document is one chunk.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from markdown_it.token import Token

from abstain.core.codes import Code
from abstain.core.contracts import PATH_SEPARATOR, Chunk, Document
from abstain.core.errors import AbstainError
from abstain.knowledge.documents.sections import DocumentSection, parse_blocks, split_sections
from abstain.knowledge.documents.tokens import make_token_counter

CountTokens = Callable[[str], int]
"""Counts the tokens of a text; texts joined by white space have the sum, as with tokenizers that first split there."""

DEFAULT_BUDGET = 192
"""Tokens. all-MiniLM-L6-v2 reads 256, two of them its own, and an uncut row or item may exceed the budget."""

MAX_CHUNKS = 10_000
"""The maximum number of chunks of a document: each repeats its section path, so many short ones need much memory."""

MAX_HEADER_CHARACTERS = 2_000
"""The longest table header that is repeated in each chunk of the table; a longer one is only in the first chunk."""

ID_DIGITS = 10

_LINE_END = re.compile(r"\n")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_WHITE_SPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class _Piece:
    """A piece that is not cut, the white space between it and the piece before it in the same chunk, and its page."""

    separator: str
    text: str
    page: int | None = None


@dataclass(frozen=True)
class _Block:
    """Consecutive pieces of one section and kind; `header` is repeated in every chunk."""

    kind: Literal["text", "table", "list"]
    pieces: tuple[_Piece, ...]
    header: str = ""


def chunk_document(
    document: Document, budget: int = DEFAULT_BUDGET, count_tokens: CountTokens | None = None
) -> list[Chunk]:
    """Cut a document into chunks.

    Args:
        document: The document.
        budget: Approximate maximum number of tokens of a chunk.
        count_tokens: Counts the tokens of a text; by default the embedded encoder's tokenizer does.

    Returns:
        The chunks, in the order of the text.

    Raises:
        AbstainError: There are more than `MAX_CHUNKS`, or two different chunks would have the same id, which in a
            document of a thousand chunks has a probability of one in a million.
    """
    count_tokens = count_tokens or make_token_counter()
    chunks: dict[str, Chunk] = {}
    for section in split_sections(document):
        for kind, text, page in _iter_chunk_texts(section, budget, count_tokens):
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
                page=page,
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


def _iter_chunk_texts(
    section: DocumentSection, budget: int, count_tokens: CountTokens
) -> Iterator[tuple[Literal["text", "table", "list"], str, int | None]]:
    path = PATH_SEPARATOR.join(section.path)
    for block in _join_paragraphs(_iter_blocks(section)):
        prefix = path + "\n" + (block.header and block.header + "\n")
        room = max(budget - count_tokens(prefix), budget // 2)
        pieces = _cut_to_fit(block.pieces, room, count_tokens) if block.kind == "text" else block.pieces
        for page, content in _pack(pieces, room, count_tokens):
            yield block.kind, (prefix + content).rstrip(), page


def _join_paragraphs(blocks: Iterable[_Block]) -> Iterator[_Block]:
    """Yield `blocks` with neighbouring paragraphs joined."""
    for kind, group in groupby(blocks, key=lambda block: block.kind):
        if kind == "text":
            yield _Block(kind, tuple(piece for block in group for piece in block.pieces))
        else:
            yield from group


def _iter_blocks(section: DocumentSection) -> Iterator[_Block]:
    for page, text in section.split_pages():
        for block in _parse_blocks(text):
            yield block if page is None else _set_page(block, page)


def _set_page(block: _Block, page: int) -> _Block:
    return replace(block, pieces=tuple(replace(piece, page=page) for piece in block.pieces))


def _parse_blocks(text: str) -> Iterator[_Block]:
    lines, tokens = parse_blocks(text)
    for position, token in enumerate(tokens):
        if token.level or token.map is None or token.nesting < 0:
            continue
        source = _get_source(lines, token)
        if token.type == "table_open":
            start, end = token.map
            header, *rows = (line.strip() for line in (lines[start], *lines[start + 2 : end]))
            head = f"{header}\n{lines[start + 1].strip()}"
            if len(head) > MAX_HEADER_CHARACTERS:
                head, rows = "", [head, *rows]
            yield _Block("table", tuple(_Piece("\n", row) for row in rows) or (_Piece("", ""),), head)
        elif token.type in ("bullet_list_open", "ordered_list_open"):
            yield _Block(
                "list", tuple(_Piece("\n", _get_source(lines, item)) for item in _iter_items(tokens, position))
            )
        elif token.type == "paragraph_open":
            first, *rest = _SENTENCE_END.split(source.strip())
            yield _Block("text", (_Piece("\n\n", first), *(_Piece(" ", sentence) for sentence in rest)))
        elif token.type == "heading_open":  # too long to be one
            yield _Block("text", (_Piece("\n\n", tokens[position + 1].content),))
        elif token.type != "hr":  # code, quotes and HTML of text
            yield _Block("text", (_Piece("\n\n", source),))


def _iter_items(tokens: list[Token], list_open: int) -> Iterator[Token]:
    """Yield the items of the top-level list that opens at `list_open`, with nested lists inside them."""
    for token in tokens[list_open + 1 :]:
        if token.level == 0:
            return
        if token.type == "list_item_open" and token.level == 1:
            yield token


def _get_source(lines: list[str], token: Token) -> str:
    assert token.map is not None
    return "\n".join(lines[slice(*token.map)]).strip("\n").rstrip()


def _cut_to_fit(pieces: Iterable[_Piece], room: int, count_tokens: CountTokens) -> Iterator[_Piece]:
    """Yield pieces of text; those above `room` tokens are cut between lines, sentences or words, else anywhere."""
    for piece in pieces:
        size = count_tokens(piece.text)
        yield from _cut_piece(piece, size, room, count_tokens) if size > room else (piece,)


def _cut_piece(piece: _Piece, size: int, room: int, count_tokens: CountTokens) -> Iterator[_Piece]:
    separator, parts = _divide_text(piece.text, max(len(piece.text) * room // size, 1))
    if len(parts) < 2:  # a single character
        yield piece
        return
    yield from _cut_to_fit(
        (_Piece(separator if index else piece.separator, part, piece.page) for index, part in enumerate(parts)),
        room,
        count_tokens,
    )


def _divide_text(text: str, length: int) -> tuple[str, list[str]]:
    """Return the separator and the parts of a text: lines, else sentences, else words, else strings of `length`."""
    for separator, end in (("\n", _LINE_END), (" ", _SENTENCE_END), (" ", _WHITE_SPACE)):
        parts = [part for part in end.split(text) if part]
        if len(parts) > 1:
            return separator, parts
    return "", [text[start : start + length] for start in range(0, len(text), length)]


def _pack(pieces: Iterable[_Piece], room: int, count_tokens: CountTokens) -> Iterator[tuple[int | None, str]]:
    """Join neighbouring pieces greedily while they fit into `room` tokens; a longer piece is not joined.

    Each text comes with the page of its first piece.
    """
    parts: list[str] = []
    n_tokens, page = 0, None
    for piece in pieces:
        if parts and n_tokens + (size := count_tokens(piece.separator + piece.text)) <= room:
            parts += [piece.separator, piece.text]
            n_tokens += size
        else:
            if parts:
                yield page, "".join(parts)
            parts, n_tokens, page = [piece.text], count_tokens(piece.text), piece.page
    if parts:
        yield page, "".join(parts)
