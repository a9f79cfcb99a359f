"""The quarantine as a source: refused rows that are validated again."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from abstain.ingest.pipeline.parsing import InputRow, is_document
from abstain.ingest.quarantine import QuarantinedRow
from abstain.ingest.sources import Outcome, Reading


@dataclass(frozen=True)
class QuarantineSource:
    """The `rows` of one quarantine file; each row keeps its original source and line."""

    name: str
    rows: Sequence[QuarantinedRow]

    def read(self, state: Mapping[str, Any]) -> Reading:
        """Give every row; `state` is ignored."""
        return Reading(self._parse())

    def _parse(self) -> Generator[InputRow, None, Outcome]:
        for row in sorted(self.rows, key=lambda row: not is_document(row.source)):
            yield row.reread()
        return Outcome()
