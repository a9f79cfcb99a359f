"""CSV: a header that names fields of the contracts, and records that may run over several lines.

Three decisions:

* Quoting is read strictly. Where a quote is opened and not closed as it should be, only the line with it is refused,
  and reading goes on with the next one: a forgotten quote costs one row, and not the rest of the file.
* A record with more or fewer cells than the header is refused by their number: its columns are shifted, and what
  stands under `correct` may be another field's value.
* The delimiter is the one by which the header names most fields.
"""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterable, Iterator

from abstain.core.contracts import Feedback, ImportedFeedback, ImportedInteraction, ImportedReview, Review
from abstain.core.errors import AbstainError
from abstain.ingest.pipeline.parsing import InputRow, parse_object
from abstain.ingest.sources.cells import column_problem, object_of
from abstain.ingest.sources.lines import LIMIT, TooLong

KNOWN = frozenset(
    [*ImportedInteraction.model_fields, *Feedback.model_fields, *Review.model_fields]
    + [f"thumb.{name}" for name in ImportedFeedback.model_fields]
    + [f"review.{name}" for name in ImportedReview.model_fields]
)
"""Every column that a table may have."""

_DELIMITERS = ",;\t"
_REREAD = 4 * LIMIT
"""How many bytes are read once more because of quotes that were not closed, before a file is given up."""


def read_csv(lines: Iterable[bytes | TooLong], source: str, shown: str) -> Iterator[InputRow]:
    """One row a record of `lines` below the header; records without a filled cell are passed over.

    `source` is the rows' own, `shown` names the file in messages. Raises `AbstainError` for a header that names
    no column, or names one twice.
    """
    csv.field_size_limit(LIMIT)
    feed = _Feed(lines)
    delimiter, columns = _header(feed, shown)
    records = csv.reader(feed, delimiter=delimiter, strict=True)
    while True:
        feed.begin()
        try:
            cells = next(records)
        except StopIteration:
            return
        except csv.Error as error:
            number, line = feed.give_back()
            if feed.given_back > _REREAD:
                raise AbstainError(
                    f"{shown}: too many rows open a quote and do not close it, the last in line {number}: write it "
                    'again with every text in "double quotes", and "" for a quote inside'
                ) from None
            if isinstance(line, TooLong):
                yield InputRow(source, number, line.raw, (line.reason,))
            else:
                yield InputRow(source, number, line.rstrip(b"\r\n"), (f"line: invalid CSV: {error}",))
            continue
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) == len(columns):
            yield parse_object(object_of(dict(zip(columns, cells, strict=True))), source, feed.number)
        else:
            reason = f"line: {len(cells)} cells, but the header names {len(columns)} columns: they are shifted"
            yield InputRow(source, feed.number, feed.taken.rstrip(b"\r\n"), (reason,))


def _header(feed: _Feed, shown: str) -> tuple[str, list[str]]:
    try:
        text = next((line for line in feed if line.strip()), "")
        text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        cells = {one: next(csv.reader([text], delimiter=one), []) for one in _DELIMITERS}
    except csv.Error as error:
        raise AbstainError(f"{shown}: its first line holds no column names: {error}") from None
    found = {one: [cell.strip() for cell in named] for one, named in cells.items()}
    delimiter = max(_DELIMITERS, key=lambda one: len(KNOWN.intersection(found[one])))
    columns = found[delimiter]
    if not KNOWN.intersection(columns):
        raise AbstainError(
            f"{shown}: its first line names no known column ({' '.join(text.split())[:60]}): begin with a line such as "
            "interaction_id,given_at,thumb"
        )
    if problem := column_problem(columns):
        raise AbstainError(f"{shown}: {problem}")
    return delimiter, columns


class _Feed:
    """Lines for `csv.reader`, which takes as many as a record needs, and can give all but the first of them back."""

    def __init__(self, lines: Iterable[bytes | TooLong]) -> None:
        self._lines = enumerate(lines, start=1)
        self._again: deque[tuple[int, bytes | TooLong]] = deque()
        self._taken: list[tuple[int, bytes | TooLong]] = []
        self._size = 0
        self.given_back = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        number, line = self._again.popleft() if self._again else next(self._lines)
        self._taken.append((number, line))
        if isinstance(line, TooLong):
            raise csv.Error("a line is too long")
        self._size += len(line) + 1
        if self._size > LIMIT:
            raise csv.Error(f"a row of more than {LIMIT:,} bytes: is a quote not closed?")
        return line.decode("utf-8", "surrogateescape") + "\n"

    def begin(self) -> None:
        """What is taken from now on is a new record."""
        self._taken, self._size = [], 0

    @property
    def number(self) -> int:
        """The line in which the record begins, from 1."""
        return self._taken[0][0]

    @property
    def taken(self) -> bytes:
        """The record as it came."""
        return b"\n".join(line for _, line in self._taken if isinstance(line, bytes))

    def give_back(self) -> tuple[int, bytes | TooLong]:
        """The record's first line with its number; the others are to be read as records of their own."""
        first, *rest = self._taken
        self._again.extendleft(reversed(rest))
        self.given_back += sum(len(line) for _, line in rest if isinstance(line, bytes))
        return first
