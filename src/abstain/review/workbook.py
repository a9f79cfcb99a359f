"""The review file: an .xlsx workbook whose sheet `reviews` holds one row per answer, with cells to fill in.

Notes:

* A digest of each locked cell identifies a cell that was edited, for anyone who opens the file.
* A seal of each row, with the home's key, proves that this home drew it with this probability: whoever can write into
  the file can compute a digest, but not a seal. The probability of a row is the weight of its review in every metric.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from io import BytesIO
from pathlib import Path

from openpyxl import Workbook, load_workbook
from openpyxl.cell.cell import Cell
from openpyxl.styles import Alignment, Protection
from openpyxl.utils import get_column_letter
from openpyxl.worksheet.datavalidation import DataValidation

from abstain.core.codes import Code
from abstain.core.contracts import CRITERIA, Context, Interaction, Review
from abstain.core.errors import AbstainError

SHEET, EXPORT_SHEET, ID_COLUMN, SEAL = "reviews", "export", "interaction_id", "seal"
SAMPLED_COLUMNS = {
    "interaction_id": 14,
    "question": 40,
    "answer": 50,
    "contexts": 70,
    "product": 12,
    "line_of_business": 12,
    "reason": 10,
    "inclusion_probability": 12,
}
"""The columns of the export, and the width of each in characters. These cells are locked."""
REVIEWER_COLUMNS = {**dict.fromkeys(CRITERIA, 10), "ideal_answer": 50, "reviewer": 14, "reviewed_at": 22}
COLUMNS = SAMPLED_COLUMNS | REVIEWER_COLUMNS

MAX_CELL = 32_767
"""Number of UTF-16 code units that a cell of Excel holds."""

_FORBIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\ufffe\uffff]|_(?=x[0-9A-F]{4}_)", re.IGNORECASE)
_ESCAPED = re.compile(r"_x((?!D[89A-F])[0-9A-F]{4})_", re.IGNORECASE)

_ENDS = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"  # every character at which some program begins a line
_UNSEEN = (
    r"\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    r"\ufe00-\ufe0f\ufeff\uffa0"
)
_SPACE = rf"(?:[^\S{_ENDS}]|[{_UNSEEN}])"
_BREAK = rf"(?:^|(?<=[{_ENDS}])){_SPACE}*"
_NUMBER = rf"[\[\uff3b]{_SPACE}*\d(?:\d|{_SPACE})*[\]\uff3d]"  # digits of any script, because readers recognize them
_MARK = r"\1" + r"\\"
_LIKE_A_CHUNK = re.compile(rf"({_BREAK})(?=\\*{_NUMBER})")


@dataclass(frozen=True)
class ReviewRow:
    """A row of the sheet `reviews`.

    Attributes:
        number: Row number in the spreadsheet.
        cells: Column -> text, for each of `COLUMNS`.
        cell_addresses: Column -> address, for example J6.
        problem: The cell for which the row is rejected, with the remedy; None without a problem.
        seal: The seal of the export.
    """

    number: int
    cells: Mapping[str, str]
    cell_addresses: Mapping[str, str]
    problem: str | None
    seal: str


def make_workbook(rows: Iterable[Mapping[str, str]], key: bytes) -> Workbook:
    """Make a new review file.

    Args:
        rows: Rows with a text for each of `COLUMNS`.
        key: Key of the seals.

    Returns:
        The workbook.

    Raises:
        AbstainError: An id or a reviewer's text is longer than a cell.
    """
    book = Workbook()
    sheet, export = book.worksheets[0], book.create_sheet(EXPORT_SHEET)
    sheet.title, export.sheet_state = SHEET, "hidden"
    export.append([*SAMPLED_COLUMNS, SEAL])
    for column, (name, width) in enumerate(COLUMNS.items(), start=1):
        write_text(sheet.cell(1, column), name, locked=True)
        sheet.column_dimensions[get_column_letter(column)].width = width
    for number, row in enumerate(rows, start=2):
        for column, name in enumerate(COLUMNS, start=1):
            write_text(sheet.cell(number, column), row[name], locked=name in SAMPLED_COLUMNS)
        exported = {name: row[name] if name == ID_COLUMN else from_cell(to_cell(row[name])) for name in SAMPLED_COLUMNS}
        digests = [text if name == ID_COLUMN else _digest(text) for name, text in exported.items()]
        for column, text in enumerate([*digests, _seal(exported, key)], start=1):
            write_text(export.cell(number, column), text)
    choice = DataValidation("list", formula1='"yes,no"', showErrorMessage=True, allow_blank=True)
    choice.add(f"I2:K{max(sheet.max_row, 2)}")
    sheet.add_data_validation(choice)
    sheet.freeze_panes, sheet.auto_filter.ref = "A2", sheet.dimensions
    unlocked = sheet.column_dimensions["O"]  # and the columns after it, for the reviewer's notes
    unlocked.min, unlocked.max, unlocked.protection = len(COLUMNS) + 1, len(COLUMNS) + 20, Protection(locked=False)
    export.protection.sheet = sheet.protection.sheet = True
    for allowed in ("autoFilter", "sort", "formatCells", "formatColumns", "formatRows"):
        setattr(sheet.protection, allowed, False)  # False allows it
    return book


def read_workbook(path: Path) -> list[ReviewRow]:
    """Read a review file.

    Args:
        path: The file.

    Returns:
        The non-empty rows (`read_rows`).

    Raises:
        AbstainError: The file cannot be read, or is no review file.
    """
    try:
        book = load_workbook(BytesIO(path.read_bytes()))
    except OSError as error:
        raise AbstainError(
            Code.NOT_READABLE, f"{path}: cannot be read ({error.strerror}): name a file of the export"
        ) from None
    except Exception as error:  # openpyxl has no common base class for its errors
        reason = " ".join(str(error).split())[:80]
        raise AbstainError(
            Code.WRONG_FORMAT, f"{path}: is no .xlsx workbook ({reason}): save it as one, or export again"
        ) from None
    try:
        return read_rows(book)
    except LookupError as missing:
        raise AbstainError(
            Code.WRONG_FORMAT, f"{path}: {missing.args[0]} is missing: keep all of the export, or export again"
        ) from None


def read_rows(book: Workbook) -> list[ReviewRow]:
    """Read the non-empty rows in the order of the sheet; columns may be in any order, among others.

    Args:
        book: The workbook.

    Returns:
        The rows.

    Raises:
        LookupError: A sheet or a column is missing; the message names it.
    """
    exported = {_text(line[ID_COLUMN]): line for line in _read_lines(book, EXPORT_SHEET, (*SAMPLED_COLUMNS, SEAL))}
    rows = [_read_row(line, exported) for line in _read_lines(book, SHEET, COLUMNS)]
    return [row for row in rows if any(row.cells.values())]


def check_seals(rows: Sequence[ReviewRow], key: bytes) -> list[ReviewRow]:
    """Reject the rows that were not sealed with this key.

    Args:
        rows: Rows of a review file.
        key: Key of the seals.

    Returns:
        All rows; a rejected one has a `problem`.

    Raises:
        AbstainError: No row was sealed with this key: the file is from another home.
    """
    sealed = [hmac.compare_digest(row.seal.encode(), _seal(row.cells, key).encode()) for row in rows]
    if rows and not any(sealed) and not all(row.problem for row in rows):
        raise AbstainError(
            Code.WRONG_FORMAT,
            "no row of this review file was exported with this home's key: import it where it was exported, or set "
            "ABSTAIN_USER_KEY to that home's user.key, or export again",
        )
    return [
        row if is_sealed or row.problem else _reject_unsealed(row) for row, is_sealed in zip(rows, sealed, strict=True)
    ]


def to_bytes(book: Workbook) -> bytes:
    """Return the workbook as the content of a file.

    Args:
        book: The workbook.

    Returns:
        The bytes of the file.
    """
    out = BytesIO()
    book.save(out)
    return out.getvalue()


def make_sampled_cells(
    interaction: Interaction, locations: Mapping[str, str], reason: str, n_sampled: int, n_population: int
) -> dict[str, str]:
    """Make the texts of `SAMPLED_COLUMNS`.

    Args:
        interaction: The sampled interaction.
        locations: Chunk id -> where the chunk is found.
        reason: The reason for its selection.
        n_sampled: Number of sampled interactions of its stratum.
        n_population: Number of interactions of its stratum.

    Returns:
        Column -> text.
    """
    return {
        "interaction_id": interaction.interaction_id,
        "question": interaction.question,
        "answer": interaction.answer,
        "contexts": format_contexts(interaction.contexts, locations),
        "product": interaction.product or "",
        "line_of_business": interaction.line_of_business or "",
        "reason": reason,
        "inclusion_probability": f"{n_sampled} of {n_population}",
    }


def make_reviewer_cells(review: Review | None) -> dict[str, str]:
    """Make the texts of `REVIEWER_COLUMNS`.

    Args:
        review: The review; None leaves the cells empty.

    Returns:
        Column -> text.
    """
    if review is None:
        return dict.fromkeys(REVIEWER_COLUMNS, "")
    return {
        **{name: "yes" if getattr(review, name) else "no" for name in CRITERIA},
        "ideal_answer": review.ideal_answer or "",
        "reviewer": review.reviewer,
        "reviewed_at": format_timestamp(review.reviewed_at),
    }


def format_timestamp(moment: datetime) -> str:
    """Format a time in UTC, for example 2026-11-21T14:30:00Z.

    Args:
        moment: A time in UTC.

    Returns:
        The text.
    """
    return moment.isoformat().replace("+00:00", "Z")


def format_contexts(contexts: Iterable[Context], locations: Mapping[str, str]) -> str:
    """Format ranked chunks as one readable text, with `[rank] chunk_id (location)` above each.

    A line of a chunk's text that looks like such a heading is prefixed by a backslash, so that the text of one page
    cannot forge another chunk.

    Args:
        contexts: The chunks in their order.
        locations: Chunk id -> where the chunk is found, of those that are known.

    Returns:
        The text.
    """
    parts = []
    for rank, context in enumerate(contexts, start=1):
        location = locations.get(context.chunk_id)
        heading = " ".join(context.chunk_id.split()) + (f" ({location})" if location else "")
        parts.append(f"[{rank}] {heading}\n{_LIKE_A_CHUNK.sub(_MARK, context.text.strip())}")
    return "\n\n".join(parts)


def to_cell(text: str) -> str:
    """Convert a text to the form that a workbook stores.

    Characters that are invalid in XML are written as `_x0000_`; a text that is too long is cut, with a note.

    Args:
        text: Any text.

    Returns:
        The value of the cell.
    """
    cell = _FORBIDDEN.sub(lambda match: f"_x{ord(match[0]):04X}_", text)
    units = cell.encode("utf-16-le")
    if len(units) <= 2 * MAX_CELL:
        return cell
    note = f" [... cut: {len(text):,} characters in all]"
    return units[: 2 * (MAX_CELL - len(note))].decode("utf-16-le", "ignore") + note


def fits_in_cell(text: str) -> bool:
    """Return whether a cell holds the whole of `text`.

    Args:
        text: Any text.

    Returns:
        False if `to_cell` would cut it.
    """
    return from_cell(to_cell(text)) == text


def from_cell(cell: str) -> str:
    """Restore the text that `to_cell`, or a spreadsheet, stored.

    Args:
        cell: The value of the cell.

    Returns:
        The text.
    """
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), cell)


def write_text(cell: Cell, text: str, locked: bool = False) -> None:
    """Write a cell as text, so that a spreadsheet neither executes nor converts it.

    Args:
        cell: The cell.
        text: Its text.
        locked: Whether the cell is locked; a locked text may be cut.

    Raises:
        AbstainError: A text that is not locked does not fit; it may not be cut, because it is read back.
    """
    cell.value = to_cell(text) or None
    if not locked and not fits_in_cell(text):
        raise AbstainError(
            Code.INVALID_ROW, f"'{text[:40]}...' is longer than the {MAX_CELL:,} characters of a cell: shorten it"
        )
    if text:
        cell.data_type = "s"  # openpyxl takes =1+1 for a formula
    cell.number_format = "@"
    cell.alignment = Alignment(wrap_text=True, vertical="top")
    cell.protection = Protection(locked=locked)


def _read_lines(book: Workbook, sheet: str, columns: Iterable[str]) -> list[dict[str, Cell]]:
    """Return the cells of each row below the header, by column name in any case."""
    if sheet not in book.sheetnames:
        raise LookupError(f"the sheet '{sheet}'")
    header, *lines = book[sheet].iter_rows(min_row=1)
    index_by_name = {_text(cell).strip().lower(): index for index, cell in enumerate(header)}
    for name in columns:
        if name not in index_by_name:
            raise LookupError(f"the column '{name}' of the sheet '{sheet}'")
    return [{name: line[index_by_name[name]] for name in columns} for line in lines]


def _read_row(line: Mapping[str, Cell], exported: Mapping[str, Mapping[str, Cell]]) -> ReviewRow:
    cells = {name: _text(cell) for name, cell in line.items()}
    original = exported.get(cells[ID_COLUMN])
    problem = None
    for name, cell in line.items():
        address = f"{SHEET}!{cell.coordinate}: {name}"
        if original is None:
            problem = f"{address} was not exported: restore it, or delete the row"
        elif name in REVIEWER_COLUMNS and cell.data_type == "f":
            problem = f"{address} is a formula: write its text instead"
        elif name in SAMPLED_COLUMNS and name != ID_COLUMN and _digest(cells[name]) != _text(original[name]):
            problem = f"{address} was changed: restore it, or copy the review into a fresh export"
        if problem:
            break
    addresses = {name: cell.coordinate for name, cell in line.items()}
    return ReviewRow(line[ID_COLUMN].row, cells, addresses, problem, _text(original[SEAL]) if original else "")


def _text(cell: Cell) -> str:
    return "" if cell.value is None else from_cell(str(cell.value))


def _reject_unsealed(row: ReviewRow) -> ReviewRow:
    place = f"{SHEET}!{row.cell_addresses['inclusion_probability']}: inclusion_probability"
    return replace(row, problem=f"{place} is not as this home drew it: copy the review into a fresh export")


def _seal(cells: Mapping[str, str], key: bytes) -> str:
    """Return 32 hexadecimal digits that only the owner of `key` can compute from the texts of `SAMPLED_COLUMNS`."""
    parts = (cells[name] if name == ID_COLUMN else _digest(cells[name]) for name in SAMPLED_COLUMNS)
    return hmac.digest(key, "\0".join(("review", *parts)).encode("utf-8", "surrogatepass"), "sha256").hex()[:32]


def _digest(text: str) -> str:
    """Return a digest of a text that does not depend on a spreadsheet's changes to line breaks and control characters.

    LibreOffice saves a text like `_x0041_` without the escape that it was read with, so it counts as the letter.
    """
    for _ in range(
        4
    ):  # a row with a text that is nested deeper, which has no use, is rejected after LibreOffice saved it
        text = from_cell(text)
    return hashlib.sha256(" ".join(re.sub(r"[\x00-\x1f]", " ", text).split()).encode()).hexdigest()[:16]
