"""The data folder: typed rows in, typed rows out, and nothing half-written in between.

    data/documents/<doc_id>.md      the sources, as they came
    data/chunks.jsonl               their chunks, by document
    data/interactions.jsonl, data/feedback.jsonl, data/reviews.jsonl      in order of arrival
    data/quarantine/<batch>.jsonl   refused rows with their reasons

Three decisions:

* One canonical line a row (`Row.canonical`), so that the same rows are the same bytes and DVC sees no change
  where there is none. A file whose bytes would not change is not touched.
* Each file is replaced in one step (temporary name in the same folder, fsync, rename). Files are written in
  the order of their references (documents first, reviews last): whatever a crash leaves behind has no row
  that refers to a missing one, and ingesting the same files again completes it.
* A quarantine file is named by a digest of the refused lines and never rewritten, so that refusing the same
  lines again changes nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from abstain.contracts import Chunk, Document, Feedback, Interaction, Review, Row
from abstain.errors import AbstainError
from abstain.files import write_atomically
from abstain.knowledge.markdown import parse_document

R = TypeVar("R", bound=Row)

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class Dataset:
    """The accepted rows. `sources` holds the Markdown of each document by `doc_id`."""

    documents: tuple[Document, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    chunks: tuple[Chunk, ...] = ()
    interactions: tuple[Interaction, ...] = ()
    feedback: tuple[Feedback, ...] = ()
    reviews: tuple[Review, ...] = ()

    def newest(self) -> datetime:
        """The latest timestamp of any row: the `now` of a check that must not depend on the clock.

        Raises `AbstainError` where there is no row.
        """
        moments = chain(
            (row.asked_at for row in self.interactions),
            (row.given_at for row in self.feedback),
            (row.reviewed_at for row in self.reviews),
            (row.updated_at for row in self.documents),
        )
        newest = max(moments, default=None)
        if newest is None:
            raise AbstainError("no rows in data/: run `abstain ingest FILE...` first")
        return newest


class QuarantinedRow(Row):
    """A refused line or document, whole, with where it stood and every reason."""

    source: str
    line: int
    raw: str
    raw_base64: str | None = None
    reasons: tuple[str, ...]

    @classmethod
    def of(cls, source: str, line: int, raw: bytes, reasons: Iterable[str]) -> QuarantinedRow:
        """Bytes that are no UTF-8 are kept twice: readable in `raw`, exact in `raw_base64`."""
        text = raw.decode("utf-8", errors="backslashreplace")
        exact = None if text.encode() == raw else base64.b64encode(raw).decode()
        return cls(source=source, line=line, raw=text, raw_base64=exact, reasons=tuple(reasons))


def row_key(row: Row) -> str:
    """The name of a row in reports, `table/id`; unique in a dataset that holds no row twice."""
    match row:
        case Interaction():
            return f"interactions/{row.interaction_id}"
        case Feedback():
            return f"feedback/{row.interaction_id}/{row.digest()[:12]}"
        case Review():
            return f"reviews/{row.interaction_id}/{row.digest()[:12]}"
        case Document():
            return f"documents/{row.doc_id}"
        case Chunk():
            return f"chunks/{row.chunk_id}"
    raise TypeError(f"{type(row).__name__} is no row of the data folder")


def file_name_problem(doc_id: str) -> str | None:
    """Why `doc_id` cannot name a file in data/documents; None where it can."""
    if _FILE_NAME.fullmatch(doc_id):
        return None
    return f"doc_id: '{doc_id}' cannot name a file: use letters, digits, '.', '_' and '-', 128 at most"


def read_dataset(folder: Path) -> Dataset:
    """All rows in `folder`; a missing folder or file has none.

    Raises `AbstainError` naming file and line of the first row that breaks its contract.
    """
    documents: dict[str, Document] = {}
    sources: dict[str, str] = {}
    for path in sorted((folder / "documents").glob("*.md")):
        text = _decode(path.read_bytes(), str(path))
        document = parse_document(text, str(path))
        if document.doc_id != path.stem:
            raise AbstainError(f"{path}: holds the document '{document.doc_id}': rename it to {document.doc_id}.md")
        documents[document.doc_id] = document
        sources[document.doc_id] = text
    return Dataset(
        documents=tuple(documents.values()),
        sources=sources,
        chunks=_read_rows(folder / "chunks.jsonl", Chunk),
        interactions=_read_rows(folder / "interactions.jsonl", Interaction),
        feedback=_read_rows(folder / "feedback.jsonl", Feedback),
        reviews=_read_rows(folder / "reviews.jsonl", Review),
    )


def write_dataset(folder: Path, dataset: Dataset) -> None:
    """Make `folder` hold `dataset`. Documents that it does not name stay where they are."""
    for document in dataset.documents:
        if problem := file_name_problem(document.doc_id):
            raise AbstainError(problem)
        write_atomically(folder / "documents" / f"{document.doc_id}.md", dataset.sources[document.doc_id].encode())
    tables: dict[str, Sequence[Row]] = {
        "chunks": dataset.chunks,
        "interactions": dataset.interactions,
        "feedback": dataset.feedback,
        "reviews": dataset.reviews,
    }
    for name, rows in tables.items():
        write_atomically(folder / f"{name}.jsonl", _lines(rows))


def require_interactions(dataset: Dataset) -> Dataset:
    """`dataset` itself, for a stage that has nothing to do without interactions: then an `AbstainError`."""
    if not dataset.interactions:
        raise AbstainError("no interactions in data/: run `abstain ingest FILE...` first")
    return dataset


def write_quarantine(folder: Path, rows: Sequence[QuarantinedRow]) -> tuple[Path, bool]:
    """Keep refused rows in `folder`/quarantine. Returns the file and whether it is new."""
    identity = json.dumps([[row.source, row.line, row.raw, row.raw_base64] for row in rows])
    path = folder / "quarantine" / f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}.jsonl"
    if path.exists():
        return path, False
    write_atomically(path, _lines(rows))
    return path, True


def read_quarantine(path: Path) -> tuple[QuarantinedRow, ...]:
    """The refused rows of one batch. Raises `AbstainError` naming file and line of a broken one."""
    return _read_rows(path, QuarantinedRow)


def _lines(rows: Iterable[Row]) -> bytes:
    return "".join(f"{row.canonical()}\n" for row in rows).encode()


def _read_rows(path: Path, contract: type[R]) -> tuple[R, ...]:
    if not path.exists():
        return ()
    rows = []
    # Not splitlines(): a text may hold U+2028 and the like, which are no line breaks in JSON Lines.
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            rows.append(contract.model_validate_json(_decode(line, f"{path} line {number}"), strict=True))
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(str(part) for part in problem["loc"]) or "row"
            raise AbstainError(f"{path} line {number}: {where}: {problem['msg']}") from None
    return tuple(rows)


def _decode(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise AbstainError(f"{where}: not valid UTF-8 (byte {error.start + 1})") from None
