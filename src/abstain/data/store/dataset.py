"""The data folder: typed rows in parts, read as a stream, written all at once.

    data/documents/<doc_id>.md, .html      current sources, as they arrived
    data/documents.jsonl                   every version of every document that was ever accepted
    data/chunks.jsonl                      their chunks; those of removed text stay as tombstones
    data/interactions/000001.jsonl ...     one part a batch; feedback/ and reviews/ likewise
    data/batches.jsonl                     rows, sources and time of each batch
    data/pending/feedback.jsonl, reviews.jsonl   pending thumbs and reviews, whose interaction is not known yet
    data/sources/<name>.json               the state of each configured source
    data/quarantine/                       rejected rows with their reasons (`quarantine`)
    data/erased.json                       erased users and interactions (`erasure`)

Notes:

* A batch adds parts: DVC stores only new parts, and no table has to fit into memory. It rewrites only the parts that
  hold rows which it replaces or completes, each row in its place, because the order of arrival decides about splits.
* A source's state is stored with its rows, so both become visible in one commit or not at all: that makes ingest
  exactly-once.
* A batch is written into its own folder and moved in at the end, files in the order of their references. So after a
  crash no row refers to a missing one, and the same input again completes the batch.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import not_
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

from pydantic import Field

from abstain.core.codes import Code
from abstain.core.contracts import Chunk, Interaction, Row, Text
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically
from abstain.core.json_lines import parse_lines, read_lines
from abstain.core.timestamps import Timestamp
from abstain.data.store.key_index import IndexedWriter, KeyIndex
from abstain.data.store.profile import Profile
from abstain.data.store.record_keys import TABLES, Record, parse_key

R = TypeVar("R", bound=Row)

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_PUBLISH_ORDER = (
    "documents",
    "documents.jsonl",
    "chunks.jsonl",
    "interactions",
    "feedback",
    "reviews",
    "pending",
    "erased.json",
    "quarantine",
    "batches.jsonl",
    "sources",
)
"""The order in which a batch's files are moved in: referenced files first, the sources' states last."""
APPENDED_FILES = ("documents.jsonl", "chunks.jsonl", "batches.jsonl")
"""The files that are a dependency of the DAG each."""
EMPTY_TABLE = b"\n"
"""The content of one of `APPENDED_FILES` without rows, because DVC warns of an empty file each time."""

REVIEW_QUEUE_PREFIX = "review-queue"
"""Prefix of the names of sources of reviews from the review queue; it also marks their batches.

