"""The data folder: typed rows in parts, read as a stream, written all at once.

    data/documents/<doc_id>.md, .html      current sources, as they came
    data/documents.jsonl                   every version of every document that was ever accepted
    data/chunks.jsonl                      their chunks; those of removed text stay as tombstones
    data/interactions/000001.jsonl ...     one immutable part a batch; feedback/ and reviews/ likewise
    data/batches.jsonl                     rows, sources and time of each batch
    data/held/feedback.jsonl, reviews.jsonl      thumbs and reviews whose interaction is not known yet
    data/sources/<name>.json               the state of each configured source
    data/quarantine/                       refused rows with their reasons (`quarantine`)
    data/forgotten.json                    erased users and interactions (`erasure`)

Notes:

* A batch adds parts and rewrites none: DVC stores only new parts, and nothing has to fit into memory.
* A source's state is stored with its rows, so both become visible in one commit or not at all: that makes ingest
  exactly-once.
* A batch is written into its own folder and moved in at the end, files in the order of their references: after a
  crash no row refers to a missing one, and the same input again completes the batch.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

from abstain.core.codes import Code
from abstain.core.contracts import Chunk, Interaction, Row, Text
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically
from abstain.core.json_lines import parse_lines
from abstain.core.timestamps import Timestamp
from abstain.data.store.key_index import IndexedWriter, KeyIndex
from abstain.data.store.profile import Profile
from abstain.data.store.record_keys import TABLES, Record

R = TypeVar("R", bound=Row)

DOCUMENT_SUFFIXES = (".md", ".html")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ORDER = (
    "documents",
    "documents.jsonl",
    "chunks.jsonl",
    "interactions",
    "feedback",
    "reviews",
    "held",
    "forgotten.json",
    "quarantine",
    "batches.jsonl",
    "sources",
)
"""The order in which a batch's files are moved in: referenced files come first, the sources' states last."""
APPENDED_FILES = ("documents.jsonl", "chunks.jsonl", "batches.jsonl")
"""The files that are a dependency of the DAG each."""
EMPTY_TABLE = b"\n"
"""The content of one of `APPENDED_FILES` without a row: DVC warns of an empty file, each time."""

REVIEW_QUEUE = "review-queue"
"""Prefix of the names of sources of verdicts of the review queue, whose inclusion probabilities were checked; it marks
their batches. Those of all other sources are taken as given."""


class DocumentVersion(Row):
    """One accepted version of a document, known by the digest of its source; the last line of a `doc_id` counts."""

    doc_id: Text
    version: Text
    updated_at: Timestamp
    state: Literal["current", "removed"]


class IngestedBatch(Row):
    """The accepted rows of one ingest: their number by table, and the profile of its interactions."""

    batch: Text
    arrived_at: Timestamp
    sources: tuple[str, ...]
    rows: dict[str, int]
    profile: Profile = Profile()


class ErasedUsers(Row):
    """Erased users by pseudonym, and the interactions (identities, hex) that were removed with them."""

    users: tuple[str, ...] = ()
    interactions: tuple[str, ...] = ()


class DataStore:
    """The read side of a data folder; a missing folder or file has no rows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def list_part_files(self, contract: type[Row]) -> list[Path]:
        """The files of a table, in order of arrival."""
        return sorted((self.folder / TABLES[contract]).glob("*.jsonl"))

    def iter_rows(self, contract: type[R]) -> Iterator[R]:
        """Every row of a table, in order of arrival, one in memory at a time.

        Raises `AbstainError` naming file and line of the first row that breaks its contract.
        """
        for part in self.list_part_files(contract):
            yield from read_rows(part, contract)

    def iter_part_rows(self, part: Path, contract: type[R]) -> Iterator[R]:
        """The rows of one of `parts`."""
        return read_rows(part, contract)

    def interactions(self, ids: Iterable[str]) -> list[Interaction]:
        """These interactions, in this order. Raises `KeyError` for one that does not exist."""
        wanted = list(ids)
        among = set(wanted)
        found = {row.interaction_id: row for row in self.iter_rows(Interaction) if row.interaction_id in among}
        return [found[key] for key in wanted]

    def document_files(self) -> list[Path]:
        """The files of the current documents, to be read by `knowledge.documents.read_documents`."""
        folder = self.folder / "documents"
        return sorted(path for suffix in DOCUMENT_SUFFIXES for path in folder.glob(f"*{suffix}"))

    def iter_document_versions(self) -> Iterator[DocumentVersion]:
        """Every version of every document, in order of arrival, removals among them."""
        return read_rows(self.folder / "documents.jsonl", DocumentVersion)

    def chunks(self) -> Iterator[Chunk]:
        """The chunks of all documents, tombstones among them."""
        return read_rows(self.folder / "chunks.jsonl", Chunk)

    def batches(self) -> tuple[IngestedBatch, ...]:
        return tuple(read_rows(self.folder / "batches.jsonl", IngestedBatch))

    def pending_files(self) -> dict[str, Path]:
        """The files of thumbs and reviews whose interaction is not known yet, by table."""
        files = {table: self.folder / "held" / f"{table}.jsonl" for table in ("feedback", "reviews")}
        return {table: path for table, path in files.items() if path.exists()}

    def build_key_index(self) -> KeyIndex:
        """Every stored row of the three tables, by identity."""
        index = KeyIndex()
        for contract, table in TABLES.items():
            for part in self.list_part_files(contract):
                index.add_file(table, part)
        return index

    def read_source_state(self, source: str) -> dict[str, Any]:
        """The state of `source`; empty before its first reading."""
        path = self.folder / "sources" / f"{source}.json"
        state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return state

    def erased_users(self) -> ErasedUsers:
        """The erased users and interactions, whose rows are refused."""
        path = self.folder / "forgotten.json"
        return ErasedUsers.model_validate_json(path.read_bytes()) if path.exists() else ErasedUsers()

    def require_interactions(self) -> DataStore:
        """This store, for a stage that needs interactions: raises `AbstainError` where there are none."""
        if not any(part.stat().st_size for part in self.list_part_files(Interaction)):
            raise AbstainError(Code.NO_ROWS, "no interactions in data/: run `abstain ingest FILE...` first")
        return self


