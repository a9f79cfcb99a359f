"""Sources of interactions, thumbs, reviews and documents: their protocol, and the result of reading one.

A source yields rows one at a time, and after the last one the `state` from which its next read goes on. Rows and state
are stored in one step, so every row arrives exactly once, wherever a run is killed. A source may repeat a row, but
never omits one; it does not have to detect duplicates.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, Self, cast

from abstain.config.yaml_model import FrozenModel
from abstain.ingest.parsing import ParsedRow

SourceState = Mapping[str, Any]
"""Where a read of a source stopped, as JSON; only the source itself knows what is in it."""


@dataclass(frozen=True)
class ReadOutcome:
    """The result of a read that reached its end.

    Attributes:
        state: State for the next `Source.read`.
        ignored: Names of skipped files.
        present_doc_ids: Ids of all documents in the folder that the source mirrors; None for other sources.
        removed_doc_ids: Ids of documents that an earlier read yielded and that are gone from the mirrored folder.
        notes: Lines for the report.
    """

    state: SourceState = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    present_doc_ids: frozenset[str] | None = None
    removed_doc_ids: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


class SourceReader:
    """The rows of one source, documents first, to be iterated once; then its outcome.

    Iterating raises `AbstainError` if the source cannot be read to its end; rows yielded before that do not count.

    Args:
        rows: Yields the rows and returns the outcome.
    """

    def __init__(self, rows: Generator[ParsedRow, None, ReadOutcome]) -> None:
        self._rows = rows
        self._outcome: ReadOutcome | None = None

    def __iter__(self) -> Iterator[ParsedRow]:
        dropped_counts = Counter[str]()
        outcome = yield from self._iter_rows(dropped_counts)
        if dropped_counts:
            names = ", ".join(f"{name} ({count:,})" for name, count in dropped_counts.most_common())
            note = f"null, NaN or infinite, so that the row was taken without it: {names}"
            outcome = replace(outcome, notes=(*outcome.notes, note))
        self._outcome = outcome

    def _iter_rows(self, dropped_counts: Counter[str]) -> Generator[ParsedRow, None, ReadOutcome]:
        with closing(self._rows):
            while True:
                try:
                    row = next(self._rows)
                except StopIteration as end:
                    return cast(ReadOutcome, end.value)
                dropped_counts.update(row.dropped)
                yield row

    @property
    def outcome(self) -> ReadOutcome:
        """The outcome. Raises `RuntimeError` before the last row was read."""
        if self._outcome is None:
            raise RuntimeError("a source's outcome is known after its last row, not before")
        return self._outcome


class Source(Protocol):
    """Something that rows can be read from repeatedly; `name` is unique among the sources of a project."""

    @property
    def name(self) -> str: ...

    def read(self, state: SourceState) -> SourceReader:
        """Read the source from where an earlier read stopped.

        Args:
            state: State that the earlier read returned; an empty mapping reads everything.

        Returns:
            A reader that yields rows, documents first. It may repeat rows but never omits one.

        Raises:
            AbstainError: The folder, file, server or table does not exist.
        """


class SourceModel(FrozenModel):
    """Base of the sources that sources.yaml declares: the parsed configuration is itself the `Source`."""

    name: str

    @abstractmethod
    def resolve_paths(self, home: Path, project: Path) -> Self:
        """Resolve relative paths.

        Args:
            home: Folder that paths of data are relative to.
            project: Folder that paths of the project's files are relative to.

        Returns:
            A copy of this source with absolute paths.
        """

    @abstractmethod
    def read(self, state: SourceState) -> SourceReader:
        """See `Source.read`."""
