"""Classify the rows of a batch: new, duplicate, pending, or conflicting with known rows. Pure.

Notes:

* The first content of an identity wins, in order of arrival; other content is a conflict. Known content with a
  new thumb or review beside it is new feedback.
* A thumb or review that comes before its interaction is held, not refused: the queue that carries thumbs is often
  faster than the one that carries answers.
* Of a document the newest version wins, wherever it stands in the batch. A version that was accepted once and is
  outdated by now is a duplicate; one that was outdated before it came is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from abstain.core.codes import Code
from abstain.core.contracts import Document, Interaction, Review, Thumb
from abstain.core.reasons import Reason, ReasonKind, Reasons
from abstain.data.store.key_index import KeyIndex
from abstain.data.store.record_keys import Record, Stored, interaction_identity, make_record
from abstain.ingest.parsing import ParsedRow

Outcome = Literal["accepted", "duplicate", "held", "quarantined"]
RowDecision = tuple[Outcome, Reasons]


@dataclass(frozen=True)
class BatchResolution:
    """The outcome of each input row, in order; the new rows; those whose interaction is not known."""

    decisions: tuple[RowDecision, ...]
    new: tuple[Record, ...]
    pending: tuple[Record, ...]


@dataclass(frozen=True)
class RowRecords:
    """An input row with its contents as they would be stored."""

    row: ParsedRow
    lines: tuple[Record, ...]

    @classmethod
    def from_row(cls, row: ParsedRow) -> RowRecords:
        if row.document is not None:
            raise RuntimeError(f"{row.source}: a document after rows: a source gives its documents first")
        return cls(row, tuple(make_record(part) for part in row.contents() if not isinstance(part, Document)))


def resolve_duplicates(
    batch: Sequence[RowRecords],
    index: KeyIndex,
    pending_index: KeyIndex,
    rejected: Mapping[bytes, Reasons],
    *,
    is_last: bool,
) -> BatchResolution:
    """Decide on `batch` against `index`, against the pending rows `held`, and against itself.

    Rows with contents in `refused`, by their content's digest, are left out. `is_last`: no interaction comes any more,
    so of equal pending rows the first is held and the others are duplicates; until then, each of them is pending.
    """
    new: dict[bytes, Record] = {}
    pending: dict[bytes, list[Record]] = {}

    def decide(parsed: RowRecords) -> RowDecision:
        reasons = parsed.row.reasons or tuple(
            reason for line in parsed.lines for reason in rejected.get(line.content, ())
        )
        reasons = reasons or tuple(reason for line in parsed.lines for reason in conflict(line))
        if reasons:
            return "quarantined", tuple(dict.fromkeys(reasons))
        fresh = [line for line in parsed.lines if line.identity not in new and index.find(line.identity) is None]
        if not fresh:
            return "duplicate", ()
        if parsed.row.interaction is None and not interaction_known(fresh[0].row):
            if is_last and (fresh[0].identity in pending or pending_index.find(fresh[0].identity)):
                return "duplicate", ()
            pending.setdefault(fresh[0].identity, []).append(fresh[0])
            return "held", ()
        new.update((line.identity, line) for line in fresh)
        return "accepted", ()

    def interaction_known(row: Stored) -> bool:
        identity = interaction_identity(row.interaction_id)
        return identity in new or index.find(identity) is not None

    def conflict(line: Record) -> Reasons:
        """Why `line` contradicts known rows; empty where it does not."""
        known = new.get(line.identity) or next(iter(pending.get(line.identity, ())), None)
        if known is not None:
            return () if known.content == line.content else (_difference(line.row, known.row),)
        for earlier in (index, pending_index):
            entry = earlier.find(line.identity)
            if entry is not None and entry.content != line.content:
                return (_difference(line.row, earlier.read(entry)),)
        return ()

    decisions = tuple(decide(parsed) for parsed in batch)
    return BatchResolution(decisions, tuple(new.values()), tuple(line for equal in pending.values() for line in equal))


def document_version(source: bytes) -> str:
    """The version of a document: the digest of its source."""
    return hashlib.sha256(source).hexdigest()


def resolve_documents(
    rows: Sequence[ParsedRow],
    current: Mapping[str, Document],
    is_known: Callable[[str, str], bool],
    refused: Mapping[str, Reasons],
) -> tuple[tuple[RowDecision, ...], dict[str, ParsedRow]]:
    """Decide on documents. Returns the decisions, in order, and the rows that win, by `doc_id`.

    `current` are the current documents; `is_known(doc_id, version)` tests whether a version was ever accepted;
    `refused` is by version.
    """
    versions = [document_version(row.raw) for row in rows]
    winners: dict[str, ParsedRow] = {}
    newest = dict(current)
    for row, version in zip(rows, versions, strict=True):
        document = row.document
        if document is None or version in refused:
            continue
        best = newest.setdefault(document.doc_id, document)
        if document.updated_at > best.updated_at:
            newest[document.doc_id] = document

    def decide(row: ParsedRow, version: str) -> RowDecision:
        document = row.document
        if document is None:
            return "quarantined", row.reasons
        if version in refused:
            return "quarantined", refused[version]
        doc_id, best = document.doc_id, newest[document.doc_id]
        if document == current.get(doc_id) or (doc_id in winners and winners[doc_id].raw == row.raw):
            return "duplicate", ()
        if document == best:
            winners[doc_id] = row
            return "accepted", ()
        if is_known(doc_id, version):
            return "duplicate", ()
        if document.updated_at < best.updated_at:
            return "quarantined", (_conflict("updated_at", f"a newer version of the document '{doc_id}' is known"),)
        message = f"other content of the document '{doc_id}' has the same date: write a newer one"
        return "quarantined", (_conflict("updated_at", message),)

    decisions = tuple(decide(row, version) for row, version in zip(rows, versions, strict=True))
    return decisions, winners


def _difference(row: Stored, known: Stored) -> Reason:
    differing = ", ".join(name for name in type(row).model_fields if getattr(row, name) != getattr(known, name))
    match row:
        case Interaction():
            one_line = " ".join(row.interaction_id.split())
            return _conflict("interaction_id", f"'{one_line}' is known with other content (differs in {differing})")
        case Thumb():
            message = f"this user's thumb of the same time is known with other content (differs in {differing})"
            return _conflict("thumb", message, ReasonKind.SAME_MOMENT)
        case Review():
            return _conflict("review", f"this reviewer's verdict of the same time is known (differs in {differing})")


def _conflict(field: str, message: str, kind: ReasonKind = ReasonKind.OTHER) -> Reason:
    return Reason(Code.FAILED_CHECK, field, message, kind)