The inclusion probabilities of these reviews were checked. Those of all other sources are used as given.
"""


class DocumentVersion(Row):
    """An accepted version of a document, identified by the digest of its source; the last line of a `doc_id` counts."""

    doc_id: Text
    version: Text
    updated_at: Timestamp
    state: Literal["current", "removed"]


class IngestedBatch(Row):
    """The accepted rows of one ingest: their number by table, and the profile of its interactions.

    `replaced` has the interactions (identities, hex) of whose stored rows one got other content, and `reason` says why.
    """

    batch: Text
    arrived_at: Timestamp
    sources: tuple[str, ...]
    rows: dict[str, int]
    profile: Profile = Profile()
    replaced: tuple[str, ...] = Field((), exclude_if=not_)
    reason: Text | None = Field(None, exclude_if=not_)


class ErasedUsers(Row):
    """Erased users by pseudonym, and the interactions (identities, hex) that were removed with them."""

    users: tuple[str, ...] = ()
    interactions: tuple[str, ...] = ()


class DataStore:
    """The read side of a data folder; a missing folder or file has no rows.

    Attributes:
        folder: The data folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def list_part_files(self, contract: type[Row]) -> list[Path]:
        """Return the files of a table, in order of arrival."""
        return sorted((self.folder / TABLES[contract]).glob("*.jsonl"))

    def iter_rows(self, contract: type[R]) -> Iterator[R]:
        """Iterate over the rows of the table of `contract` in order of arrival, with one in memory at a time.

        Raises:
            AbstainError: A row breaks its contract; the message names file and line of the first one.
        """
        for part in self.list_part_files(contract):
            yield from read_rows(part, contract)

    def iter_part_rows(self, part: Path, contract: type[R]) -> Iterator[R]:
        """Iterate over the rows of `part`, one of `list_part_files(contract)`, as `iter_rows` does."""
        return read_rows(part, contract)

    def read_interactions(self, ids: Iterable[str]) -> list[Interaction]:
        """Return the interactions with these ids, in this order.

        Raises:
            KeyError: An interaction does not exist.
        """
        id_list = list(ids)
        requested = set(id_list)
        interaction_by_id = {
            row.interaction_id: row for row in self.iter_rows(Interaction) if row.interaction_id in requested
        }
        return [interaction_by_id[interaction_id] for interaction_id in id_list]

    def list_document_files(self) -> list[Path]:
        """Return the files of the current documents, to be read by `knowledge.documents.read_documents`."""
        folder = self.folder / "documents"
        return sorted(folder.glob("*.md"))

    def iter_document_versions(self) -> Iterator[DocumentVersion]:
        """Iterate over all versions of all documents, including removals, in order of arrival."""
        return read_rows(self.folder / "documents.jsonl", DocumentVersion)

    def iter_chunks(self) -> Iterator[Chunk]:
        """Iterate over the chunks of all documents, including tombstones."""
        return read_rows(self.folder / "chunks.jsonl", Chunk)

    def read_batches(self) -> tuple[IngestedBatch, ...]:
        """Return the ingested batches, in order of arrival."""
        return tuple(read_rows(self.folder / "batches.jsonl", IngestedBatch))

    def list_pending_files(self) -> dict[str, Path]:
        """Return the files of pending thumbs and reviews, whose interaction is not known yet, by table."""
        files = {table: self.folder / "pending" / f"{table}.jsonl" for table in ("feedback", "reviews")}
        return {table: path for table, path in files.items() if path.exists()}

    def build_key_index(self) -> KeyIndex:
        """Return an index of all stored rows of the three tables, by identity."""
        index = KeyIndex()
        for contract, table in TABLES.items():
            for part in self.list_part_files(contract):
                index.add_file(table, part)
        return index

    def read_source_state(self, source: str) -> dict[str, Any]:
        """Return the state of `source`; empty before it was first read."""
        path = self.folder / "sources" / f"{source}.json"
        state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return state

    def read_erased_users(self) -> ErasedUsers:
        """Return the erased users and interactions, whose rows are rejected."""
        path = self.folder / "erased.json"
        return ErasedUsers.model_validate_json(path.read_bytes()) if path.exists() else ErasedUsers()

    def require_interactions(self) -> DataStore:
        """Return this store if it has interactions.

        Raises:
            AbstainError: There are none.
        """
        if not any(part.stat().st_size for part in self.list_part_files(Interaction)):
            raise AbstainError(Code.NO_ROWS, "no interactions in data/: run `abstain ingest FILE...` first")
        return self


