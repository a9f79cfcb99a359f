"""The cells of an HTML table -> a grid of texts, header first -> a Markdown table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bs4.element import Tag

MOST = 1000
"""Columns or rows that cells may span, as in browsers."""

MAX_CELLS = 200_000
"""The most places of a table, rows times columns: short rows and cells that span rows fill many from little text."""


class TooManyCells(ValueError):
    """A table has more than `MAX_CELLS` places."""


def build_grid(table: Tag, texts: Mapping[int, str]) -> list[list[str]]:
    """The rows of `table`, equally long, the first of them its header (empty texts where it has none).

    `texts`: the text of each cell by its identity. A cell that spans columns or rows is repeated in each. An
    invalid span counts as 1, and no span is wider than the row with the most cells. Raises `TooManyCells`.
    """
    rows = [row for row in table.find_all("tr") if row.find_parent("table") is table]
    cells = [row.find_all(["td", "th"], recursive=False) for row in rows]
    widest = max(map(len, cells), default=0)
    grid: list[dict[int, Tag]] = [{} for _ in rows]
    filled = 0
    for at, row in enumerate(cells):
        column = 0
        for cell in row:
            while column in grid[at]:
                column += 1
            wide = _span(cell, "colspan", min(widest, MOST - column))
            high = _span(cell, "rowspan", min(len(rows) - at, MOST))
            filled += wide * high
            if max(filled, len(rows) * (column + wide)) > MAX_CELLS:
                raise TooManyCells
            for line in grid[at : at + high]:
                for offset in range(wide):
                    line.setdefault(column + offset, cell)
            column += wide
    columns = _columns(grid)
    written = [[texts.get(id(line.get(column)), "") for column in columns] for line in grid]
    heads = _heads(rows, cells)
    header = [_merged(texts_above) for texts_above in zip(*written[:heads], strict=True)] or [""] * len(columns)
    body = [line for line in written[heads:] if any(line)]
    return [header, *body] if any(header) or body else []


def write_grid(grid: Sequence[Sequence[str]]) -> str:
    """A Markdown table, a line a row; nothing for an empty grid."""
    if not grid:
        return ""
    lines = ["| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in grid]
    return "\n".join([lines[0], "|" + " --- |" * len(grid[0]), *lines[1:]])


def _span(cell: Tag, name: str, most: int) -> int:
    value = str(cell.get(name, "1")).strip()
    return max(1, min(int(value), most)) if value.isascii() and value.isdigit() and len(value) < 6 else 1


def _heads(rows: Sequence[Tag], cells: Sequence[Sequence[Tag]]) -> int:
    """The number of header rows at the top of the table: those of `<thead>`, else rows of `<th>` only, but not all."""
    inside = [row.parent is not None and row.parent.name == "thead" for row in rows]
    if any(inside):
        return inside.index(False) if False in inside else len(rows)
    count = 0
    while count < len(cells) and cells[count] and all(cell.name == "th" for cell in cells[count]):
        count += 1
    return count if count < len(cells) else min(count, 1)


def _merged(texts: Sequence[str]) -> str:
    return " ".join(dict.fromkeys(filter(None, texts)))


def _columns(grid: Sequence[Mapping[int, Tag]]) -> list[int]:
    """The columns in use, without those in which every cell only goes on: it began in the column before."""
    width = max((max(line) + 1 for line in grid if line), default=0)
    return [at for at in range(width) if at == 0 or any(line.get(at) is not line.get(at - 1) for line in grid)]
