"""A review file as it is worked on: every verdict is written back at once, whole, into the same file.

Two decisions:

* The file is read again for every verdict, and a row is written only over what the reviewer saw of it (`version`): a
  verdict from another tab, another process or a spreadsheet is never overwritten unseen.
* A verdict may be unfinished: it is kept, too, and `abstain review import` names its row.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically
from abstain.review.cells import as_yes_or_no, guard, readable, unguard
from abstain.review.sheet import OWN, VERDICTS, read_sheet, split_contexts
from abstain.review.verdicts import is_as_drawn, is_begun


class Verdict(BaseModel):
    """What a reviewer says of one row, whose `version` they saw."""

    model_config = ConfigDict(extra="forbid", strict=True)

    row: int
    version: str
    complete: bool | None
    correct: bool | None
    truthful: bool | None
    ideal_answer: str = Field(max_length=20_000)
    reviewer: str = Field(min_length=1, max_length=200)


class Stale(Exception):
    """The row is not what the reviewer saw any more; `now` is what it is, None where it is gone."""

    def __init__(self, now: dict[str, Any] | None) -> None:
        super().__init__("the row was changed elsewhere")
        self.now = now


class Desk:
    """The rows of the review file at `path`, for any number of reviewers at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self._lock = threading.Lock()

    def rows(self) -> list[dict[str, Any]]:
        """Every row as it is shown, in the order of the file. Raises `AbstainError` for a file that is none."""
        return [shown(number, row) for number, row in read_sheet(self.path).rows.items()]

    def reviewed(self) -> tuple[int, int]:
        """How many rows have a whole verdict, and how many rows there are."""
        rows = self.rows()
        return sum(row["done"] for row in rows), len(rows)

    def save(self, verdict: Verdict, now: datetime | None = None) -> dict[str, Any]:
        """Write a verdict, given `now`, into the file. Returns the row as it is shown now.

        Raises `Stale`, with nothing written, where the row is not what the reviewer saw.
        """
        with self._alone():
            sheet = read_sheet(self.path)
            before = sheet.rows.get(verdict.row)
            if before is None or version(before) != verdict.version:
                raise Stale(shown(verdict.row, before) if before else None)
            after = {**before, **_cells(verdict, now or datetime.now(UTC))}
            changed = replace(sheet, rows={**sheet.rows, verdict.row: after})
            write_atomically(self.path, changed.to_bytes())
            return shown(verdict.row, after)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other thread and no other process of ours is at this folder's files; leaves no lock file behind."""
        with self._lock:
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX)
                yield
            finally:
                os.close(folder)


def shown(number: int, row: Mapping[str, str]) -> dict[str, Any]:
    """A row as the page shows it; of what was drawn, neither why nor with which probability."""
    text = {name: unguard(row.get(name, "")) for name in ("interaction_id", "question", "answer", "contexts")}
    contexts = [{"chunk_id": name, "text": body} for name, body in split_contexts(text.pop("contexts"))]
    verdicts = {name: _lenient(row.get(name, "")) for name in VERDICTS}
    return {
        **text,
        **verdicts,
        "row": number,
        "contexts": contexts,
        "about": " · ".join(unguard(row[name]) for name in ("product", "line_of_business") if row.get(name)),
        "ideal_answer": unguard(row.get("ideal_answer", "")),
        "reviewer": unguard(row.get("reviewer", "")),
        "done": None not in verdicts.values(),
        "begun": is_begun(row),
        "is_as_drawn": is_as_drawn(row),
        "version": version(row),
    }


def version(row: Mapping[str, str]) -> str:
    """Changes with everything that a reviewer may write, and with the answer that it is about."""
    cells = [row.get(name, "") for name in ("interaction_id", "question", "answer", *OWN)]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()[:16]


def _cells(verdict: Verdict, now: datetime) -> dict[str, str]:
    words = {None: "", True: "yes", False: "no"}
    given = {name: words[getattr(verdict, name)] for name in VERDICTS}
    ideal = guard(readable(verdict.ideal_answer.strip()))
    moment = now.isoformat(timespec="seconds").replace("+00:00", "Z") if all(given.values()) else ""
    by = guard(readable(" ".join(verdict.reviewer.split()))) if ideal or any(given.values()) else ""
    return {**given, "ideal_answer": ideal, "reviewer": by, "reviewed_at": guard(moment)}


def _lenient(cell: str) -> bool | None:
    try:
        return as_yes_or_no(cell)
    except ValueError:
        return None


def open_desk(path: Path) -> Desk:
    """The desk of a file that is there and can be written. Raises `AbstainError` otherwise."""
    desk = Desk(path)
    if not desk.rows():
        raise AbstainError(f"{path}: there is no row to review in it: `abstain review export` makes one")
    if not (os.access(desk.path, os.W_OK) and os.access(desk.path.parent, os.W_OK)):
        raise AbstainError(f"{path}: verdicts could not be written into it: copy it to a folder that you may write to")
    return desk