class StagedBatch:
    """The write side: a batch that is built beside the data folder and moved into it by `publish`.

    A context manager; leaving it without `publish` leaves the data folder unchanged. Files whose name begins with a dot
    are scratch files and never moved.

    Attributes:
        batch: Name of the batch, six digits.
        folder: Folder of the staged files, from `__enter__` on.
    """

    def __init__(self, store: DataStore) -> None:
        self._store = store
        numbers = [int(part.stem) for contract in TABLES for part in store.list_part_files(contract)]
        numbers += [int(batch.batch) for batch in store.read_batches()]  # one that only replaces rows has no part
        self.batch = f"{max(numbers, default=0) + 1:06d}"
        self._parts: dict[str, IndexedWriter] = {}
        self._revisions: dict[str, IndexedWriter] = {}
        self._revised_parts: set[tuple[str, Path]] = set()
        self._deletions: list[Path] = []

    def __enter__(self) -> StagedBatch:
        target = self._store.folder
        target.parent.mkdir(parents=True, exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def counts(self) -> dict[str, int]:
        """Number of new rows by table."""
        return {table: self._parts[table].rows if table in self._parts else 0 for table in TABLES.values()}

    def get_part_file(self, contract: type[Row]) -> Path:
        """Return the file of this batch's part of a table; it does not exist before a row is added."""
        return self.folder / TABLES[contract] / f"{self.batch}.jsonl"

    def append(self, records: Iterable[Record], index: KeyIndex) -> None:
        """Add accepted rows to this batch's parts.

        Args:
            records: The rows.
            index: Index to which they are added as well; from then on it can read them.
        """
        for record in records:
            table = TABLES[type(record.row)]
            if table not in self._parts:
                self._parts[table] = IndexedWriter(self.get_part_file(type(record.row)), table, index)
            self._parts[table].append(record)
        for part in self._parts.values():
            part.flush()

    def revise(self, records: Iterable[Record], index: KeyIndex) -> None:
        """Let accepted rows take the place of rows with their identity, in the parts of these.

        Args:
            records: The rows.
            index: Index in which they take that place as well.
        """
        for record in records:
            table = TABLES[type(record.row)]
            if table not in self._revisions:
                self._revisions[table] = IndexedWriter(self.folder / ".revisions" / f"{table}.jsonl", table, index)
            former_file = self._revisions[table].revise(record)
            if former_file != self._revisions[table].path:
                self._revised_parts.add((table, former_file))

    def stage_revisions(self, index: KeyIndex) -> None:
        """Stage the parts that hold rows which were revised, once every row of the batch is in `index`."""
        for part in self._parts.values():
            part.flush()

        def revise_line(table: str, line: bytes) -> bytes:
            key = parse_key(table, line)
            entry = index.find(key.identity)
            assert entry is not None
            return line if entry.content == key.content else index.read_line(entry)

        for table, part_file in sorted(self._revised_parts):
            rewrite_lines(part_file, self.folder / table / part_file.name, partial(revise_line, table))

    def stage_file(self, name: str, content: bytes) -> None:
        """Set the complete new `content` of the file `name`, a path relative to the data folder."""
        write_atomically(self.folder / name, content)

    def stage_deletion(self, path: Path) -> None:
        """Delete a file of the data folder when the batch is published."""
        self._deletions.append(path)

    def publish(self, *names: str) -> None:
        """Move everything into the data folder, in the order of references.

        Args:
            *names: Files and folders to move; none moves everything, and deletes the files of `stage_deletion`.
        """
        for part in (*self._parts.values(), *self._revisions.values()):
            part.close()
        if self._parts and not names:
            self._create_missing_tables()
        staged = [path.relative_to(self.folder) for path in self.folder.rglob("*") if path.is_file()]
        published = [name for name in staged if name.parts[0] in (names or _PUBLISH_ORDER)]
        for name in sorted(published, key=lambda name: (_PUBLISH_ORDER.index(name.parts[0]), name)):
            target = self._store.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).replace(target)
        for path in () if names else self._deletions:
            path.unlink(missing_ok=True)

    def _create_missing_tables(self) -> None:
        """Create every missing table once any has rows: a dependency of the DAG may be empty, but not missing."""
        folder = self._store.folder
        for contract, table in TABLES.items():
            if table not in self._parts and not self._store.list_part_files(contract):
                self.stage_file(f"{table}/{self.batch}.jsonl", b"")
        for name in APPENDED_FILES:
            if not (folder / name).exists() and not (self.folder / name).exists():
                self.stage_file(name, EMPTY_TABLE)


def create_empty_store(folder: Path) -> None:
    """Write a data folder without rows, in which every dependency of the DAG exists."""
    for table in TABLES.values():
        write_atomically(folder / table / "000000.jsonl", b"")
    for name in APPENDED_FILES:
        write_atomically(folder / name, EMPTY_TABLE)


def rewrite_lines(source: Path, target: Path, revise: Callable[[bytes], bytes | None]) -> int:
    """Write a part again with other lines.

    Args:
        source: The part.
        target: The file to write; it is not touched if no line changes.
        revise: Returns what stands for a line from now on; None removes the line.

    Returns:
        The number of changed lines.
    """
    lines = [text for _, text in read_lines(source)]
    revised = [revise(line) for line in lines]
    count = sum(line != new_line for line, new_line in zip(lines, revised, strict=True))
    if count:
        write_atomically(target, b"".join(line + b"\n" for line in revised if line is not None))
    return count


def is_review_queue(source: str) -> bool:
    """Return whether the source of this name brings reviews from the review queue."""
    return source.startswith(REVIEW_QUEUE_PREFIX)


def explain_invalid_file_name(doc_id: str) -> str | None:
    """Return why `doc_id` cannot name a file in data/documents; None if it can."""
    if _FILE_NAME.fullmatch(doc_id):
        return None
    return f"'{doc_id}' cannot name a file: use letters, digits, '.', '_' and '-', 128 at most"


def read_rows(path: Path, contract: type[R]) -> Iterator[R]:
    """Read a file of JSON Lines.

    Args:
        path: The file; a missing one has no rows.
        contract: Class of the rows.

    Yields:
        The rows.

    Raises:
        AbstainError: A row breaks its contract; the message names file and line.
    """
    if not path.exists():
        return
    with path.open("rb") as lines:
        yield from parse_lines(lines, contract, str(path), untrusted=False)
