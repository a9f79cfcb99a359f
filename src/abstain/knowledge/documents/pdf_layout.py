"""Find the lines and tables of a page of a PDF, in the order in which they are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import median, median_low
from typing import Any

_COLUMN_GAP = 0.9  # a wider gap between words, in sizes of the type, divides a line into parts
_ALIGNMENT = 3  # points by which the parts of a table's lines may begin apart
_MIN_TABLE_LINES = 3
_MIN_COLUMN_LINES = 4
_MIN_COLUMN_FILL = 0.6  # of a column's width, which most lines of running text fill


@dataclass(frozen=True)
class Line:
    """A line of text; places are in points from the page's upper left corner."""

    text: str
    left: float
    right: float
    top: float
    bottom: float
    size: float
    is_bold: bool


@dataclass(frozen=True)
class PageTable:
    """A table: rows of equal length, header first; `size` is that of most of its words."""

    rows: tuple[tuple[str, ...], ...]
    top: float
    size: float


_Row = list[Line]  # parts of text at the same height, from left to right


def read_page(page: Any) -> list[Line | PageTable]:
    """Read a page.

    Args:
        page: The page, of pdfplumber.

    Returns:
        Its lines and tables, in the order in which they are read.
    """
    words = page.extract_words(extra_attrs=["size", "fontname"], keep_blank_chars=False)
    tables: list[PageTable] = []
    for table in page.find_tables() if len(page.rects) + len(page.lines) >= 2 else ():
        texts = _fill_merged(table.extract())
        if len(texts) > 1 and len(texts[0]) > 1:
            inside = [word for word in words if _is_inside(word, table.bbox)]
            size = median_low([round(word["size"], 1) for word in inside] or [0.0])
            tables.append(PageTable(texts, table.bbox[1], size))
            words = [word for word in words if not _is_inside(word, table.bbox)]
    rows = _mark_items(_split_rows(words), [*page.curves, *page.rects])
    out: list[Line | PageTable] = []
    for item in _order(rows, float(page.width)):
        while tables and tables[0].top < item.top:
            out.append(tables.pop(0))
        out.append(item)
    return out + tables


def _is_inside(word: Mapping[str, Any], box: tuple[float, float, float, float]) -> bool:
    left, top, right, bottom = box
    return bool(left <= (word["x0"] + word["x1"]) / 2 <= right and top <= (word["top"] + word["bottom"]) / 2 <= bottom)


def _mark_items(rows: Sequence[_Row], shapes: Sequence[Mapping[str, Any]]) -> list[_Row]:
    """Return the rows with a bullet before text that has one drawn on its left, as browsers print them."""
    marked: list[_Row] = []
    for first, *rest in rows:
        is_item = any(
            max(shape["width"], shape["height"]) < 0.7 * first.size
            and first.left - 2 * first.size < shape["x1"] <= first.left
            and first.top < (shape["top"] + shape["bottom"]) / 2 < first.bottom
            for shape in shapes
        )
        marked.append([replace(first, text=f"• {first.text}") if is_item else first, *rest])
    return marked


def _fill_merged(rows: Iterable[Sequence[str | None]]) -> tuple[tuple[str, ...], ...]:
    """Return the rows of a table, with a merged cell's text in each place that it covers, and without empty rows."""
    filled: list[tuple[str, ...]] = []
    for row in rows:
        texts: list[str] = []
        for column, text in enumerate(row):
            if text is None:  # covered by the cell on the left, else by the one above
                text = texts[-1] if texts else (filled[-1][column] if filled else "")
            texts.append(" ".join(text.split()))
        if any(texts):
            filled.append(tuple(texts))
    return tuple(filled)


def _split_rows(words: Sequence[dict[str, Any]]) -> list[_Row]:
    """Return the words as rows of parts, from top to bottom."""
    rows: list[list[dict[str, Any]]] = []
    for word in sorted(words, key=lambda word: (word["top"], word["x0"])):
        middle = (word["top"] + word["bottom"]) / 2
        if rows and middle < rows[-1][0]["bottom"] and word["top"] < rows[-1][0]["bottom"] - 0.3 * word["size"]:
            rows[-1].append(word)
        else:
            rows.append([word])
    return [_join_words(sorted(row, key=lambda word: word["x0"])) for row in rows]


def _join_words(words: Sequence[dict[str, Any]]) -> _Row:
    parts: list[list[dict[str, Any]]] = []
    for word in words:
        is_bullet = bool(parts) and len(parts[-1]) == 1 and len(parts[-1][0]["text"]) == 1
        if parts and (word["x0"] - parts[-1][-1]["x1"] < _COLUMN_GAP * word["size"] or is_bullet):
            parts[-1].append(word)
        else:
            parts.append([word])
    return [
        Line(
            text=" ".join(word["text"] for word in part),
            left=part[0]["x0"],
            right=part[-1]["x1"],
            top=min(word["top"] for word in part),
            bottom=max(word["bottom"] for word in part),
            size=round(max(word["size"] for word in part), 1),
            is_bold=all("bold" in word["fontname"].lower() for word in part),
        )
        for part in parts
    ]


def _order(rows: Sequence[_Row], width: float) -> Iterator[Line | PageTable]:
    """Yield the parts of rows in the order in which they are read; aligned rows are a table."""
    gutter = _find_gutter(rows, width)
    for is_spanning, group in groupby(rows, key=lambda row: gutter is None or _spans(row, gutter)):
        band = list(group)
        if is_spanning or gutter is None:
            yield from _order_rows(band)
        else:
            for is_right in (False, True):
                column = [[part for part in row if (part.left > gutter) == is_right] for row in band]
                yield from _order_rows([row for row in column if row])


def _find_gutter(rows: Sequence[_Row], width: float) -> float | None:
    """Return the middle between two columns of running text; None if there is one column."""
    pairs = [
        row for row in rows if len(row) == 2 and row[0].right < row[1].left and row[0].left < width / 2 < row[1].right
    ]
    if len(pairs) < _MIN_COLUMN_LINES:
        return None
    left, right = median(row[0].left for row in pairs), median(row[1].left for row in pairs)
    column_width = right - left
    fills = [(part.right - part.left) / column_width for row in pairs for part in row]
    if median(fills) < _MIN_COLUMN_FILL:  # a table, whose cells are short
        return None
    return (max(row[0].right for row in pairs if row[0].right < right) + right) / 2


def _spans(row: _Row, gutter: float) -> bool:
    return any(part.left < gutter < part.right for part in row)


def _order_rows(rows: Sequence[_Row]) -> Iterator[Line | PageTable]:
    position = 0
    while position < len(rows):
        end = position + 1
        while end < len(rows) and len(rows[position]) > 1 and _are_aligned(rows[end - 1], rows[end]):
            end += 1
        if end - position >= _MIN_TABLE_LINES:
            texts = tuple(tuple(part.text for part in row) for row in rows[position:end])
            yield PageTable(texts, rows[position][0].top, rows[position][0].size)
        else:
            for row in rows[position:end]:
                yield row[0] if len(row) == 1 else _merge(row)
        position = end


def _are_aligned(row: _Row, below: _Row) -> bool:
    return len(row) == len(below) and all(
        abs(part.left - other.left) <= _ALIGNMENT for part, other in zip(row, below, strict=True)
    )


def _merge(row: _Row) -> Line:
    """Return the parts of a row as one line."""
    return Line(
        text=" ".join(part.text for part in row),
        left=row[0].left,
        right=row[-1].right,
        top=min(part.top for part in row),
        bottom=max(part.bottom for part in row),
        size=max(part.size for part in row),
        is_bold=all(part.is_bold for part in row),
    )
