"""Markdown with front matter -> `Document` -> retrievable `Chunk`s.

Four decisions:

* A chunk never leaves its section, and holds one kind of content: running text, one table, or one list.
* A table row and a list item are atoms: a chunk may exceed the budget rather than cut one. A long paragraph
  is cut between sentences. A table that needs several chunks repeats its header in each.
* Every chunk opens with its section path ("Aurora Gold Card > Fees"), so that it can be read alone; the
  line counts towards the budget.
* A heading with nothing under it makes no chunk of its own: it lives on in the paths of its subsections.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token
from pydantic import ValidationError

from abstain.contracts import Chunk, Document
from abstain.errors import AbstainError

Kind = Literal["text", "table", "list"]

DEFAULT_BUDGET = 600
PATH_SEPARATOR = " > "

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


@dataclass(frozen=True)
class _Piece:
    """What is never cut, and the white space that joins it to the piece before it in the same chunk."""

    joint: str
    text: str


@dataclass(frozen=True)
class _Block:
    """A run of pieces of one section and kind; `head` is repeated in every chunk."""

    path: tuple[str, ...]
    kind: Kind
    pieces: tuple[_Piece, ...]
    head: str = ""


def parse_document(text: str, source_name: str) -> Document:
    """Read a Markdown file with YAML front matter (`doc_id`, `title`, `product`, `entitlements`, `updated_at`).

    `source_name` names the file in messages. Raises `AbstainError` with one line: file, problem, remedy.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff")
    match = _FRONT_MATTER.match(text)
    if match is None:
        raise AbstainError(
            f"{source_name}: no front matter: begin the file with '---', the lines doc_id, title and updated_at, '---'"
        )
    try:
        fields = yaml.safe_load(match.group(1))
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that is none
        raise AbstainError(
            f"{source_name}: the front matter is not valid YAML: {' '.join(str(error).split())}"
        ) from None
    if not isinstance(fields, dict):
        raise AbstainError(
            f"{source_name}: the front matter holds no 'name: value' lines: add doc_id, title, updated_at"
        )
    if "body" in fields:
        raise AbstainError(f"{source_name}: 'body' is no front matter field: write the text below the second '---'")
    try:
        return Document.model_validate({**fields, "body": text[match.end() :]})
    except ValidationError as error:
        raise AbstainError(f"{source_name}: {_first_problem(error)}") from None


def chunk_document(document: Document, budget: int = DEFAULT_BUDGET) -> list[Chunk]:
    """Cut `document` into chunks of about `budget` characters, in the order of the text."""
    chunks: list[Chunk] = []
    for block in _blocks(document):
        prefix = PATH_SEPARATOR.join(block.path) + "\n" + (block.head and block.head + "\n")
        for content in _pack(block.pieces, budget - len(prefix)):
            text = (prefix + content).rstrip()
            chunks.append(
                Chunk(
                    chunk_id=f"{document.doc_id}#{len(chunks)}",
                    doc_id=document.doc_id,
                    section_path=block.path,
                    kind=block.kind,
                    text=text,
                    entitlements=document.entitlements,
                    updated_at=document.updated_at,
                    content_hash=hashlib.sha256(text.encode()).hexdigest(),
                )
            )
    return chunks


def _blocks(document: Document) -> Iterator[_Block]:
    """The document's blocks, neighbouring paragraphs of one section joined to one."""
    for (path, kind), run in groupby(_raw_blocks(document), key=lambda block: (block.path, block.kind)):
        if kind == "text":
            yield _Block(path, kind, tuple(piece for block in run for piece in block.pieces))
        else:
            yield from run


def _raw_blocks(document: Document) -> Iterator[_Block]:
    lines = document.body.split("\n")
    tokens = MarkdownIt("commonmark").enable("table").parse(document.body)
    headings: list[tuple[int, str]] = []
    for position, token in enumerate(tokens):
        if token.level or token.map is None or token.nesting < 0:
            continue
        path = (document.title, *(heading for _, heading in headings))
        source = _source(lines, token)
        if token.type == "heading_open":
            level, heading = int(token.tag[1]), " ".join(tokens[position + 1].content.split())
            headings = [entry for entry in headings if entry[0] < level]
            if heading and (headings or heading != document.title):
                headings.append((level, heading))
        elif token.type == "table_open":
            start, end = token.map
            header, *rows = (line.strip() for line in (lines[start], *lines[start + 2 : end]))
            head = f"{header}\n{lines[start + 1].strip()}"
            yield _Block(path, "table", tuple(_Piece("\n", row) for row in rows) or (_Piece("", ""),), head)
        elif token.type in ("bullet_list_open", "ordered_list_open"):
            yield _Block(path, "list", tuple(_Piece("\n", _source(lines, item)) for item in _items(tokens, position)))
        elif token.type == "paragraph_open":
            first, *rest = _SENTENCE_END.split(source.strip())
            yield _Block(path, "text", (_Piece("\n\n", first), *(_Piece(" ", sentence) for sentence in rest)))
        elif token.type != "hr":  # code, quotes and HTML stay whole
            yield _Block(path, "text", (_Piece("\n\n", source),))


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


def _pack(pieces: Iterable[_Piece], room: int) -> Iterator[str]:
    """Join neighbouring `pieces` greedily while they fit into `room` characters; a longer piece stands alone."""
    held: str | None = None
    for piece in pieces:
        if held is None:
            held = piece.text
        elif len(held) + len(piece.joint) + len(piece.text) <= room:
            held += piece.joint + piece.text
        else:
            yield held
            held = piece.text
    if held is not None:
        yield held


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    name = str(problem["loc"][0])
    known = ", ".join(field for field in Document.model_fields if field != "body")
    if name == "body":
        return "there is no text below the front matter: write the document there"
    if problem["type"] == "missing":
        return f"the front matter lacks '{name}': add a line '{name}: ...'"
    if problem["type"] == "extra_forbidden":
        return f"unknown front matter field '{name}': use {known}"
    return f"front matter field '{name}': {problem['msg']}"