class StagedBatch:
    """The write side: one batch, built beside the data folder and moved into it by `publish`, or thrown away.

    A context manager; leaving it without `publish` leaves the data folder as it was. Files whose name begins with a
    dot are scratch and never moved.
    """

    def __init__(self, store: DataStore) -> None:
        self._store = store
        numbers = [int(part.stem) for contract in TABLES for part in store.list_part_files(contract)]
        self.batch = f"{max(numbers, default=0) + 1:06d}"
        self._parts: dict[str, IndexedWriter] = {}
        self._gone: list[Path] = []

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
        """New rows by table."""
        return {table: self._parts[table].rows if table in self._parts else 0 for table in TABLES.values()}

    def append(self, lines: Iterable[Record], index: KeyIndex) -> None:
        """Add accepted rows to this batch's parts, and to `index`, from where they can be read again at once."""
        for line in lines:
            table = TABLES[type(line.row)]
            if table not in self._parts:
                self._parts[table] = IndexedWriter(self.folder / table / f"{self.batch}.jsonl", table, index)
            self._parts[table].append(line)
        for part in self._parts.values():
            part.flush()

    def stage_file(self, name: str, content: bytes) -> None:
        """The whole new content of a file of the data folder, `name` relative to it."""
        write_atomically(self.folder / name, content)

    def stage_deletion(self, path: Path) -> None:
        """A file of the data folder that is to go."""
        self._gone.append(path)

    def publish(self, *only: str) -> None:
        """Move everything into the data folder, in the order of references; or `only` these files and folders."""
        for part in self._parts.values():
            part.close()
        if self._parts and not only:
            self._complete()
        written = [path.relative_to(self.folder) for path in self.folder.rglob("*") if path.is_file()]
        wanted = [name for name in written if name.parts[0] in (only or _ORDER)]
        for name in sorted(wanted, key=lambda name: (_ORDER.index(name.parts[0]), name)):
            target = self._store.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).replace(target)
        for path in () if only else self._gone:
            path.unlink(missing_ok=True)

    def _complete(self) -> None:
        """Make every table exist once there are rows of any: a dependency of the DAG may be empty, but not missing."""
        folder = self._store.folder
        for contract, table in TABLES.items():
            if table not in self._parts and not self._store.list_part_files(contract):
                self.stage_file(f"{table}/{self.batch}.jsonl", b"")
        for name in APPENDED_FILES:
            if not (folder / name).exists() and not (self.folder / name).exists():
                self.stage_file(name, EMPTY_TABLE)


def create_empty_store(folder: Path) -> None:
    """Write a data folder without a row, in which every dependency of the DAG exists."""
    for table in TABLES.values():
        write_atomically(folder / table / "000000.jsonl", b"")
    for name in APPENDED_FILES:
        write_atomically(folder / name, EMPTY_TABLE)


def is_review_queue(source: str) -> bool:
    """Whether the source of this name brings verdicts of the review queue."""
    return source.startswith(REVIEW_QUEUE)


def get_document_suffix(source: str) -> str:
    """The suffix under which the document that came as the file `source` is kept."""
    return ".html" if source.lower().endswith((".html", ".htm")) else ".md"


def file_name_problem(doc_id: str) -> str | None:
    """Why `doc_id` cannot name a file in data/documents; None where it can."""
    if _FILE_NAME.fullmatch(doc_id):
        return None
    return f"'{doc_id}' cannot name a file: use letters, digits, '.', '_' and '-', 128 at most"


def read_rows(path: Path, contract: type[R]) -> Iterator[R]:
    """The rows of a JSON Lines file; a missing one has none. Raises `AbstainError` naming file and line."""
    if not path.exists():
        return
    with path.open("rb") as lines:
        yield from parse_lines(lines, contract, str(path), untrusted=False)
