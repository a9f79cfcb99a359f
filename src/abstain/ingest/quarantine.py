"""Quarantine: rejected rows, stored with their reasons until a user decides on them.

    data/quarantine/<id>.jsonl         rejected rows of one batch
    data/quarantine/blocking.json      sources whose last batch was rejected as a whole, with the reason
    data/quarantine/dropped.txt        digests of discarded rows

Notes:

* Only the text of a row that meets its contract is stored, redacted. Of any other row only its position, digest, length
  and reasons are stored, so it can be fixed only at its source.
* A row is stored once, however often a source sends it: its key is the digest of its raw text. The key of a thumb or
  review that came by itself is the digest of its contents, because a pending one has no other text.
* A row that is rejected for what a person did does not count towards the failure limit (`is_user_caused`).
* Rows in quarantine and discarded rows were reported before, so they do not count towards the failure limit again. The
  rows of a batch that was rejected as a whole do count, until a user decides on them.
* A row that cites chunks of no ingested document awaits documents here: it does not count as failed, and is validated
  again with every batch that brings documents.
* A row leaves the quarantine when it is accepted (by a retry, or because the source sends it again once the rules or
  the rest of the data allow it), when it is discarded, or when its user is erased. Nothing else removes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from abstain.core.codes import Code
from abstain.core.contracts import Row
from abstain.core.errors import AbstainError
from abstain.core.files import to_json, write_atomically
from abstain.core.json_lines import to_json_lines
from abstain.core.reasons import Reason, ReasonKind, Reasons
from abstain.data.store.dataset import StagedBatch, read_rows
from abstain.ingest.parsing import ParsedRow, reparse, serialize_row
from abstain.ingest.privacy.pseudonyms import normalize_name
from abstain.ingest.report import count_reasons

FOLDER = "quarantine"
_USER_TEXT_FIELDS = frozenset({"question", "answer", "comment", "ideal_answer"})
_USER_CAUSED_KINDS = frozenset({ReasonKind.HALF_CHARACTER, ReasonKind.SAME_MOMENT, ReasonKind.TOO_LARGE})
_USER_CAUSED_FIELDS = frozenset(
    {(kind, field) for kind in (ReasonKind.BLANK_TEXT, ReasonKind.TOO_LONG) for field in _USER_TEXT_FIELDS}
    | {(ReasonKind.TOO_LATE, field) for field in ("given_at", "reviewed_at")}
)


class QuarantinedRow(Row):
    """A rejected line or document, with its position and every reason.

    Attributes:
        source: File, or table of a database.
        line: Number of the line, from 1, or key in the table.
        digest: The row's key (`compute_row_digest`).
        size: Length in bytes.
        raw: The text with personal data redacted; None if the row breaks its contract.
        reasons: Why it was rejected.
    """

    source: str
    line: int
    digest: str
    size: int
    raw: str | None
    reasons: Reasons

    @classmethod
    def from_row(cls, row: ParsedRow, reasons: Iterable[Reason]) -> QuarantinedRow:
        """Make the record of a rejected row.

        Args:
            row: The row, with its contents redacted.
            reasons: Why it was rejected.

        Returns:
            The record that the quarantine stores.
        """
        size = len(row.raw) if row.size is None else row.size
        origin = {"source": row.source, "line": row.line, "digest": compute_row_digest(row)}
        return cls(**origin, size=size, raw=serialize_row(row), reasons=tuple(reasons))

    @property
    def awaits_documents(self) -> bool:
        """Whether the row was rejected only because no ingested document holds its chunks."""
        return is_awaiting_documents(self.reasons)

    def reparse(self) -> ParsedRow:
        """Return the stored row, parsed again. A row without text has the same reasons as before."""
        if self.raw is None:
            return ParsedRow(self.source, self.line, b"", self.reasons, digest=self.digest, size=self.size)
        row = reparse(self.raw.encode(), self.source, self.line)
        return replace(row, digest=self.digest, size=self.size)


@dataclass(frozen=True)
class QuarantineFile:
    """A summary of one file of the quarantine.

    Attributes:
        id: The file's name without its suffix.
        rows: Number of rows.
        sources: Sources of the rows.
        reasons: Reason -> number of rows.
        blocking: Why the file blocks its sources; None if it does not.
    """

    id: str
    rows: int
    sources: tuple[str, ...]
    reasons: dict[str, int]
    blocking: str | None


class Block(NamedTuple):
    """What a file of the quarantine blocks until a user decides on it.

    Attributes:
        sources: Names of the blocked sources.
        message: Why they are blocked.
    """

    sources: list[str]
    message: str


class Quarantine:
    """The quarantine of a data folder, as it was when this object was made.

    Args:
        data: The data folder.

    Attributes:
        folder: The folder of the quarantine.
        discarded: Digests of discarded rows.
        blocking: Id of a file -> what it blocks.
    """

    def __init__(self, data: Path) -> None:
        self.folder = data / FOLDER
        self._path_by_digest = {row.digest: path for path in self.list_paths() for row in self.iter_rows(path)}
        discarded_file, blocking_file = self.folder / "dropped.txt", self.folder / "blocking.json"
        self.discarded = frozenset(
            discarded_file.read_text(encoding="utf-8").split() if discarded_file.exists() else ()
        )
        blocks = json.loads(blocking_file.read_text()) if blocking_file.exists() else {}
        self.blocking = {name: Block(**block) for name, block in blocks.items()}

    def list_paths(self) -> list[Path]:
        """Return the paths of all files, sorted."""
        return sorted(self.folder.glob("*.jsonl"))

    def iter_rows(self, path: Path) -> Iterator[QuarantinedRow]:
        """Yield the rows of the file `path`."""
        return read_rows(path, QuarantinedRow)

    def find_file(self, row: ParsedRow) -> Path | None:
        """Return the file that holds `row`; None if the row is not in quarantine."""
        return self._path_by_digest.get(compute_row_digest(row)) if self._path_by_digest else None

    def is_discarded(self, row: ParsedRow) -> bool:
        """Whether `row` was discarded."""
        return bool(self.discarded) and compute_row_digest(row) in self.discarded

    def is_reported(self, row: ParsedRow) -> bool:
        """Whether `row` was reported before and blocks no batch."""
        file = self.find_file(row)
        return self.is_discarded(row) or (file is not None and file.stem not in self.blocking)

    def list_files(self) -> list[QuarantineFile]:
        """Return a summary of every file, with whether it blocks its sources."""
        return [self._describe(path) for path in self.list_paths()]

    def _describe(self, path: Path) -> QuarantineFile:
        rows = list(self.iter_rows(path))
        sources, reasons = dict.fromkeys(row.source for row in rows), count_reasons(row.reasons for row in rows)
        block = self.blocking.get(path.stem)
        return QuarantineFile(path.stem, len(rows), tuple(sources), reasons, block and block.message)

    def iter_rows_awaiting_documents(self) -> Iterator[QuarantinedRow]:
        """Return an iterator over the rows that await documents."""
        return (row for path in self.list_paths() for row in self.iter_rows(path) if row.awaits_documents)

    def get_file(self, name: str) -> Path:
        """Return the file with an id.

        Args:
            name: The id, or its beginning.

        Returns:
            The path of the file.

        Raises:
            AbstainError: No id begins with `name`, or several do.
        """
        matches = [path for path in self.list_paths() if path.stem.startswith(name)]
        if len(matches) == 1:
            return matches[0]
        existing = ", ".join(path.stem for path in self.list_paths()) or "nothing"
        problem = "several ids begin" if matches else "no id begins"
        raise AbstainError(Code.UNKNOWN_NAME, f"quarantine: {problem} with '{name}'; there are: {existing}")

    def discard(self, path: Path) -> int:
        """Discard the rows of a file for good and unblock its sources.

        Args:
            path: Path of the file.

        Returns:
            The number of discarded rows.
        """
        return self._discard_rows(path, lambda row: True)

    def discard_user_rows(self, names: Collection[str], interactions: Collection[str] = ()) -> int:
        """Discard every row that names one of these users or is about one of these interactions.

        Args:
            names: Ids and pseudonyms of users, normalized by `normalize_name`.
            interactions: Interaction ids.

        Returns:
            The number of discarded rows.
        """

        def is_user_row(row: QuarantinedRow) -> bool:
            parsed = row.reparse()  # a row whose text was not stored names no user
            is_from_user = parsed.thumb is not None and normalize_name(parsed.thumb.user or "") in names
            content = parsed.interaction or parsed.thumb or parsed.review
            return is_from_user or (content is not None and content.interaction_id in interactions)

        return sum(self._discard_rows(path, is_user_row) for path in self.list_paths())

    def _discard_rows(self, path: Path, should_discard: Callable[[QuarantinedRow], bool]) -> int:
        remaining: list[QuarantinedRow] = []
        discarded: list[QuarantinedRow] = []
        for row in self.iter_rows(path):
            (discarded if should_discard(row) else remaining).append(row)
        if not discarded:
            return 0
        self.discarded = self.discarded.union(row.digest for row in discarded)
        write_atomically(
            self.folder / "dropped.txt", "".join(f"{digest}\n" for digest in sorted(self.discarded)).encode()
        )
        if remaining:
            write_atomically(path, to_json_lines(remaining))
            return len(discarded)
        if self.blocking.pop(path.stem, None):
            write_atomically(self.folder / "blocking.json", self._format_blocking())
        path.unlink()
        return len(discarded)

    def remove_accepted(self, accepted: set[str], staging: StagedBatch) -> None:
        """Stage every file without the rows that have been accepted.

        Args:
            accepted: Digests of accepted rows.
            staging: The batch that is being staged.
        """
        for path in {self._path_by_digest[digest] for digest in accepted}:
            if remaining := [row for row in self.iter_rows(path) if row.digest not in accepted]:
                staging.stage_file(f"{FOLDER}/{path.name}", to_json_lines(remaining))
            else:
                staging.stage_deletion(path)
                self.blocking.pop(path.stem, None)

    def block(self, name: str, sources: Sequence[str], message: str) -> None:
        """Block sources until a user decides on a file.

        Args:
            name: Id of the file.
            sources: Names of the sources; they are added to those that the file blocks already.
            message: Why they are blocked.
        """
        existing_sources = self.blocking[name].sources if name in self.blocking else ()
        self.blocking[name] = Block(sorted({*existing_sources, *sources}), message)

    def unblock(self, sources: Sequence[str]) -> None:
        """Unblock the files all of whose sources are among `sources`: a later batch of these was good."""
        self.blocking = {name: block for name, block in self.blocking.items() if not set(block.sources) <= set(sources)}

    def stage_blocking(self, staging: StagedBatch) -> None:
        """Stage the list of blocked sources, if there is or was any."""
        if self.blocking or (self.folder / "blocking.json").exists():
            staging.stage_file(f"{FOLDER}/blocking.json", self._format_blocking())

    def _format_blocking(self) -> bytes:
        return to_json({name: block._asdict() for name, block in self.blocking.items()})


class QuarantineWriter:
    """Writes the rejected rows of one batch as they come; the file is named by its content."""

    def __init__(self, staging: StagedBatch) -> None:
        self._staging = staging
        self._digests: dict[str, None] = {}
        self._path = staging.folder / ".rejected"
        self._file = self._path.open("wb")

    def add(self, row: QuarantinedRow) -> None:
        """Write `row`, once however often it comes."""
        if row.digest not in self._digests:
            self._digests[row.digest] = None
            self._file.write(row.to_json_line().encode() + b"\n")

    def close(self) -> str | None:
        """Stage the file and return its id; None if no row came."""
        self._file.close()
        if not self._digests:
            return None
        name = hashlib.sha256("".join(self._digests).encode()).hexdigest()[:16]
        target = self._staging.folder / FOLDER / f"{name}.jsonl"
        target.parent.mkdir(exist_ok=True)
        self._path.replace(target)
        return name


def require_unblocked(data: Path) -> None:
    """Check that no source is blocked.

    Args:
        data: The data folder.

    Raises:
        AbstainError: The last batch of a source was rejected as a whole, and no decision was made yet.
    """
    blocking = Quarantine(data).blocking
    if blocking:
        name, entry = next(iter(blocking.items()))
        suffix = f" (and {len(blocking) - 1} more)" if len(blocking) > 1 else ""
        raise AbstainError(
            Code.BATCH_REJECTED,
            f"the retrain is blocked{suffix}: {entry.message}; fix the source and ingest again, or decide with "
            f"`abstain quarantine retry {name}` or `abstain quarantine discard {name}`",
        )


def is_awaiting_documents(reasons: Iterable[Reason]) -> bool:
    """Whether the only problem in `reasons` is that no ingested document holds the row's chunks."""
    return all(reason.kind is ReasonKind.UNKNOWN_CONTEXTS for reason in reasons)


def is_user_caused(reasons: Iterable[Reason]) -> bool:
    """Test whether a person can cause all of the reasons.

    A person can do so by what they type (a long or blank text, half a character), by a thumb or a review of an old
    answer, or by two thumbs within a moment. Such rows do not count towards the failure limit, which is meant for
    exporters: otherwise one person could have every batch rejected.

    Args:
        reasons: Why a row is rejected.

    Returns:
        True if the row does not count.
    """
    return all(
        reason.kind in _USER_CAUSED_KINDS or (reason.kind, reason.field.rpartition(".")[2]) in _USER_CAUSED_FIELDS
        for reason in reasons
    )


def compute_row_digest(row: ParsedRow) -> str:
    """Compute a row's key in the quarantine.

    It is the digest of the row's original text. For a thumb or review that came by itself it is the digest of its
    contents as they would be stored, with personal data redacted, so that pending and direct ones have equal keys.

    Args:
        row: The row, with its contents redacted.

    Returns:
        The sha256 in hex.
    """
    if row.digest is not None:
        return row.digest
    record = row.thumb or row.review if row.interaction is None else None
    return hashlib.sha256(row.raw if record is None else record.to_json_line().encode()).hexdigest()
