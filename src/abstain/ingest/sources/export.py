"""An export of another tool as a source: one or more files that a mapping explains, read together.

A score and the answer that it judges may stand in different files, and so may the scores of one review. So the files
are read as a whole as soon as one of them, or the mapping, has changed; known rows are duplicates.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.filesystem import get_display_name
from abstain.core.json_lines import find_duplicate_keys, format_key
from abstain.ingest.exports.export_rows import ExportRecord, ExportRows
from abstain.ingest.exports.mapping import load_mapping
from abstain.ingest.parsing import ParsedRow
from abstain.ingest.sources import ReadOutcome, SourceModel, SourceReader
from abstain.ingest.sources.cells import TableRecord, to_json_value
from abstain.ingest.sources.csv_file import csv_records
from abstain.ingest.sources.files import (
    CSV,
    JSON_LINES,
    PARQUET,
    known_version,
    make_rejected_file_row,
    require_text,
    resolved_url,
)
from abstain.ingest.sources.lines import OversizedLine, read_whole, split_lines, to_utf8
from abstain.ingest.sources.parquet_file import parquet_records
from abstain.ingest.sources.storage import SourceFile, Storage

JSON = (".json", ".json.gz")
WHOLE = 256 * 1024 * 1024
"""The longest JSON file, in bytes: it is in memory at once, some ten times as large."""
SUFFIXES = JSON + JSON_LINES + CSV + PARQUET

_File = tuple[Storage, SourceFile]

_KINDS = "JSON (.json), JSON Lines (.jsonl), CSV (.csv), these packed too (.gz), or Parquet (.parquet)"


class ExportSource(SourceModel):
    """A folder or file of exports that scheduled runs read.

    A file that cannot be read is one refused row, and so is an export that the mapping does not fit: who writes here
    does not hold up other sources.
    """

    kind: Literal["export"] = "export"
    url: str = Field(min_length=1, description="a path, or an fsspec URL, `${VARIABLE}` from the environment")
    mapping: str = Field(min_length=1, description="the mapping file, relative to sources.yaml")
    scheduled: ClassVar[bool] = True

    @property
    def urls(self) -> tuple[str, ...]:
        """The places whose files are read together."""
        return (self.url,)

    def in_home(self, home: Path, project: Path) -> Self:
        """Return this source with absolute paths."""
        url = resolved_url(self.url, home, SUFFIXES)
        return self.model_copy(update={"url": url, "mapping": str(project / Path(self.mapping).expanduser())})

    def read(self, state: Mapping[str, Any]) -> SourceReader:
        """Read all files where one of them or the mapping has changed since the reading that gave `state`.

        Raises:
            AbstainError: the place or the mapping is missing or wrong; and, while iterating, unless `scheduled`, a file
                cannot be read to its end, the mapping does not fit the files, or nothing in them is mapped.
        """
        path = Path(self.mapping)
        mapping = load_mapping(path)
        files: list[_File] = []
        ignored: list[str] = []
        for storage in map(Storage, self.urls):
            listing = storage.list()
            named = [file for file in listing.files if file.name.lower().endswith(SUFFIXES)]
            others = [file.name for file in listing.files if not file.name.lower().endswith(SUFFIXES)]
            if (not named and not self.scheduled) or (others and not listing.is_folder):
                raise AbstainError(Code.WRONG_FORMAT, f"{storage.url}: no export to read: {_KINDS}")
            files += [(storage, file) for file in named]
            ignored += others
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        versions = {file.name: file.version for _, file in files}
        now = {"files": versions, "mapping": digest}
        if now == state and None not in versions.values():
            return SourceReader(_nothing(ReadOutcome(now, tuple(ignored))))
        return SourceReader(self._rows(files, ExportRows(mapping, path.name), now, tuple(ignored)))

    def _rows(
        self, files: Sequence[_File], export: ExportRows, state: dict[str, Any], ignored: tuple[str, ...]
    ) -> Generator[ParsedRow, None, ReadOutcome]:
        try:
            read = yield from self._survey(files, export, state)
        except AbstainError as error:
            if not self.scheduled or error.code is not Code.BAD_SETTING:
                raise
            misfit = SourceFile(self.name, "", "", json.dumps(state, sort_keys=True))
            yield make_rejected_file_row(misfit, error)
            return ReadOutcome(state, ignored)
        if not self.scheduled:
            export.require_rows(self.name)
        for storage, file in read:
            yield from export.rows(export.parts(_records(storage, file), file.display_name))
        yield from export.reviews()
        return ReadOutcome(state, ignored, notes=export.notes())

    def _survey(
        self, files: Sequence[_File], export: ExportRows, state: dict[str, Any]
    ) -> Generator[ParsedRow, None, list[_File]]:
        """Survey `files`; yields a row for each that cannot be read, and returns the others."""
        read: list[_File] = []
        for storage, file in files:
            try:
                export.scan(export.parts(_records(storage, file), file.display_name))
                read.append((storage, file))
            except AbstainError as error:
                if not self.scheduled or error.code is Code.BAD_SETTING:
                    raise
                state["files"][file.name] = known_version(file, error)
                yield make_rejected_file_row(file, error)
        export.check()
        return read


class ExplicitExport(ExportSource):
    """An export that a user named: an error if it cannot be read, or if nothing in it is mapped."""

    more_urls: tuple[str, ...] = ()
    scheduled: ClassVar[bool] = False

    @property
    def urls(self) -> tuple[str, ...]:
        return (self.url, *self.more_urls)


def explicit_export(urls: Sequence[str], mapping: str) -> ExplicitExport:
    """Return `urls` as the files of one export. Raises `AbstainError` if there are none."""
    if not urls:
        raise AbstainError(Code.USAGE, f"--mapping explains the files that are named: name one: {_KINDS}")
    name = ", ".join(map(get_display_name, urls))
    return ExplicitExport(name=name, url=urls[0], more_urls=tuple(urls[1:]), mapping=mapping)


def _nothing(state: ReadOutcome) -> Generator[ParsedRow, None, ReadOutcome]:
    yield from ()
    return state


def _records(storage: Storage, file: SourceFile) -> Iterator[ExportRecord]:
    """Yield every record of one file. Raises `AbstainError` where it cannot be read to its end: it was cut, then."""

    def of_table(record: TableRecord) -> ExportRecord:
        return ExportRecord(
            {name: to_json_value(cell) for name, cell in record.cells.items()}, file.name, record.number
        )

    name = file.name.lower()
    if name.endswith(PARQUET):
        with storage.open(file) as opened:
            yield from map(of_table, _whole(parquet_records(opened, file.name, file.display_name), file))
        return
    chunks = require_text(to_utf8(storage.chunks(file)), file)
    if name.endswith(JSON):
        content = read_whole(chunks, WHOLE)
        if isinstance(content, OversizedLine):
            raise AbstainError(
                Code.TOO_LARGE,
                f"{file.display_name}: {content.size:,} bytes, {WHOLE:,} allowed: export JSON Lines, or less",
            )
        for number, fields in enumerate(_unwrapped(_parse(content, file.display_name)), start=1):
            yield _object(fields, file, number)
    elif name.endswith(CSV):
        yield from map(of_table, _whole(csv_records(split_lines(chunks), file.name, file.display_name), file))
    else:
        for number, line in enumerate(split_lines(chunks), start=1):
            where = f"{file.display_name} line {number}"
            if isinstance(line, OversizedLine):
                raise _damaged(where, line.to_rejected_row(file.name, number).reasons[0].message)
            if line.strip():
                yield _object(_parse(line, where), file, number)


def _whole(records: Iterable[TableRecord | ParsedRow], file: SourceFile) -> Iterator[TableRecord]:
    """Yield `records`. Raises `AbstainError` at one that cannot be read."""
    for record in records:
        if isinstance(record, ParsedRow):
            raise _damaged(f"{file.display_name} line {record.line}", record.reasons[0].message)
        yield record


def _parse(content: bytes, where: str) -> Any:
    try:
        text = content.decode("utf-8", "surrogatepass")
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(where, f"is no JSON to its end ({error})") from None
    if keys := find_duplicate_keys(text):
        raise _damaged(where, f"the key '{format_key(keys[0])}' comes twice in one object")
    return parsed


def _unwrapped(content: Any) -> list[Any]:
    """The records of a JSON file: the items of an array, or of the page of an API, else the one object."""
    if isinstance(content, dict) and isinstance(content.get("data"), list):
        return list(content["data"])
    return content if isinstance(content, list) else [content]


def _object(fields: Any, file: SourceFile, number: int) -> ExportRecord:
    if not isinstance(fields, dict):
        raise _damaged(f"{file.display_name} record {number}", f"is no JSON object but {json.dumps(fields)[:40]}")
    return ExportRecord(fields, file.name, number)


def _damaged(where: str, problem: str) -> AbstainError:
    return AbstainError(Code.WRONG_FORMAT, f"{where}: {problem}: the file was cut or changed: export it again")
