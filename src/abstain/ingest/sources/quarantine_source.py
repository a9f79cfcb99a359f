"""The quarantine as a source: rejected rows that are validated again."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from abstain.ingest.parsing import ParsedRow, is_document
from abstain.ingest.quarantine import QuarantinedRow
from abstain.ingest.sources import ReadOutcome, SourceReader, SourceState


@dataclass(frozen=True)
class QuarantineSource:
    """The rows of one quarantine file; each row keeps its original source and line.

    Attributes:
        name: Name of the source.
        rows: The rows.
    """

    name: str
    rows: Sequence[QuarantinedRow]

    def read(self, state: SourceState) -> SourceReader:
        """Read every row; `state` is ignored."""
        return SourceReader(self._parse())

    def _parse(self) -> Generator[ParsedRow, None, ReadOutcome]:
        for row in sorted(self.rows, key=lambda row: not is_document(row.source)):
            yield row.reparse()
        n_lost = sum(row.raw is None for row in self.rows)
        note = f"the text of {n_lost:,} rows was not kept: fix these at the source and ingest that again"
        return ReadOutcome(notes=(note,) if n_lost else ())
