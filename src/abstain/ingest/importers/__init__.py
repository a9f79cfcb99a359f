"""Published feedback and question sets -> what `abstain ingest` takes. docs/importers.md says what becomes of each.

Two decisions:

* An importer writes files, and `abstain ingest` reads them like anybody else's: what is imported can be looked at,
  counted and mended before it counts as feedback.
* An importer is a pure generator. Ids and times come from what it reads, never from the clock or from chance: the same
  file again gives the same rows, which are duplicates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from abstain.config.yaml_model import Section


@dataclass(frozen=True)
class DocumentFile:
    """A document for the knowledge base: its file name and content."""

    name: str
    text: str


@dataclass(frozen=True)
class Skipped:
    """A record that is not brought over, and why."""

    reason: str


Item = Mapping[str, Any] | DocumentFile | Skipped
"""What an importer gives. A mapping is a row for a JSON Lines file: of the import format, a thumb, or a review."""


@dataclass(frozen=True)
class Importer:
    """One format. `options` is the model of what can be chosen; `read` raises `AbstainError` for a file of another."""

    name: str
    summary: str
    options: type[Section]
    read: Callable[[Sequence[Path], Any], Iterator[Item]]
