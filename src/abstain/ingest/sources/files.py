"""A folder or a file, of this host or behind an fsspec URL: JSON Lines, CSV, Parquet, Markdown and HTML.

Four decisions:

* The kind is told by the name. What has another one is named in `ignored`, so that nobody wonders where it went.
* An unchanged file is not read again. That only saves work: the rows of a file that is would be duplicates.
* A document counts as present as long as its file is there, even where the file's new content is refused: a typing
  error in a handbook must not take the page out of the knowledge base.
* Where somebody names a file, one that cannot be read is an error. Where nobody looks on, it is one refused row, and
  the others are read: a single upload must not hold up every source. Its version is not remembered, so that one that
  was still being written is read once it is whole.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import PurePosixPath
from typing import Any

from abstain.core.errors import AbstainError
from abstain.core.json_lines import may_be_no_lines, no_lines
from abstain.ingest.pipeline.parsing import InputRow, is_document, parse_line, read_document
from abstain.ingest.sources import Outcome, Reading
from abstain.ingest.sources.csv_file import read_csv
from abstain.ingest.sources.lines import LIMIT, TooLong, lines, utf8, whole
from abstain.ingest.sources.parquet_file import read_parquet
from abstain.ingest.sources.storage import Storage, Stored, shown
from abstain.knowledge.documents.reader import KINDS

JSON_LINES = (".jsonl", ".jsonl.gz")
CSV = (".csv", ".csv.gz")
PARQUET = (".parquet",)
SUFFIXES = JSON_LINES + CSV + PARQUET + tuple(KINDS)

_KINDS = (
    "JSON Lines (.jsonl), CSV (.csv), both packed too (.gz), Parquet (.parquet), Markdown (.md) or HTML (.html, .htm)"
)


class FileSource:
    """What lies at `url`. With `mirror` its documents are all that there are: one whose file is gone has vanished.

    `unattended` is for a place that is read again and again: it may be empty, and a bad file in it is a refused row.
    """

    def __init__(self, name: str, url: str, *, mirror: bool = False, unattended: bool = False) -> None:
        self.name = name
        self._url = url
        self._mirror = mirror
        self._unattended = unattended

    def read(self, state: Mapping[str, Any]) -> Reading:
        """Every file that is new or changed since the reading that gave `state`.

        Raises `AbstainError` for a place that is missing, a single file of another kind, and, unless it is
        `unattended`, for a folder in which there is nothing to read and, while it is walked, for an empty or
        unreadable file.
        """
        storage = Storage(self._url)
        listing = storage.list()
        taken = [file for file in listing.files if file.name.lower().endswith(SUFFIXES)]
        ignored = [file.name for file in listing.files if not file.name.lower().endswith(SUFFIXES)]
        if listing.is_folder and not taken and not self._unattended:
            raise AbstainError(f"{storage.url}: this folder holds no file to read: {_KINDS}")
        if not listing.is_folder and ignored:
            raise AbstainError(f"{storage.url}: is no {_KINDS} by its name: rename or convert it")
        known: Mapping[str, Mapping[str, Any]] = state.get("files", {})
        if self._mirror and not taken and any(entry.get("doc_id") for entry in known.values()):
            raise AbstainError(
                f"{storage.url}: every document of the source '{self.name}' is gone: look whether the folder is "
                "mounted; if this is meant, take the source out of sources.yaml"
            )
        return Reading(self._steps(storage, taken, tuple(ignored), known))

    def _steps(
        self,
        storage: Storage,
        taken: Sequence[Stored],
        ignored: tuple[str, ...],
        known: Mapping[str, Mapping[str, Any]],
    ) -> Generator[InputRow, None, Outcome]:
        files: dict[str, dict[str, Any]] = {}
        for file in sorted(taken, key=lambda file: (not is_document(file.name), file.name)):
            before = known.get(file.name, {})
            doc_id = before.get("doc_id")
            version = file.version
            if version is None or version != before.get("version"):
                try:
                    for row in _rows(storage, file):
                        doc_id = row.document.doc_id if row.document else doc_id
                        yield row
                except AbstainError as error:
                    if not self._unattended:
                        raise
                    # Where the whole place is gone, this raises, and nothing of the reading counts.
                    if file.name not in {one.name for one in storage.list().files}:
                        continue
                    version = None
                    yield _refused(file, str(error))
            files[file.name] = {"version": version} | ({"doc_id": doc_id} if doc_id else {})
        state = {"files": files}
        if not self._mirror:
            return Outcome(state, ignored)
        present = _documents(files)
        return Outcome(state, ignored, present, _documents(known) - present)


def by_hand(urls: Sequence[str]) -> tuple[FileSource, ...]:
    """Sources for places that somebody named, each read whole. Raises `AbstainError` where none is named."""
    if not urls:
        raise AbstainError(f"nothing to ingest: name files, or folders of them: {_KINDS}")
    return tuple(FileSource(shown(url).rstrip("/").rpartition("/")[2] or url, url) for url in urls)


def _documents(files: Mapping[str, Mapping[str, Any]]) -> frozenset[str]:
    return frozenset(entry["doc_id"] for entry in files.values() if entry.get("doc_id"))


def _refused(file: Stored, problem: str) -> InputRow:
    """What stands for a file that cannot be read. Its `raw` is the same as long as the file is, however it fails."""
    raw = f"[the file {file.name}, version {file.version}]".encode("utf-8", "surrogateescape")
    return InputRow(file.name, 1, raw, (f"file: {problem.removeprefix(f'{file.shown}: ')}",))


def _rows(storage: Storage, file: Stored) -> Iterator[InputRow]:
    """Every row of one file. Raises `AbstainError` for an empty one, and for JSON that is no JSON Lines."""
    name = file.name.lower()
    if name.endswith(PARQUET):
        with storage.open(file) as opened:
            yield from read_parquet(opened, file.name, file.shown)
        return
    chunks = storage.chunks(file)
    if KINDS.get(PurePosixPath(name).suffix) != "html":  # a page says itself how it is encoded
        chunks = utf8(chunks)
    chunks = _require_text(chunks, file)
    if is_document(name):
        content = whole(chunks)
        if isinstance(content, TooLong):
            yield InputRow(file.name, 1, content.raw, (content.reason,))
        else:
            yield read_document(content, file.name)
    elif name.endswith(CSV):
        yield from read_csv(lines(chunks), file.name, file.shown)
    else:
        yield from _json_lines(_require_lines(lines(chunks), file), file.name)


def _json_lines(found: Iterator[bytes | TooLong], source: str) -> Iterator[InputRow]:
    for number, line in enumerate(found, start=1):
        if isinstance(line, TooLong):
            yield InputRow(source, number, line.raw, (line.reason,))
        elif line.strip():
            yield parse_line(line.removesuffix(b"\r"), source, number)


def _require_lines(found: Iterator[bytes | TooLong], file: Stored) -> Iterator[bytes | TooLong]:
    """The same lines. Of a file that may be no JSON Lines, at most `LIMIT` bytes are held until that is told."""
    begun: list[bytes | TooLong] = []
    for line in found:
        begun.append(line)
        head = line.head if isinstance(line, TooLong) else line
        if head.strip():
            break
    if begun and may_be_no_lines(head):
        size = 0
        for line in found if isinstance(begun[-1], bytes) else ():
            begun.append(line)
            size += LIMIT if isinstance(line, TooLong) else len(line)
            if size >= LIMIT:
                break
        whole = b"\n".join(line.head if isinstance(line, TooLong) else line for line in begun)
        is_whole = size < LIMIT and not any(isinstance(line, TooLong) for line in begun)
        if problem := no_lines(whole, is_whole=is_whole):
            raise AbstainError(f"{file.shown}: {problem}")
    return chain(begun, found)


def _require_text(chunks: Iterator[bytes], file: Stored) -> Iterator[bytes]:
    is_empty = True
    for chunk in chunks:
        is_empty = is_empty and not chunk.strip()
        yield chunk
    if is_empty:
        raise AbstainError(f"{file.shown}: the file is empty")
