"""An export of another tool as a source: one or more files that a mapping explains, read together.

A score and the answer that it rates may be in different files, and so may the scores of one review. So all files are
read again as soon as one of them, or the mapping, has changed; existing rows are duplicates.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.filesystem import get_display_name
from abstain.core.json_lines import find_duplicate_keys, format_key
from abstain.ingest.exports.export_rows import ExportRecord, ExportRows
from abstain.ingest.exports.expressions import parse_json
from abstain.ingest.exports.mapping import load_mapping
from abstain.ingest.parsing import ParsedRow
from abstain.ingest.sources import ReadOutcome, SourceModel, SourceReader, SourceState
from abstain.ingest.sources.cells import TableRecord, iter_converted_records, to_json_value
from abstain.ingest.sources.csv_file import iter_csv_records
from abstain.ingest.sources.files import (
    CSV_SUFFIXES,
    JSON_LINES_SUFFIXES,
    PARQUET_SUFFIXES,
    get_failed_version,
    make_rejected_file_row,
    require_text,
    resolve_url,
)
from abstain.ingest.sources.lines import OversizedLine, read_whole, split_lines, to_utf8
from abstain.ingest.sources.storage import SourceFile, Storage

JSON_SUFFIXES = (".json", ".json.gz")
MAX_JSON_BYTES = 256 * 1024 * 1024
"""The longest JSON file, in bytes: all of it is in memory at once, at some ten times this size."""
SUFFIXES = JSON_SUFFIXES + JSON_LINES_SUFFIXES + CSV_SUFFIXES + PARQUET_SUFFIXES

_File = tuple[Storage, SourceFile]

_KINDS = "JSON (.json), JSON Lines (.jsonl), CSV (.csv), these packed too (.gz), or Parquet (.parquet)"


class ExportSource(SourceModel):
    """A folder or file of exports that scheduled runs read.

    A file that cannot be read gives one rejected row, and so does an export that the mapping does not fit, so that the
    writer of this folder does not block other sources.

    Attributes:
        kind: Distinguishes the sources in sources.yaml.
        url: A path, or an fsspec URL.
        mapping: The mapping file, relative to sources.yaml.
        scheduled: Whether scheduled runs read the source; if not, an unreadable file is an error.
    """

    kind: Literal["export"] = "export"
    url: str = Field(min_length=1, description="a path, or an fsspec URL, `${VARIABLE}` from the environment")
    mapping: str = Field(min_length=1, description="the mapping file, relative to sources.yaml")
    scheduled: ClassVar[bool] = True

    @property
    def urls(self) -> tuple[str, ...]:
        """The paths or URLs whose files are read together."""
        return (self.url,)

    def resolve_paths(self, home: Path, project: Path) -> Self:
        """Resolve relative paths; see `SourceModel.resolve_paths`."""
        url = resolve_url(self.url, home, SUFFIXES)
        return self.model_copy(update={"url": url, "mapping": str(project / Path(self.mapping).expanduser())})

    def read(self, state: SourceState) -> SourceReader:
        """Read all files if any of them or the mapping has changed since an earlier read.

        Args:
            state: State that the earlier read returned.

        Returns:
            A reader that yields the rows.

        Raises:
            AbstainError: A path or the mapping is missing or wrong. While iterating, unless `scheduled`: a file cannot
                be read to its end, the mapping does not fit the files, or it maps nothing in them.
        """
        path = Path(self.mapping)
        mapping = load_mapping(path)
        files: list[_File] = []
        ignored: list[str] = []
        for storage in map(Storage, self.urls):
            listing = storage.list()
            export_files, other_names = listing.split(SUFFIXES)
            if (not export_files and not self.scheduled) or (other_names and not listing.is_folder):
                raise AbstainError(Code.WRONG_FORMAT, f"{storage.url}: no export to read: {_KINDS}")
            files += [(storage, file) for file in export_files]
            ignored += other_names
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        versions = {file.name: file.version for _, file in files}
        new_state = {"files": versions, "mapping": digest}
        if new_state == state and None not in versions.values():
            return SourceReader(_read_nothing(ReadOutcome(new_state, tuple(ignored))))
        return SourceReader(self._rows(files, ExportRows(mapping, path.name), new_state, tuple(ignored)))

    def _rows(
        self, files: Sequence[_File], export: ExportRows, state: dict[str, Any], ignored: tuple[str, ...]
    ) -> Generator[ParsedRow, None, ReadOutcome]:
        try:
            readable = yield from self._survey_files(files, export, state)
        except AbstainError as error:
            if not self.scheduled or error.code is not Code.BAD_SETTING:
                raise
            misfit = SourceFile(self.name, "", "", json.dumps(state, sort_keys=True))
            yield make_rejected_file_row(misfit, error)
            return ReadOutcome(state, ignored)
        if not self.scheduled:
            export.require_rows(self.name)
        for storage, file in readable:
            records = _iter_records(storage, file)
            yield from export.iter_rows(export.split_records(records, file.display_name))
        yield from export.iter_reviews()
        return ReadOutcome(state, ignored, notes=export.make_notes())

    def _survey_files(
        self, files: Sequence[_File], export: ExportRows, state: dict[str, Any]
    ) -> Generator[ParsedRow, None, list[_File]]:
        """Survey `files`; yields a rejected row for each one that cannot be read, and returns the others."""
        readable: list[_File] = []
        for storage, file in files:
            try:
                export.scan(export.split_records(_iter_records(storage, file), file.display_name))
                readable.append((storage, file))
            except AbstainError as error:
                if not self.scheduled or error.code is Code.BAD_SETTING:
                    raise
                state["files"][file.name] = get_failed_version(file, error)
                yield make_rejected_file_row(file, error)
        export.check()
        return readable


class ExplicitExport(ExportSource):
    """An export that a user named: it is an error if the export cannot be read, or if nothing in it is mapped."""

    more_urls: tuple[str, ...] = ()
    scheduled: ClassVar[bool] = False

    @property
    def urls(self) -> tuple[str, ...]:
        """The paths or URLs that the user named."""
        return (self.url, *self.more_urls)


def make_explicit_export(urls: Sequence[str], mapping: str) -> ExplicitExport:
    """Make the source of files that a user named.

    Args:
        urls: Paths or fsspec URLs of the files of one export.
        mapping: Path of the mapping file.

    Returns:
        The source.

    Raises:
        AbstainError: `urls` is empty.
    """
    if not urls:
        raise AbstainError(Code.USAGE, f"--mapping explains the files that are named: name one: {_KINDS}")
    name = ", ".join(map(get_display_name, urls))
    return ExplicitExport(name=name, url=urls[0], more_urls=tuple(urls[1:]), mapping=mapping)


def _read_nothing(outcome: ReadOutcome) -> Generator[ParsedRow, None, ReadOutcome]:
    yield from ()
    return outcome


def _iter_records(storage: Storage, file: SourceFile) -> Iterator[ExportRecord]:
    """Yield every record of one file. Raises `AbstainError` if it cannot be read to its end, because it was cut."""

    def to_export_record(record: TableRecord) -> ExportRecord:
        cells = record.cells.items()
        # As texts, NaN of a data frame is a missing value.
        fields = {name: None if cell in ("NaN", "nan") else to_json_value(cell) for name, cell in cells}
        return ExportRecord(fields, file.name, record.number)

    name, chunks = file.name.lower(), storage.iter_chunks(file)
    if name.endswith(PARQUET_SUFFIXES):
        records = iter_converted_records(chunks, file.name)
        yield from map(to_export_record, _require_readable(records, file))
        return
    chunks = require_text(to_utf8(chunks), file)
    if name.endswith(JSON_SUFFIXES):
        content = read_whole(chunks, MAX_JSON_BYTES)
        if isinstance(content, OversizedLine):
            raise AbstainError(
                Code.TOO_LARGE,
                f"{file.display_name}: {content.size:,} bytes, {MAX_JSON_BYTES:,} allowed: export JSON Lines, or less",
            )
        for number, fields in enumerate(_unwrap_records(_parse_json(content, file.display_name)), start=1):
            yield _make_record(fields, file, number)
    elif name.endswith(CSV_SUFFIXES):
        yield from map(
            to_export_record,
            _require_readable(iter_csv_records(split_lines(chunks), file.name, file.display_name), file),
        )
    else:
        for number, line in enumerate(split_lines(chunks), start=1):
            where = f"{file.display_name} line {number}"
            if isinstance(line, OversizedLine):
                raise _make_damage_error(where, line.to_rejected_row(file.name, number).reasons[0].message)
            if line.strip():
                yield _make_record(_parse_json(line, where), file, number)


def _require_readable(records: Iterable[TableRecord | ParsedRow], file: SourceFile) -> Iterator[TableRecord]:
    """Yield `records`. Raises `AbstainError` at one that cannot be read."""
    for record in records:
        if isinstance(record, ParsedRow):
            raise _make_damage_error(f"{file.display_name} line {record.line}", record.reasons[0].message)
        yield record


def _parse_json(content: bytes, where: str) -> Any:
    try:
        text = content.decode("utf-8", "surrogatepass")
        parsed = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise _make_damage_error(where, f"is no JSON to its end ({error})") from None
    if keys := find_duplicate_keys(text):
        raise _make_damage_error(where, f"the key '{format_key(keys[0])}' comes twice in one object")
    return parsed


def _unwrap_records(content: Any) -> list[Any]:
    """Return the records of a JSON file: the items of an array or of a page from an API, else the one object."""
    if isinstance(content, dict) and isinstance(content.get("data"), list):
        return list(content["data"])
    return content if isinstance(content, list) else [content]


def _make_record(fields: Any, file: SourceFile, number: int) -> ExportRecord:
    if not isinstance(fields, dict):
        raise _make_damage_error(
            f"{file.display_name} record {number}", f"is no JSON object but {json.dumps(fields)[:40]}"
        )
    return ExportRecord(fields, file.name, number)


def _make_damage_error(where: str, problem: str) -> AbstainError:
    return AbstainError(Code.WRONG_FORMAT, f"{where}: {problem}: the file was cut or changed: export it again")
