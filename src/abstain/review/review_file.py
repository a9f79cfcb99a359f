"""A review file in use: each verdict is written at once, and never overwrites changes that its reviewer did not see."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from abstain.core.codes import Code
from abstain.core.contracts import VERDICTS
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically
from abstain.review.workbook import (
    REVIEWER_COLUMNS,
    SHEET,
    ReviewRow,
    read_workbook,
    split_contexts,
    to_bytes,
    write_moment,
    write_text,
)


class ReviewEntry(BaseModel):
    """A reviewer's verdict on one row, whose `version` they saw. It may be unfinished."""

    model_config = ConfigDict(extra="forbid", strict=True)

    row: int
    version: str
    complete: bool | None
    correct: bool | None
    truthful: bool | None
    ideal_answer: str = Field(max_length=20_000)
    reviewer: str = Field(min_length=1, max_length=200)


class Stale(Exception):
    """The row has changed since the reviewer saw it; `now` is its current state, None where it is gone."""

    def __init__(self, now: dict[str, Any] | None) -> None:
        super().__init__("the row was changed elsewhere")
        self.now = now


class ReviewFile:
    """The rows of the review file at `path`, for any number of reviewers at a time.

    The file is read again for every verdict: other tabs, processes and spreadsheets may write it, too.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self._lock = FileLock(self.path.with_name(f".{self.path.name}.lock"))

    def rows(self) -> list[dict[str, Any]]:
        """Every row as it is shown, in the order of the file. Raises `AbstainError` for any other file."""
        return [show_row(row) for row in read_workbook(self.path)[1]]

    def progress(self) -> tuple[int, int]:
        """The number of rows with a complete verdict, and the number of rows."""
        rows = self.rows()
        return sum(row["done"] for row in rows), len(rows)

    def save(self, verdict: ReviewEntry, now: datetime | None = None) -> dict[str, Any]:
        """Write a verdict, given `now`, into the file. Returns the row as it is shown now.

        Raises `Stale`, with nothing written, where the row has changed since the reviewer saw it.
        """
        with self._lock:
            book, rows = read_workbook(self.path)
            before = next((row for row in rows if row.number == verdict.row), None)
            if before is None or version(before) != verdict.version:
                raise Stale(show_row(before) if before else None)
            texts = _texts(verdict, now or datetime.now(UTC))
            for name, text in texts.items():
                write_text(book[SHEET][before.places[name]], text)
            write_atomically(self.path, to_bytes(book))
        return show_row(replace(before, cells={**before.cells, **texts}))


def open_review_file(path: Path) -> ReviewFile:
    """The review file at `path`. Raises `AbstainError` where it has no row, or cannot be written."""
    file = ReviewFile(path)
    if not file.rows():
        raise AbstainError(Code.NO_ROWS, f"{path}: there is no row to review in it: `abstain review export` makes one")
    if not (os.access(file.path, os.W_OK) and os.access(file.path.parent, os.W_OK)):
        raise AbstainError(
            Code.NOT_WRITABLE,
            f"{path}: verdicts could not be written into it: copy it to a folder that you may write to",
        )
    return file


def show_row(row: ReviewRow) -> dict[str, Any]:
    """A row as the page shows it, without the reason and probability of its selection."""
    verdicts = {name: _verdict(row.cells[name]) for name in VERDICTS}
    return {
        **{name: row.cells[name] for name in ("question", "answer", "ideal_answer")},
        **verdicts,
        "row": row.number,
        "contexts": [{"chunk_id": name, "text": text} for name, text in split_contexts(row.cells["contexts"])],
        "about": " · ".join(row.cells[name] for name in ("product", "line_of_business") if row.cells[name]),
        "done": None not in verdicts.values(),
        "refused": row.refused,
        "version": version(row),
    }


def version(row: ReviewRow) -> str:
    """A digest of everything that a reviewer may write, and of the answer."""
    cells = [row.cells[name] for name in ("interaction_id", "question", "answer", *REVIEWER_COLUMNS)]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()[:16]


def _texts(verdict: ReviewEntry, now: datetime) -> dict[str, str]:
    words = {None: "", True: "yes", False: "no"}
    given = {name: words[getattr(verdict, name)] for name in VERDICTS}
    ideal = verdict.ideal_answer.strip()
    moment = write_moment(now.replace(microsecond=0)) if all(given.values()) else ""
    reviewer = " ".join(verdict.reviewer.split()) if ideal or any(given.values()) else ""
    return {**given, "ideal_answer": ideal, "reviewer": reviewer, "reviewed_at": moment}


def _verdict(cell: str) -> bool | None:
    """The verdict in a cell; None where it is empty or neither yes nor no."""
    with suppress(ValidationError):
        return TypeAdapter(bool).validate_python(cell.strip())
    return None
