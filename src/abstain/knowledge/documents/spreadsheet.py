"""Parse a spreadsheet (.xlsx): a sheet is a section, and each block of rows between empty ones is a table."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from datetime import date, datetime, time
from itertools import groupby
from typing import Any
from zipfile import BadZipFile

from openpyxl import load_workbook
from openpyxl.cell import Cell
from openpyxl.utils.cell import column_index_from_string
from openpyxl.utils.exceptions import InvalidFileException
from openpyxl.worksheet.worksheet import Worksheet

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.knowledge.documents.html_tables import merge_texts, write_grid
from abstain.knowledge.documents.office import read_properties

MAX_SHEETS = 50

_PLACES = re.compile(r"0\.(0+)")
_CURRENCY = re.compile(r"[€$£¥](?![-\]])|(?<=\[\$)[^-\]]+")


def parse_spreadsheet(content: bytes) -> tuple[dict[str, Any], str]:
    """Parse a spreadsheet.

    Args:
        content: The bytes of the file.

    Returns:
        Its title and the time of its last change, and its visible sheets as Markdown, with the values that formulas
        had when the file was saved.

    Raises:
        AbstainError: The file is damaged, or has more than `MAX_SHEETS` sheets.
    """
    fields = read_properties(content)
    try:
        workbook = load_workbook(io.BytesIO(content), data_only=True)
    except (BadZipFile, InvalidFileException, KeyError, ValueError, TypeError) as error:
        raise AbstainError(Code.WRONG_FORMAT, f"cannot be read: {error}: save it again") from None
    sheets = [sheet for sheet in workbook.worksheets if sheet.sheet_state == "visible"]
    if len(sheets) > MAX_SHEETS:
        problem = f"it has {len(sheets):,} sheets, {MAX_SHEETS} allowed: divide it, or hide what is no document"
        raise AbstainError(Code.TOO_LARGE, problem)
    sections = ((sheet.title, list(_iter_blocks(sheet))) for sheet in sheets)
    return fields, "\n\n".join("\n\n".join([f"## {title}", *blocks]) for title, blocks in sections if blocks)


def _iter_blocks(sheet: Worksheet) -> Iterator[str]:
    """Yield the blocks of rows between empty ones: a cell as a paragraph, a column as a list, others as tables."""
    texts = _read_texts(sheet)
    # Rows that follow each other are as far from their places in the sorted list.
    for _, group in groupby(enumerate(sorted(texts)), key=lambda item: item[1] - item[0]):
        block = [row for _, row in group]
        columns = sorted({column for row in block for column in texts[row]})
        grid = [[texts[row].get(column, "") for column in columns] for row in block]
        if len(set(grid[0])) == 1 and len(block) == 1:
            yield grid[0][0]
            continue
        if len(columns) == 1:
            yield "\n".join(f"- {text}" for (text,) in grid)
            continue
        n_header_rows = min(_count_header_rows(sheet, block[0]), len(block))
        header = [merge_texts(texts_above) for texts_above in zip(*grid[:n_header_rows], strict=True)]
        yield write_grid([header, *grid[n_header_rows:]])


def _read_texts(sheet: Worksheet) -> dict[int, dict[int, str]]:
    """Return the texts of the visible cells by row and column; a merged cell is repeated in each that it covers."""
    hidden_rows = {row for row, dimension in sheet.row_dimensions.items() if dimension.hidden}
    hidden_columns = {
        column_index_from_string(name) for name, column in sheet.column_dimensions.items() if column.hidden
    }
    texts: dict[int, dict[int, str]] = {}
    for (row, column), cell in sheet._cells.items():  # the public iterators make every cell of the rectangle
        if row not in hidden_rows and column not in hidden_columns and (text := _format_cell(cell)):
            texts.setdefault(row, {})[column] = text
    widest = max((max(cells) for cells in texts.values()), default=0)
    for merged in sheet.merged_cells.ranges:
        text = texts.get(merged.min_row, {}).get(merged.min_col, "")
        for row in range(merged.min_row, merged.max_row + 1) if text else ():
            for column in range(merged.min_col, min(merged.max_col, widest) + 1):
                texts.setdefault(row, {})[column] = text
    return texts


def _count_header_rows(sheet: Worksheet, first_row: int) -> int:
    """Count the header rows of a table: as many as a cell of the first row covers, and one below a cell of columns."""
    spans = [
        merged.max_row - first_row + 1 + (merged.max_col > merged.min_col and merged.max_row == first_row)
        for merged in sheet.merged_cells.ranges
        if merged.min_row == first_row
    ]
    return max(spans, default=1)


def _format_cell(cell: Cell) -> str:
    """Return the value of a cell as it is displayed, about: places, percent and currency of numbers, ISO dates."""
    value = cell.value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _format_number(value, str(cell.number_format).partition(";")[0])
    if isinstance(value, datetime):
        return value.date().isoformat() if value.time() == time() else value.isoformat(" ", "minutes")
    if isinstance(value, date | time):
        return value.isoformat()
    return " ".join(str("" if value is None else value).split())


def _format_number(value: float, number_format: str) -> str:
    value, unit = (value * 100, "%") if "%" in number_format else (value, "")
    places = _PLACES.search(number_format)
    separator = "," if "#,#" in number_format or ",0" in number_format else ""
    text = f"{value:{separator}.{len(places[1])}f}" if places else f"{round(value, 10):{separator}.15g}"
    sign = _CURRENCY.search(number_format)
    return f"{sign[0]} {text}{unit}" if sign else f"{text}{unit}"
