"""A folder or file as a source, local or behind an fsspec URL: rows (JSON Lines, CSV, Parquet) and documents.

The kind of a file is decided by its name. Unchanged files are not read again; that only saves work, because their rows
would be duplicates.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import create_home
from abstain.core.filesystem import get_display_name, is_url
from abstain.core.json_lines import detect_other_json
from abstain.core.reasons import Reason
from abstain.ingest.parsing import ParsedRow, is_document, parse_line
from abstain.ingest.sources import ReadOutcome, SourceModel, SourceReader, SourceState
from abstain.ingest.sources.cells import iter_converted_records, parse_records
from abstain.ingest.sources.csv_file import CONTRACT_COLUMNS, iter_csv_records
from abstain.ingest.sources.document_files import DocumentFiles, DocumentRules
from abstain.ingest.sources.lines import OversizedLine, split_lines, to_utf8
from abstain.ingest.sources.storage import SourceFile, Storage
from abstain.knowledge.documents.reader import SUFFIXES as DOCUMENT_SUFFIXES

JSON_LINES_SUFFIXES = (".jsonl", ".jsonl.gz")
CSV_SUFFIXES = (".csv", ".csv.gz")
PARQUET_SUFFIXES = (".parquet",)
SUFFIXES = JSON_LINES_SUFFIXES + CSV_SUFFIXES + PARQUET_SUFFIXES + DOCUMENT_SUFFIXES

_KINDS = (
    "JSON Lines (.jsonl), CSV (.csv), both packed too (.gz), Parquet (.parquet), or a document "
    f"({', '.join(DOCUMENT_SUFFIXES)})"
)


class FileSource(SourceModel):
    """A folder or file that scheduled runs read.

    The folder may be empty. A file that cannot be read gives one rejected row, so that it does not block the others. It
    is read again after it has changed: one that was still being written has another version when it is complete.

    Attributes:
        kind: Distinguishes the sources in sources.yaml.
        url: A path, or an fsspec URL.
        mirror: Remove a document when its file is gone from the folder.
        documents: How documents get what their files do not say.
        scheduled: Whether scheduled runs read the source; if not, an unreadable file is an error.
    """

    kind: Literal["files"] = "files"
    url: str = Field(min_length=1, description="a path, or an fsspec URL, `${VARIABLE}` from the environment")
    mirror: bool = Field(False, description="documents that are gone here are removed")
    documents: DocumentRules = Field(DocumentRules(), description="fields of documents: names, and folders' defaults")
    scheduled: ClassVar[bool] = True

    def resolve_paths(self, home: Path, project: Path) -> Self:
        """Resolve a relative path; see `SourceModel.resolve_paths`."""
        return self.model_copy(update={"url": resolve_url(self.url, home, SUFFIXES)})

    def read(self, state: SourceState) -> SourceReader:
        """Read every file that is new or has changed since an earlier read.

        Args:
            state: State that the earlier read returned.

        Returns:
            A reader that yields the rows, documents first.

        Raises:
            AbstainError: The path is missing, is a file of another kind, or lost all its mirrored documents. Unless
                `scheduled`: the folder holds no file to read or, while iterating, a file cannot be read.
        """
        storage = Storage(self.url)
        listing = storage.list()
        files, ignored = listing.split(SUFFIXES)
        if listing.is_folder and not files and not self.scheduled:
            raise AbstainError(Code.NO_ROWS, f"{storage.url}: this folder holds no file to read: {_KINDS}")
        if not listing.is_folder and ignored:
            raise AbstainError(
                Code.WRONG_FORMAT, f"{storage.url}: its name is not that of {_KINDS}: rename or convert it"
            )
        earlier_entries: Mapping[str, SourceState] = state.get("files", {})
        if self.mirror and not files and _get_doc_ids(earlier_entries):
            raise AbstainError(
                Code.NOT_READABLE,
                f"{storage.url}: every document of the source '{self.name}' is gone: check that the folder is "
                "mounted; if this is intended, remove the source from sources.yaml",
            )
        return SourceReader(self._rows(storage, files, ignored, earlier_entries))

    def _rows(
        self,
        storage: Storage,
        files: Sequence[SourceFile],
        ignored: tuple[str, ...],
        earlier_entries: Mapping[str, SourceState],
    ) -> Generator[ParsedRow, None, ReadOutcome]:
        entries: dict[str, dict[str, Any]] = {}
        documents = DocumentFiles(self.documents, storage)
        for file in sorted(files, key=lambda file: (not is_document(file.name), file.name)):
            entry = earlier_entries.get(file.name, {})
            # A document whose new content is rejected keeps its doc_id: a typing error must not remove the page.
            doc_id, version = entry.get("doc_id"), self._get_version(file)
            if version is None or version != entry.get("version"):
                is_page = is_document(file.name)
                try:
                    for row in [documents.read(file, doc_id)] if is_page else _read_rows(storage, file):
                        doc_id = row.document.doc_id if row.document else doc_id
                        yield row
                except AbstainError as error:
                    if not self.scheduled and (not is_page or error.code is Code.NOT_READABLE):
                        raise
                    if file.name not in {listed_file.name for listed_file in storage.list().files}:
                        continue  # the file was deleted; if the whole folder was, `list` raises
                    version = get_failed_version(file, error) and version
                    yield make_rejected_file_row(file, error)
            entries[file.name] = {"version": version} | ({"doc_id": doc_id} if doc_id else {})
        state, notes = {"files": entries}, tuple(documents.make_notes())
        if not self.mirror:
            return ReadOutcome(state, ignored, notes=notes)
        present_doc_ids = _get_doc_ids(entries)
        removed_doc_ids = _get_doc_ids(earlier_entries) - present_doc_ids
        return ReadOutcome(state, ignored, present_doc_ids, removed_doc_ids, notes)

    def _get_version(self, file: SourceFile) -> str | None:
        """Return what changes with the content of a file, and of a document with the rules for it."""
        if file.version is None or not is_document(file.name):
            return file.version
        return f"{file.version} {self.documents.digest}".strip()


class ExplicitFiles(FileSource):
    """A folder or file that a user named: it is an error if it is empty or cannot be read."""

    scheduled: ClassVar[bool] = False


def make_explicit_sources(urls: Sequence[str]) -> tuple[ExplicitFiles, ...]:
    """Make a source for each path or URL that a user named.

    Args:
        urls: Paths or fsspec URLs.

    Returns:
        The sources.

    Raises:
        AbstainError: `urls` is empty.
    """
    if not urls:
        raise AbstainError(Code.USAGE, f"nothing to ingest: name files, or folders of them: {_KINDS}")
    return tuple(ExplicitFiles(name=get_display_name(url), url=url) for url in urls)


def resolve_url(url: str, home: Path, suffixes: tuple[str, ...]) -> str:
    """Make the path of a source absolute.

    A relative folder is created, so that users find it.

    Args:
        url: A path or URL; a URL is unchanged.
        home: Folder that relative paths are relative to.
        suffixes: Suffixes of files; any other path is a folder.

    Returns:
        The absolute path, or the URL.
    """
    if is_url(url):
        return url
    path = Path(url).expanduser()
    if not path.is_absolute() and not url.lower().endswith(suffixes):
        create_home(home)
        (home / path).mkdir(parents=True, exist_ok=True)
    return str(home / path)


def _get_doc_ids(entries: Mapping[str, SourceState]) -> frozenset[str]:
    return frozenset(entry["doc_id"] for entry in entries.values() if entry.get("doc_id"))


def get_failed_version(file: SourceFile, error: AbstainError) -> str | None:
    """Return the version to remember of a file that could not be read.

    Args:
        file: The file.
        error: The error.

    Returns:
        The file's version, so that this version is not read again. None, so that it is tried again, if the file was not
        reached or a package is missing: servers come back, packages are installed, and the file is as it was.
    """
    return None if error.code in (Code.NOT_READABLE, Code.NO_PACKAGE) else file.version


def make_rejected_file_row(file: SourceFile, error: AbstainError) -> ParsedRow:
    """Make the rejected row that stands for an unreadable file.

    Args:
        file: The file.
        error: Why it cannot be read.

    Returns:
        The row; its `digest` is the same for every attempt at this version of the file.
    """
    digest = hashlib.sha256(f"{file.name}\0{file.version}".encode("utf-8", "surrogateescape")).hexdigest()
    reason = Reason(error.code, "file", error.message.removeprefix(f"{file.display_name}: "))
    return ParsedRow(file.name, 1, b"", (reason,), digest=digest)


def _read_rows(storage: Storage, file: SourceFile) -> Iterator[ParsedRow]:
    """Yield every row of one file. Raises `AbstainError` if it is empty, unreadable, or JSON but not JSON Lines."""
    name, chunks = file.name.lower(), storage.iter_chunks(file)
    if not name.endswith(PARQUET_SUFFIXES):
        chunks = require_text(to_utf8(chunks), file)
    if name.endswith(JSON_LINES_SUFFIXES):
        for number, line in enumerate(split_lines(_require_json_lines(chunks, file)), start=1):
            if isinstance(line, OversizedLine):
                yield line.to_rejected_row(file.name, number)
            elif line.strip():
                yield parse_line(line.removesuffix(b"\r"), file.name, number)
        return
    if name.endswith(PARQUET_SUFFIXES):
        records = iter_converted_records(chunks, file.name)
    else:
        records = iter_csv_records(split_lines(chunks), file.name, file.display_name, CONTRACT_COLUMNS)
    yield from parse_records(records, file.name)


def require_text(chunks: Iterator[bytes], file: SourceFile) -> Iterator[bytes]:
    """Check that a file is not blank.

    Args:
        chunks: The bytes of the file.
        file: The file.

    Yields:
        The chunks, unchanged.

    Raises:
        AbstainError: At the end, if all chunks are blank.
    """
    is_blank = True
    for chunk in chunks:
        is_blank = is_blank and not chunk.strip()
        yield chunk
    if is_blank:
        raise AbstainError(Code.WRONG_FORMAT, f"{file.display_name}: the file is empty")


def _require_json_lines(chunks: Iterator[bytes], file: SourceFile) -> Iterator[bytes]:
    """Return `chunks`. Raises `AbstainError` if the first one begins a JSON array, or an object over several lines."""
    first_chunks = [next(chunks, b"")]
    if detect_other_json(first_chunks[0], is_whole=False):
        first_chunks.append(next(chunks, b""))
        if problem := detect_other_json(first_chunks[0], is_whole=not first_chunks[1]):
            raise AbstainError(Code.WRONG_FORMAT, f"{file.display_name}: {problem}")
    return chain(first_chunks, chunks)
