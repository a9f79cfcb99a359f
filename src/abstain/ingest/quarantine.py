"""Quarantine: refused rows, kept with their reasons until a user decides on them.

    data/quarantine/<id>.jsonl         rows of one batch that were refused
    data/quarantine/blocking.json      sources whose last batch was refused whole, and why
    data/quarantine/dropped.txt        digests of discarded rows

Notes:

* Only the text of a row that meets its contract is kept, redacted. Of any other row there are its place, digest, length
  and reasons: it can be fixed at its source alone.
* A row is stored once, however often a source gives it again: its key is the digest of its raw text. The key of a thumb
  or review that came alone is the digest of its contents, because a held one has no other text.
* A row that is refused for what a person did does not count towards the failure limit (`is_user_caused`).
* Rows in quarantine and discarded rows were reported before, so they do not count towards the failure limit again; the
  rows of a batch that was refused whole do, until a user decides on them.
* A row that cites chunks of no ingested document waits here: it does not count as failed, and is validated again with
  every batch that brings documents.
* A row leaves when it is accepted (`release`, or the source gives it again once the rules or the rest of the data
  allow it), when it is discarded, or when its user is erased. Nothing else removes one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from abstain.core.codes import Code
from abstain.core.contracts import Row
from abstain.core.errors import AbstainError
from abstain.core.files import to_json, write_atomically
from abstain.core.json_lines import to_json_lines
from abstain.core.reasons import Reason, ReasonKind, Reasons
from abstain.data.store.dataset import StagedBatch, read_rows
from abstain.ingest.parsing import ParsedRow, kept_text, reparse
from abstain.ingest.pipeline.report import count_reasons
from abstain.ingest.privacy.pseudonyms import normalize_name

FOLDER = "quarantine"
_TYPED = frozenset({"question", "answer", "comment", "ideal_answer"})
_BY_PERSON = frozenset({ReasonKind.HALF_CHARACTER, ReasonKind.SAME_MOMENT, ReasonKind.TOO_LARGE})
_BY_PERSON_IN = frozenset(
    {(kind, field) for kind in (ReasonKind.BLANK_TEXT_REASON, ReasonKind.TOO_LONG) for field in _TYPED}
    | {(ReasonKind.TOO_LATE, field) for field in ("given_at", "reviewed_at")}
)


class QuarantinedRow(Row):
    """A refused line or document, with its position and every reason.

    `digest` is the row's key (`compute_row_digest`), `size` its length in bytes, `raw` its text with personal data
    redacted; None where it breaks its contract.
    """

    source: str
    line: int
    digest: str
    size: int
    raw: str | None
    reasons: Reasons

    @classmethod
    def from_row(cls, row: ParsedRow, reasons: Iterable[Reason]) -> QuarantinedRow:
        """The record of `row`, whose contents are redacted."""
        size = len(row.raw) if row.size is None else row.size
        place = {"source": row.source, "line": row.line, "digest": compute_row_digest(row)}
        return cls(**place, size=size, raw=kept_text(row), reasons=tuple(reasons))

    @property
    def awaits_documents(self) -> bool:
        """Whether it is refused only because no ingested document holds its chunks."""
        return is_awaiting_documents(self.reasons)

    def reparse(self) -> ParsedRow:
        """The row once more, as it is kept: without its text it is refused for the same reasons."""
        if self.raw is None:
            return ParsedRow(self.source, self.line, b"", self.reasons, digest=self.digest, size=self.size)
        row = reparse(self.raw.encode(), self.source, self.line)
        return replace(row, digest=self.digest, size=self.size)


@dataclass(frozen=True)
class QuarantineFile:
    """One file of the quarantine."""

    id: str
    rows: int
    sources: tuple[str, ...]
    reasons: dict[str, int]
    blocking: str | None


class Quarantine:
    """The quarantine of a data folder, as it was when this was opened."""

    def __init__(self, data: Path) -> None:
        self.folder = data / FOLDER
        self._file_of = {row.digest: path for path in self.files() for row in self.rows(path)}
        dropped, blocking = self.folder / "dropped.txt", self.folder / "blocking.json"
        self.dropped = frozenset(dropped.read_text(encoding="utf-8").split() if dropped.exists() else ())
        self.blocking: dict[str, dict[str, Any]] = json.loads(blocking.read_text()) if blocking.exists() else {}

    def files(self) -> list[Path]:
        return sorted(self.folder.glob("*.jsonl"))

    def rows(self, path: Path) -> Iterator[QuarantinedRow]:
        return read_rows(path, QuarantinedRow)

    def file_of(self, row: ParsedRow) -> Path | None:
        """The file with this row; None where it is not in quarantine."""
        return self._file_of.get(compute_row_digest(row)) if self._file_of else None

    def is_discarded(self, row: ParsedRow) -> bool:
        return bool(self.dropped) and compute_row_digest(row) in self.dropped

    def is_reported(self, row: ParsedRow) -> bool:
        """Whether this row was reported before and blocks no batch."""
        file = self.file_of(row)
        return self.is_discarded(row) or (file is not None and file.stem not in self.blocking)

    def list_files(self) -> list[QuarantineFile]:
        """Every file, with the sources that it blocks."""
        return [self._describe(path) for path in self.files()]

    def _describe(self, path: Path) -> QuarantineFile:
        rows = list(self.rows(path))
        sources, reasons = dict.fromkeys(row.source for row in rows), count_reasons(row.reasons for row in rows)
        blocking = self.blocking.get(path.stem, {}).get("message")
        return QuarantineFile(path.stem, len(rows), tuple(sources), reasons, blocking)

    def iter_rows_awaiting_documents(self) -> Iterator[QuarantinedRow]:
        """The rows that wait for documents."""
        return (row for path in self.files() for row in self.rows(path) if row.awaits_documents)

    def get_file(self, name: str) -> Path:
        """The file of an id, or of the beginning of one. Raises `AbstainError` where there is none, or several."""
        found = [path for path in self.files() if path.stem.startswith(name)]
        if len(found) == 1:
            return found[0]
        known = ", ".join(path.stem for path in self.files()) or "nothing"
        problem = "several ids begin" if found else "no id begins"
        raise AbstainError(Code.UNKNOWN_NAME, f"quarantine: {problem} with '{name}'; there are: {known}")

    def discard(self, path: Path) -> int:
        """Discard the rows of `path` for good and unblock their sources. Returns how many there were."""
        return self._drop(path, lambda row: True)

    def discard_user_rows(self, names: Collection[str], interactions: Collection[str] = ()) -> int:
        """Discard every row that names one of the users `names` (`normalize_name`), or is about one of `interactions`.

        Returns how many there were.
        """

        def is_theirs(row: QuarantinedRow) -> bool:
            parsed = row.reparse()  # a row whose text was not kept names no one
            is_from_user = parsed.feedback is not None and normalize_name(parsed.feedback.user or "") in names
            about = parsed.interaction or parsed.feedback or parsed.review
            return is_from_user or (about is not None and about.interaction_id in interactions)

        return sum(self._drop(path, is_theirs) for path in self.files())

    def _drop(self, path: Path, is_dropped: Callable[[QuarantinedRow], bool]) -> int:
        left: list[QuarantinedRow] = []
        gone: list[QuarantinedRow] = []
        for row in self.rows(path):
            (gone if is_dropped(row) else left).append(row)
        if not gone:
            return 0
        self.dropped = self.dropped.union(row.digest for row in gone)
        write_atomically(self.folder / "dropped.txt", "".join(f"{one}\n" for one in sorted(self.dropped)).encode())
        if left:
            write_atomically(path, to_json_lines(left))
            return len(gone)
        if self.blocking.pop(path.stem, None):
            write_atomically(self.folder / "blocking.json", to_json(self.blocking))
        path.unlink()
        return len(gone)

    def remove_accepted(self, accepted: set[str], staging: StagedBatch) -> None:
        """Stage every file without the rows of these digests, which have been accepted."""
        for path in {self._file_of[digest] for digest in accepted}:
            if left := [row for row in self.rows(path) if row.digest not in accepted]:
                staging.stage_file(f"{FOLDER}/{path.name}", to_json_lines(left))
            else:
                staging.stage_deletion(path)
                self.blocking.pop(path.stem, None)

    def block(self, name: str, sources: Sequence[str], message: str) -> None:
        """Block `sources` by the file `name`."""
        others = self.blocking.get(name, {}).get("sources", [])
        self.blocking[name] = {"sources": sorted({*others, *sources}), "message": message}

    def unblock(self, sources: Sequence[str]) -> None:
        """A later batch of all `sources` was good."""
        self.blocking = {
            name: entry for name, entry in self.blocking.items() if not set(entry["sources"]) <= set(sources)
        }

    def stage_blocking(self, staging: StagedBatch) -> None:
        if self.blocking or (self.folder / "blocking.json").exists():
            staging.stage_file(f"{FOLDER}/blocking.json", to_json(self.blocking))


class QuarantineWriter:
    """The refused rows of one batch, written as they come; the file is named by its content."""

    def __init__(self, staging: StagedBatch) -> None:
        self._staging = staging
        self._digests: dict[str, None] = {}
        self._path = staging.folder / ".refused"
        self._file = self._path.open("wb")

    def add(self, row: QuarantinedRow) -> None:
        """Keep `row`, once however often it comes."""
        if row.digest not in self._digests:
            self._digests[row.digest] = None
            self._file.write(row.to_json_line().encode() + b"\n")

    def close(self) -> str | None:
        """Stage the file; its id, or None where no row came."""
        self._file.close()
        if not self._digests:
            return None
        name = hashlib.sha256("".join(self._digests).encode()).hexdigest()[:16]
        target = self._staging.folder / FOLDER / f"{name}.jsonl"
        target.parent.mkdir(exist_ok=True)
        self._path.replace(target)
        return name


def require_unblocked(data: Path) -> None:
    """Raise `AbstainError` where a source's last batch was refused whole and no decision was made yet."""
    blocking = Quarantine(data).blocking
    if blocking:
        name, first = next(iter(blocking.items()))
        more = f" (and {len(blocking) - 1} more)" if len(blocking) > 1 else ""
        raise AbstainError(
            Code.BATCH_REJECTED,
            f"the retrain is blocked{more}: {first['message']}; fix the source and ingest again, or decide with "
            f"`abstain quarantine retry {name}` or `abstain quarantine discard {name}`",
        )


def is_awaiting_documents(reasons: Iterable[Reason]) -> bool:
    """Whether all of `reasons` are that no ingested document holds the row's chunks."""
    return all(reason.kind is ReasonKind.UNKNOWN_CONTEXTS for reason in reasons)


def is_user_caused(reasons: Iterable[Reason]) -> bool:
    """Whether a person can cause all of `reasons`: by what they type (a long or blank text, half a character), by a
    thumb or a review on an old answer, or by two thumbs within a moment.

    Such rows do not count towards the failure limit, which is meant for exporters: one person could refuse every batch.
    """
    return all(
        reason.kind in _BY_PERSON or (reason.kind, reason.field.rpartition(".")[2]) in _BY_PERSON_IN
        for reason in reasons
    )


def compute_row_digest(row: ParsedRow) -> str:
    """A row's key in the quarantine, a sha256 (hex): of its original text, or, for a thumb or review that came alone,
    of its contents as they would be stored, personal data redacted, so that held and direct ones have equal keys."""
    if row.digest is not None:
        return row.digest
    alone = row.feedback or row.review if row.interaction is None else None
    return hashlib.sha256(row.raw if alone is None else alone.to_json_line().encode()).hexdigest()
