"""Split a `Document` into sections: the content under one heading, up to the next heading of any level.

Chunks never mix two sections. A heading without content makes no section: it is only part of the paths of its
subsections. Headings may skip levels and repeat each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from markdown_it import MarkdownIt
from markdown_it.token import Token

from abstain.core.contracts import Document

MAX_HEADING = 200
"""Characters; a longer heading is taken for a paragraph in large type and stays in the section above it."""

PAGE_MARKER = re.compile(r"^<!-- page ([1-9][0-9]{0,5}) -->$", re.MULTILINE)
"""The line that stands before the first block of a page, in documents that have pages."""

_PARSER = MarkdownIt("commonmark").enable("table")
_PARSER.core.ruler.disable(["inline", "text_join"])  # only blocks are distinguished here


@dataclass(frozen=True)
class DocumentSection:
    """A section of a document.

    Attributes:
        path: The document's title, then the headings down to this section.
        body: Markdown without the heading.
        page: The page on which the heading stands; None if that is unknown.
    """

    path: tuple[str, ...]
    body: str
    page: int | None = None

    def split_pages(self) -> list[tuple[int | None, str]]:
        """Return the parts of the body between page markers, each with its page."""
        first, *rest = PAGE_MARKER.split(self.body)
        return [(self.page, first), *((int(page), text) for page, text in zip(rest[::2], rest[1::2], strict=True))]


def split_sections(document: Document) -> list[DocumentSection]:
    """Return the sections of `document`, in order; a first heading that repeats the title is no section."""
    return [section for section in _iter_sections(document) if section.body.strip()]


def parse_blocks(text: str) -> tuple[list[str], list[Token]]:
    """Parse the blocks of Markdown.

    Args:
        text: The Markdown.

    Returns:
        The lines of the text, and markdown-it's tokens of its blocks, whose `map` counts those lines.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text.split("\n"), _PARSER.parse(text)


def _iter_sections(document: Document) -> Iterator[DocumentSection]:
    lines, tokens = parse_blocks(document.body)
    headings: list[tuple[int, str]] = []
    start, page = 0, None
    for position, token in enumerate(tokens):
        if token.type != "heading_open" or token.level or token.map is None:
            continue
        level, heading = int(token.tag[1]), " ".join(tokens[position + 1].content.split())
        if len(heading) > MAX_HEADING:
            continue
        path = (document.title, *(name for _, name in headings))
        section = DocumentSection(path, "\n".join(lines[start : token.map[0]]), page)
        yield section
        start, page = token.map[1], section.split_pages()[-1][0]
        headings = [entry for entry in headings if entry[0] < level]
        if heading and (headings or heading != document.title):
            headings.append((level, heading))
    yield DocumentSection((document.title, *(name for _, name in headings)), "\n".join(lines[start:]), page)
