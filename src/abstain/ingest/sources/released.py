"""The quarantine as a source: rows that were refused, to be judged again."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from abstain.ingest.pipeline.parsing import InputRow, is_document
from abstain.ingest.quarantine import QuarantinedRow
from abstain.ingest.sources import Outcome, Reading


class Released:
    """The rows of one quarantine file; every one keeps the place where it first stood."""

    def __init__(self, name: str, rows: Sequence[QuarantinedRow]) -> None:
        self.name = name
        self._rows = rows

    def read(self, state: Mapping[str, Any]) -> Reading:
        return Reading(self._steps())

    def _steps(self) -> Generator[InputRow, None, Outcome]:
        for row in sorted(self._rows, key=lambda row: not is_document(row.source)):
            yield row.reread()
        return Outcome()
