"""The decision log of `abstain serve` as a source: decisions that got feedback, and those that were sampled.

The log has redacted its rows and stores users by pseudonym; ingest does both again, which changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal, Self

from pydantic import Field

from abstain.config.settings import get_decision_log_url, load_settings
from abstain.core.filesystem import expand_variables
from abstain.data.decision_log.changes import LogChange, LogPosition, iter_changes, read_end_position
from abstain.data.decision_log.database import LogDatabase
from abstain.ingest.parsing import ParsedRow, parse_object
from abstain.ingest.sources import ReadOutcome, SourceModel, SourceReader, SourceState


class DecisionLogSource(SourceModel):
    """The log that servers of this home write, or the one at `url`. A log that was not written yet gives no rows.

    Attributes:
        kind: Distinguishes the sources in sources.yaml.
        url: postgresql:// URL, with `${VARIABLE}` from the environment; None for the log of this home.
    """

    kind: Literal["decisions"] = "decisions"
    url: str | None = Field(
        None,
        min_length=1,
        repr=False,
        description="postgresql:// URL, `${VARIABLE}` from the environment; default: where `abstain serve` writes",
    )

    def resolve_paths(self, home: Path, project: Path) -> Self:
        """Complete the URL; see `SourceModel.resolve_paths`. Raises `AbstainError` for a variable that is not set."""
        if self.url is None:
            return self.model_copy(update={"url": get_decision_log_url(load_settings(), home)})
        return self.model_copy(update={"url": expand_variables(self.url, f"source '{self.name}'")})

    def read(self, state: SourceState) -> SourceReader:
        """Read the rows that were logged since an earlier read; all rows if that read another log.

        Args:
            state: State that the earlier read returned.

        Returns:
            A reader that yields the rows.

        Raises:
            AbstainError: The log cannot be reached, or has a layout of another release; also while iterating.
        """
        database = LogDatabase.open_existing(self.url) if self.url else None
        return SourceReader(self._rows(database, state))

    def _rows(self, database: LogDatabase | None, state: SourceState) -> Generator[ParsedRow, None, ReadOutcome]:
        if database is None:
            return ReadOutcome(state)
        expired = 0
        with closing(database):
            end = read_end_position(database)
            since = LogPosition(**state) if state.get("log") == end.log else LogPosition(end.log)
            for change in iter_changes(database, since, end):
                expired += "expired" in (change.text_state, change.answer_text_state)
                if change.content is not None:
                    yield self._parse(change)
        note = f"{self.name}: {expired:,} decisions or replies came after their texts had gone from the log"
        return ReadOutcome(asdict(end), notes=(note,) if expired else ())

    def _parse(self, change: LogChange) -> ParsedRow:
        """Make a row of the import format; feedback on a decision without text is a row of its own."""
        assert change.content is not None
        fields = json.loads(change.content)
        table = "decisions" if change.kind == "decision" else "feedback"
        if change.answer is not None:
            del fields["interaction_id"]
            fields = {**json.loads(change.answer), change.kind: fields}
        row = parse_object(fields, f"{self.name}/{table}", change.number)
        return replace(row, is_sampled=change.kind == "review")  # only the review queue gives a review its probability
