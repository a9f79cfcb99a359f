"""CSV: a header that names columns, and records that may extend over several lines.

An unclosed quote would swallow all rows after it, so quoting is strict: only the line with the quote is rejected, and
reading goes on with the line after it.
"""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Iterable, Iterator

from abstain.core.codes import Code
from abstain.core.contracts import ImportedInteraction, ImportedReview, ImportedThumb, Review, Thumb
from abstain.core.errors import AbstainError
from abstain.ingest.parsing import ParsedRow, make_reason
from abstain.ingest.sources.cells import TableRecord, find_column_problem
from abstain.ingest.sources.lines import MAX_LINE_BYTES, OversizedLine

CONTRACT_COLUMNS = frozenset(
    [*ImportedInteraction.model_fields, *Thumb.model_fields, *Review.model_fields]
    + [f"thumb.{name}" for name in ImportedThumb.model_fields]
    + [f"review.{name}" for name in ImportedReview.model_fields]
)
"""Every column that a table may have."""

_DELIMITERS = ",;\t"
_EXCEL_HINT = re.compile('"?sep=(.)"?\\1*', re.IGNORECASE)
"""The line by which Excel is told the delimiter; before the header, and padded by delimiters in some files."""
_MAX_REREAD_BYTES = 4 * MAX_LINE_BYTES
"""The maximum number of bytes that are read again because of unclosed quotes before the file is rejected."""


def iter_csv_records(
    lines: Iterable[bytes | OversizedLine], source: str, display_name: str, valid_columns: frozenset[str] | None = None
) -> Iterator[TableRecord | ParsedRow]:
    """Read the records below the header that have a filled cell.

    Args:
        lines: The lines of the file, in UTF-8.
        source: Source of the rejected rows; records are numbered by the line in which they begin, from 1.
        display_name: The file's name in error messages.
        valid_columns: The columns of which the header must name one; None if it may name any.

    Yields:
        A record, or a rejected row for a record that cannot be read.

    Raises:
        AbstainError: The header names no valid column or one twice, too many quotes are not closed, or the header, or
            any line if `valid_columns` is None, is not UTF-8.
    """
    csv.field_size_limit(MAX_LINE_BYTES)
    feed = _NumberedLines(lines, display_name)
    delimiter, columns = _read_header(feed, display_name, valid_columns)
    feed.is_strict = valid_columns is None
    records = csv.reader(feed, delimiter=delimiter, strict=True)
    while True:
        feed.record.clear()
        try:
            cells = next(records)
        except StopIteration:
            return
        except csv.Error as error:
            number, line = feed.give_back()
            if feed.reread > _MAX_REREAD_BYTES:
                raise AbstainError(
                    Code.WRONG_FORMAT,
                    f"{display_name}: too many rows open a quote and do not close it, "
                    f"the last in line {number}: write it "
                    'again with every text in "double quotes", and "" for a quote inside',
                ) from None
            if isinstance(line, OversizedLine):
                yield line.to_rejected_row(source, number)
            else:
                yield ParsedRow(source, number, line.rstrip(b"\r\n"), (make_reason("line", f"invalid CSV: {error}"),))
            continue
        if not any(cell.strip() for cell in cells):
            continue
        number, _ = feed.record[0]
        if len(cells) == len(columns):
            yield TableRecord(number, dict(zip(columns, cells, strict=True)))
        else:
            raw = b"\n".join(line for _, line in feed.record if isinstance(line, bytes)).rstrip(b"\r\n")
            problem = f"{len(cells)} cells, but the header names {len(columns)} columns: they are shifted"
            yield ParsedRow(source, number, raw, (make_reason("line", problem),))


def _read_header(
    feed: _NumberedLines, display_name: str, valid_columns: frozenset[str] | None
) -> tuple[str, list[str]]:
    """Return the delimiter by which the first line names most (valid) columns, and the names of all columns."""
    try:
        filled_lines = (line for line in feed if line.strip())
        text = next(filled_lines, "")
        hint = _EXCEL_HINT.fullmatch(text.rstrip("\r\n"))
        text = next(filled_lines, "") if hint else text
        delimiters = hint[1] if hint else _DELIMITERS
        rows = {delimiter: next(csv.reader([text], delimiter=delimiter), []) for delimiter in delimiters}
    except csv.Error as error:
        raise AbstainError(
            Code.WRONG_FORMAT, f"{display_name}: its first line holds no column names: {error}"
        ) from None
    headers = {delimiter: [cell.strip() for cell in row] for delimiter, row in rows.items()}
    delimiter, columns = max(
        headers.items(),
        key=lambda header: len(header[1] if valid_columns is None else valid_columns.intersection(header[1])),
    )
    if valid_columns is not None and not valid_columns.intersection(columns):
        raise AbstainError(
            Code.WRONG_FORMAT,
            f"{display_name}: its first line names no known column: "
            "begin with a line such as interaction_id,given_at,thumb",
        )
    if problem := find_column_problem(columns):
        raise AbstainError(Code.WRONG_FORMAT, f"{display_name}: {problem}")
    return delimiter, columns


class _NumberedLines:
    """Numbered lines for `csv.reader`: `record` holds those of the current record, which can be given back.

    While `is_strict`, a line that is not UTF-8 raises `AbstainError`.
    """

    def __init__(self, lines: Iterable[bytes | OversizedLine], display_name: str) -> None:
        self.is_strict = True
        self._display_name = display_name
        self.record: list[tuple[int, bytes | OversizedLine]] = []
        self.reread = 0
        self._lines = enumerate(lines, start=1)
        self._returned: deque[tuple[int, bytes | OversizedLine]] = deque()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        number, line = self._returned.popleft() if self._returned else next(self._lines)
        if not self.record:
            self._size = 0
        self.record.append((number, line))
        if isinstance(line, OversizedLine):
            raise csv.Error("a line is too long")
        self._size += len(line) + 1
        if self._size > MAX_LINE_BYTES:
            raise csv.Error(f"a row of more than {MAX_LINE_BYTES:,} bytes: is a quote not closed?")
        try:
            return line.decode("utf-8", "strict" if self.is_strict else "surrogateescape") + "\n"
        except UnicodeDecodeError as error:
            raise AbstainError(
                Code.WRONG_FORMAT,
                f"{self._display_name}: line {number} is not UTF-8 (byte {error.start + 1} is "
                f"0x{line[error.start]:02x}), perhaps Windows-1252: save it as Excel's CSV UTF-8, or convert it: "
                "iconv -f WINDOWS-1252 -t UTF-8",
            ) from None

    def give_back(self) -> tuple[int, bytes | OversizedLine]:
        """Return the record's first line with its number; its other lines are read again as records of their own."""
        first, *rest = self.record
        self._returned.extendleft(reversed(rest))
        self.reread += sum(len(line) for _, line in rest if isinstance(line, bytes))
        return first
