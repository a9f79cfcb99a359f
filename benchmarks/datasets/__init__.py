"""Importers turn published feedback and question sets into files for `abstain ingest` (docs/importers.md).

An importer is a module with a pure generator `read(files, **options)`, which raises `AbstainError` for a file of
another format. Ids and times come from what it reads, so the same file gives the same rows again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CriteriaValues = tuple[bool, bool, bool]
"""Whether an answer is complete, correct and truthful."""


@dataclass(frozen=True)
class DocumentFile:
    """A document for the knowledge base: its file name and content."""

    name: str
    text: str


@dataclass(frozen=True)
class SkippedRecord:
    """A record that is not imported, and the reason."""

    reason: str


Item = Mapping[str, Any] | DocumentFile | SkippedRecord
"""The output of an importer. A mapping is a row for a JSON Lines file: an import-format row, a thumb, or a review."""


def make_review(reviewed_at: str, reviewer: str, flags: CriteriaValues) -> dict[str, Any]:
    """Return the fields of a review, without its interaction."""
    complete, correct, truthful = flags
    return {
        "reviewed_at": reviewed_at,
        "reviewer": reviewer,
        "complete": complete,
        "correct": correct,
        "truthful": truthful,
    }
