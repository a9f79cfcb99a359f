"""Parse a PDF: its lines become headings, paragraphs, lists and tables of HTML, which is converted like a page.

Notes:

* A line in larger type than most text is a heading, and so is a short bold one by itself.
* Lines that stand at the same place on most pages, digits aside, are running heads or feet, and left out; so is
  small type at the edge of a page.
* Tables are found by their ruled lines, or by three or more lines whose parts begin at the same places.
* Text in two columns is read down the left one, then down the right one, between the lines that span both.
* `pdf_layout` finds the lines; this module decides what they are.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from html import escape
from itertools import groupby
from typing import Any, Literal

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.knowledge.documents.html import html_to_markdown
from abstain.knowledge.documents.pdf_layout import Line, PageTable, read_page
from abstain.knowledge.documents.sections import MAX_HEADING

try:
    import pdfplumber
    from pdfplumber.utils.exceptions import MalformedPDFException, PdfminerException
except ImportError:
    raise AbstainError(Code.NO_PACKAGE, "PDF needs pdfplumber: pip install 'abstain[documents]'") from None

MIN_HEADING_RATIO = 1.1
"""The size of a heading, as a multiple of the size of most text."""

_BOLD_HEADING_CHARACTERS = 100
_BULLET = re.compile(r"[•◦▪‣●○■·–*-]\s+")
_NUMBER = re.compile(r"\(?\d{1,3}[.)]\s+")
_PAGE_NUMBER = re.compile(r"(?:page|seite|p\.)?\s*[-–]?\s*\d+\s*[-–]?(?:\s*(?:/|of|von)\s*\d+)?", re.IGNORECASE)
_DATE = re.compile(r"D:(\d{4})(\d\d)(\d\d)(\d\d)?(\d\d)?(\d\d)?(?:Z|([+-]\d\d)'?(\d\d)?)?")
_NO_TITLE = re.compile(r"^(untitled|microsoft \w+ - .*|.*\.(docx?|pdf|indd))$", re.IGNORECASE)
_MARGIN = 0.1  # of a page's height, in which running heads and feet stand
_EDGE = 0.06  # of a page's height, in which there is no other small type, such as a footnote's
_SMALL_TYPE = 0.8  # of the size of most text


@dataclass
class _TextBlock:
    """Something to read: `text` of a paragraph, heading (of `size`) or list item (at `left`), or a table."""

    kind: Literal["paragraph", "heading", "item", "table"]
    page: int
    text: str = ""
    size: float = 0
    left: float = 0
    table: PageTable | None = None


def parse_pdf(content: bytes) -> tuple[dict[str, Any], str]:
    """Parse a PDF.

    Args:
        content: The bytes of the file.

    Returns:
        Its title and the time of its last change, and its text as Markdown, with a `PAGE_MARKER` before the first block
        of each page.

    Raises:
        AbstainError: The file is damaged or encrypted, or has no text.
    """
    try:
        with pdfplumber.open(io.BytesIO(content)) as pdf:
            pages = []
            for page in pdf.pages:
                pages.append(read_page(page))
                page.close()
            fields = _read_properties(pdf.metadata)
            heights = [float(page.height) for page in pdf.pages]
    except (PdfminerException, MalformedPDFException) as error:
        problem = "is encrypted: save it without a password"
        if "Password" not in repr(error):
            problem = f"cannot be read: {' '.join(str(error).split()) or 'damaged'}: save it again"
        raise AbstainError(Code.WRONG_FORMAT, problem) from None
    body_size = _find_body_size(pages)
    pages = _drop_running_lines(pages, heights, body_size)
    if not any(pages):
        problem = "has no text, as a scan has none: read it by another converter first (docs/knowledge.md)"
        raise AbstainError(Code.WRONG_FORMAT, problem)
    blocks = _join_sentences(_find_blocks(pages, body_size))
    headings = [block for block in blocks if block.kind == "heading" and block.page == 1]
    largest = max(headings, key=lambda block: block.size, default=None)
    if "title" not in fields and largest is not None:
        fields["title"] = largest.text
    return fields, _write_markdown(blocks)


def _read_properties(metadata: dict[str, Any]) -> dict[str, Any]:
    fields = {}
    title = " ".join(str(metadata.get("Title") or "").replace("\0", "").split())
    if title and not _NO_TITLE.match(title):
        fields["title"] = title
    if match := _DATE.match(str(metadata.get("ModDate") or metadata.get("CreationDate") or "")):
        year, month, day, hour, minute, second, zone, zone_minute = match.groups()
        text = f"{year}-{month}-{day}T{hour or '00'}:{minute or '00'}:{second or '00'}"
        text += f"{zone}:{zone_minute or '00'}" if zone else "+00:00"
        with suppress(ValueError):  # some programs write a thirteenth month: the file's own time will do
            fields["updated_at"] = datetime.fromisoformat(text).isoformat()
    return fields


def _drop_running_lines(
    pages: Sequence[list[Line | PageTable]], heights: Sequence[float], body_size: float
) -> list[list[Line | PageTable]]:
    """Return the pages without page numbers, and without running heads and feet.

    These are lines at the same place in the margin of most pages, and lines of small type at the very edge.
    """

    def make_key(line: Line) -> tuple[int, str]:
        return round(line.top / 3), re.sub(r"\d+", "0", line.text)

    def is_within(line: Line, height: float, margin: float) -> bool:
        return line.top < margin * height or line.bottom > (1 - margin) * height

    counts = Counter(
        key
        for page, height in zip(pages, heights, strict=True)
        for key in {make_key(line) for line in page if isinstance(line, Line) and is_within(line, height, _MARGIN)}
    )

    def is_running(line: Line, height: float) -> bool:
        if is_within(line, height, _EDGE) and line.size < _SMALL_TYPE * body_size:
            return True
        is_repeated = counts[make_key(line)] >= max(2, 0.6 * len(pages))
        return is_within(line, height, _MARGIN) and (is_repeated or bool(_PAGE_NUMBER.fullmatch(line.text.strip())))

    return [
        [line for line in page if isinstance(line, PageTable) or not is_running(line, height)]
        for page, height in zip(pages, heights, strict=True)
    ]


def _find_body_size(pages: Iterable[Iterable[Line | PageTable]]) -> float:
    """Return the size of most text."""
    characters = Counter[float]()
    for line in (line for page in pages for line in page):
        texts = (line.text,) if isinstance(line, Line) else (text for row in line.rows for text in row)
        characters[line.size] += sum(map(len, texts))
    return characters.most_common(1)[0][0] if characters else 0.0


def _find_blocks(pages: Sequence[Sequence[Line | PageTable]], body_size: float) -> list[_TextBlock]:
    blocks: list[_TextBlock] = []
    for number, page in enumerate(pages, start=1):
        previous: Line | None = None
        for line in page:
            if isinstance(line, PageTable):
                blocks.append(_TextBlock("table", number, table=line))
                previous = None
                continue
            if previous is not None and _continues(previous, line, blocks[-1], body_size):
                blocks[-1].text = _join_lines(blocks[-1].text, line.text)
            else:
                blocks.append(_start_block(line, number, body_size))
            previous = line
    for block in blocks:
        if block.kind == "heading" and len(block.text) > MAX_HEADING:
            block.kind = "paragraph"
    return blocks


def _continues(previous: Line, line: Line, block: _TextBlock, body_size: float) -> bool:
    """Whether `line` belongs to the block of the line before it."""
    gap = line.top - previous.bottom
    if not -0.5 * line.size < gap < 0.75 * line.size or abs(line.size - previous.size) > 0.05 * line.size:
        return False
    if _BULLET.match(line.text) or (_NUMBER.match(line.text) and line.left <= previous.left + 1):
        return False
    if block.kind == "item":
        return line.left > block.left + 1
    return (block.kind == "heading") == _is_heading(line, body_size)


def _start_block(line: Line, page: int, body_size: float) -> _TextBlock:
    if match := _BULLET.match(line.text):
        return _TextBlock("item", page, line.text[match.end() :], line.size, line.left)
    kind: Literal["heading", "paragraph"] = "heading" if _is_heading(line, body_size) else "paragraph"
    size = max(line.size, body_size + 0.01) if kind == "heading" else line.size
    return _TextBlock(kind, page, line.text, size, line.left)


def _is_heading(line: Line, body_size: float) -> bool:
    if line.size >= MIN_HEADING_RATIO * body_size:
        return True
    is_short = len(line.text) <= _BOLD_HEADING_CHARACTERS and line.text[-1:] not in ".:;,"
    return line.is_bold and is_short and line.size >= body_size


def _join_lines(text: str, line: str) -> str:
    """Join a line to the text before it; a word that is divided at the end is one again."""
    if re.search(r"\w-$", text) and line[:1].islower():
        return text[:-1] + line
    return f"{text} {line}"


def _join_sentences(blocks: Iterable[_TextBlock]) -> list[_TextBlock]:
    """Join paragraphs where a sentence goes on in the next column or on the next page."""
    joined: list[_TextBlock] = []
    for block in blocks:
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.kind in ("paragraph", "item")
            and block.kind == "paragraph"
            and block.text[:1].islower()
            and last.text[-1:] not in ".!?:"
        ):
            last.text = _join_lines(last.text, block.text)
        else:
            joined.append(block)
    return joined


def _write_markdown(blocks: Sequence[_TextBlock]) -> str:
    sizes = sorted({block.size for block in blocks if block.kind == "heading"}, reverse=True)
    level_by_size = {size: min(index, 6) for index, size in enumerate(sizes, start=1)}
    parts: list[str] = []
    for number, page in groupby(blocks, key=lambda block: block.page):
        html = ""
        for kind, group in groupby(page, key=lambda block: block.kind):
            if kind == "item":
                html += _write_list(list(group))
            else:
                html += "".join(_write_block(block, level_by_size) for block in group)
        parts += [f"<!-- page {number} -->", html_to_markdown(html)]
    return "\n\n".join(parts)


def _write_block(block: _TextBlock, level_by_size: dict[float, int]) -> str:
    if block.table is not None:
        header, *rows = block.table.rows
        cells = ["".join(f"<th>{escape(text)}</th>" for text in header)]
        cells += ["".join(f"<td>{escape(text)}</td>" for text in row) for row in rows]
        return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"
    tag = f"h{level_by_size[block.size]}" if block.kind == "heading" else "p"
    return f"<{tag}>{escape(block.text)}</{tag}>"


def _write_list(items: Sequence[_TextBlock]) -> str:
    """Write list items, nested by where they begin."""
    html, lefts = "", list[float]()
    for item in items:
        while lefts and item.left < lefts[-1] - 2:
            html += "</li></ul>"
            lefts.pop()
        if lefts and item.left <= lefts[-1] + 2:
            html += "</li><li>"
        else:
            html += "<ul><li>"
            lefts.append(item.left)
        html += escape(item.text)
    return html + "</li></ul>" * len(lefts)
