"""Where interactions, thumbs, reviews and documents come from: what a source is, and what it gives.

Two decisions:

* A source gives rows one at a time, and says only after the last one where it is to go on the next time (`state`).
  Whoever reads stores both in one step, or neither: then every row arrives exactly once, whatever is killed.
* A source may give a row again, and never leaves one out. Telling what is new is not its business.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from abstain.ingest.pipeline.parsing import InputRow


@dataclass(frozen=True)
class Outcome:
    """What is known once a source was read to its end.

    `state` goes into the next `Source.read`, as JSON. `ignored` names files that were passed over. A source that
    mirrors a folder of documents knows which ones are there (`present`, by `doc_id`), and which of those that it gave
    earlier are `vanished`; for any other source `present` is None.
    """

    state: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    present: frozenset[str] | None = None
    vanished: frozenset[str] = frozenset()


class Reading:
    """The rows of one source, to be walked through once, documents first; then, its outcome.

    Walking raises `AbstainError` where the source cannot be read to its end; what it gave by then counts for nothing.
    """

    def __init__(self, steps: Generator[InputRow, None, Outcome]) -> None:
        self._steps = steps
        self._outcome: Outcome | None = None

    def __iter__(self) -> Iterator[InputRow]:
        self._outcome = yield from self._steps

    @property
    def outcome(self) -> Outcome:
        """Raises `RuntimeError` before the last row was taken."""
        if self._outcome is None:
            raise RuntimeError("a source's outcome is known after its last row, not before")
        return self._outcome

    @property
    def state(self) -> Mapping[str, Any]:
        return self.outcome.state

    @property
    def ignored(self) -> tuple[str, ...]:
        return self.outcome.ignored

    @property
    def present(self) -> frozenset[str] | None:
        return self.outcome.present

    @property
    def vanished(self) -> frozenset[str]:
        return self.outcome.vanished


class Source(Protocol):
    """Something that rows can be read from, again and again; `name` is unique among a project's sources."""

    name: str

    def read(self, state: Mapping[str, Any]) -> Reading:
        """What is there, or, with the `state` of an earlier reading, what that one cannot have given.

        Raises `AbstainError` where there is nothing to read from: no such folder, file, server or table.
        """
