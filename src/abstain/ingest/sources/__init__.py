"""Sources of interactions, thumbs, reviews and documents: what each can do and what one reading of it gives.

A source gives rows one at a time, and after the last one the `state` from which its next reading goes on. Rows and
state are stored in one step, so every row arrives exactly once wherever a run is killed. A source may give a row again,
but never leaves one out; detecting duplicates is not its task.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from abstain.config.yaml_model import FrozenModel
from abstain.ingest.parsing import ParsedRow


@dataclass(frozen=True)
class ReadOutcome:
    """The result of a reading that reached its end.

    `state` is JSON for the next `Source.read`; `ignored` names skipped files, and `notes` are lines for the report. A
    source that mirrors a folder of documents also reports the `doc_id`s that are `present_doc_ids` (None for other
    sources) and those given earlier that have `removed_doc_ids`.
    """

    state: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    present_doc_ids: frozenset[str] | None = None
    removed_doc_ids: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


class SourceReader:
    """The rows of one source, documents first, to be iterated once; then its outcome.

    Iterating raises `AbstainError` if the source cannot be read to its end; rows given before that do not count.
    """

    def __init__(self, rows: Generator[ParsedRow, None, ReadOutcome]) -> None:
        self._rows = rows
        self._outcome: ReadOutcome | None = None

    def __iter__(self) -> Iterator[ParsedRow]:
        self._outcome = yield from self._rows

    @property
    def outcome(self) -> ReadOutcome:
        """The outcome. Raises `RuntimeError` before the last row was taken."""
        if self._outcome is None:
            raise RuntimeError("a source's outcome is known after its last row, not before")
        return self._outcome


class Source(Protocol):
    """Something that rows can be read from repeatedly; `name` is unique among the sources of a project."""

    @property
    def name(self) -> str: ...

    def read(self, state: Mapping[str, Any]) -> SourceReader:
        """Read everything, or, given the `state` of an earlier reading, what that one cannot have given.

        Raises:
            AbstainError: there is no such folder, file, server or table.
        """


class SourceModel(FrozenModel):
    """Base of the sources that sources.yaml declares: the parsed configuration is itself the `Source`."""

    name: str

    @abstractmethod
    def in_home(self, home: Path, project: Path) -> Self:
        """Return this source with its relative paths resolved: places of data against `home`, files of the project
        against the folder `project`."""

    @abstractmethod
    def read(self, state: Mapping[str, Any]) -> SourceReader:
        """See `Source.read`."""
