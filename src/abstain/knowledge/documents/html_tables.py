"""Convert an HTML table to a grid of texts, header first, and the grid to a Markdown table or to one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bs4.element import Tag

MAX_SPAN = 1000
"""The maximum number of columns or rows that a cell may span, as in browsers."""


def build_grid(table: Tag, texts: Mapping[int, str]) -> list[list[str]]:
    """Arrange the texts of a table in a grid.

    A cell that spans columns or rows is repeated in each of them. An invalid span counts as 1, and no span is wider
    than the row with the most cells.

    Args:
        table: The table.
        texts: Text of each cell, by the identity (`id`) of its tag.

    Returns:
        Rows of equal length. The first is the header, with empty texts if the table has none.
    """
    rows = [row for row in table.find_all("tr") if row.find_parent("table") is table]
    cells = [row.find_all(["td", "th"], recursive=False) for row in rows]
    widest = max(map(len, cells), default=0)
    grid: list[dict[int, Tag]] = [{} for _ in rows]
    for row_index, row in enumerate(cells):
        column = 0
        for cell in row:
            while column in grid[row_index]:
                column += 1
            colspan = _span(cell, "colspan", min(widest, MAX_SPAN - column))
            rowspan = _span(cell, "rowspan", min(len(rows) - row_index, MAX_SPAN))
            for line in grid[row_index : row_index + rowspan]:
                for offset in range(colspan):
                    line.setdefault(column + offset, cell)
            column += colspan
    columns = _find_used_columns(grid)
    text_rows = [[texts.get(id(line.get(column)), "") for column in columns] for line in grid]
    n_header_rows = _count_header_rows(rows, cells)
    header = [merge_texts(texts_above) for texts_above in zip(*text_rows[:n_header_rows], strict=True)] or [""] * len(
        columns
    )
    body = [line for line in text_rows[n_header_rows:] if any(line)]
    return [header, *body] if any(header) or body else []


def write_grid(grid: Sequence[Sequence[str]]) -> str:
    """Return `grid` as a Markdown table with one line per row; an empty text for an empty grid."""
    if not grid:
        return ""
    lines = ["| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in grid]
    return "\n".join([lines[0], "|" + " --- |" * len(grid[0]), *lines[1:]])


def write_line(grid: Sequence[Sequence[str]]) -> str:
    """Return `grid` in one line, each text behind its header: "Type: Main, Euro: 90; Type: Second, Euro: 12"."""
    header, *rows = grid or [[]]
    lines = [
        ", ".join(f"{name}: {text}" if name else text for name, text in zip(header, row, strict=True) if text)
        for row in rows
    ]
    return "; ".join(lines or [", ".join(filter(None, header))])


def _span(cell: Tag, name: str, max_span: int) -> int:
    value = str(cell.get(name, "1")).strip()
    return max(1, min(int(value), max_span)) if value.isascii() and value.isdigit() and len(value) < 6 else 1


def _count_header_rows(rows: Sequence[Tag], cells: Sequence[Sequence[Tag]]) -> int:
    """Count the header rows at the top of a table: those of `<thead>`, else rows with only `<th>`, but not all rows."""
    is_header = [row.parent is not None and row.parent.name == "thead" for row in rows]
    if any(is_header):
        return is_header.index(False) if False in is_header else len(rows)
    count = 0
    while count < len(cells) and cells[count] and all(cell.name == "th" for cell in cells[count]):
        count += 1
    return count if count < len(cells) else min(count, 1)


def merge_texts(texts: Sequence[str]) -> str:
    return " ".join(dict.fromkeys(filter(None, texts)))


def _find_used_columns(grid: Sequence[Mapping[int, Tag]]) -> list[int]:
    """Return the columns in which at least one cell begins; in the others every cell began in the column before."""
    width = max((max(line) + 1 for line in grid if line), default=0)
    return [
        column
        for column in range(width)
        if column == 0 or any(line.get(column) is not line.get(column - 1) for line in grid)
    ]
