"""Classify the rows of a batch as new, duplicate, pending, or in conflict with existing rows; without side effects.

Notes:

* The first content of an identity wins, in order of arrival; different content is a conflict. Existing content with a
  new thumb or review beside it is new feedback.
* A thumb or review that comes before its interaction is pending, not rejected: the queue that carries thumbs is often
  faster than the one that carries answers.
* The newest version of a document wins, wherever it stands in the batch. A version that was accepted once and is
  outdated by now is a duplicate; one that was outdated before it came is rejected.
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
from abstain.data.store.record_keys import Record, StoredRow, make_interaction_identity, make_record
from abstain.ingest.parsing import ParsedRow

RowOutcome = Literal["accepted", "duplicate", "pending", "quarantined"]
RowDecision = tuple[RowOutcome, Reasons]


@dataclass(frozen=True)
class BatchResolution:
    """The decisions on a batch.

    Attributes:
        decisions: The outcome of each input row, in order.
        new: The new records.
        pending: The records whose interaction is not known yet.
    """

    decisions: tuple[RowDecision, ...]
    new: tuple[Record, ...]
    pending: tuple[Record, ...]


@dataclass(frozen=True)
class RowRecords:
    """An input row with its contents as they would be stored.

    Attributes:
        row: The input row.
        records: Its contents.
    """

    row: ParsedRow
    records: tuple[Record, ...]

    @classmethod
    def from_row(cls, row: ParsedRow) -> RowRecords:
        """Make the records of `row`. Raises `RuntimeError` for a document: documents come before rows."""
        if row.document is not None:
            raise RuntimeError(f"{row.source}: a document after rows: a source gives its documents first")
        return cls(row, tuple(make_record(part) for part in row.iter_contents() if not isinstance(part, Document)))


def resolve_duplicates(
    batch: Sequence[RowRecords],
    index: KeyIndex,
    pending_index: KeyIndex,
    rejected: Mapping[bytes, Reasons],
    *,
    is_last: bool,
) -> BatchResolution:
    """Classify each row as accepted, duplicate, pending or quarantined.

    Args:
        batch: Parsed rows.
        index: Rows that are stored already.
        pending_index: Stored thumbs and reviews whose interaction is not known yet.
        rejected: Content digest -> reasons of rows that failed validation.
        is_last: Whether no more interactions follow. If so, the first of equal pending rows stays pending and the
            others are duplicates; until then, each of them is pending.

    Returns:
        One decision per row, the new records, and the pending records.
    """
    new: dict[bytes, Record] = {}
    pending: dict[bytes, list[Record]] = {}

    def decide(parsed: RowRecords) -> RowDecision:
        reasons = parsed.row.reasons or tuple(
            reason for record in parsed.records for reason in rejected.get(record.content, ())
        )
        reasons = reasons or tuple(reason for record in parsed.records for reason in find_conflict(record))
        if reasons:
            return "quarantined", tuple(dict.fromkeys(reasons))
        fresh = [
            record for record in parsed.records if record.identity not in new and index.find(record.identity) is None
        ]
        if not fresh:
            return "duplicate", ()
        if parsed.row.interaction is None and not is_interaction_known(fresh[0].row):
            if is_last and (fresh[0].identity in pending or pending_index.find(fresh[0].identity)):
                return "duplicate", ()
            pending.setdefault(fresh[0].identity, []).append(fresh[0])
            return "pending", ()
        new.update((record.identity, record) for record in fresh)
        return "accepted", ()

    def is_interaction_known(row: StoredRow) -> bool:
        identity = make_interaction_identity(row.interaction_id)
        return identity in new or index.find(identity) is not None

    def find_conflict(record: Record) -> Reasons:
        """Return why `record` contradicts existing rows; empty if it does not."""
        existing = new.get(record.identity) or next(iter(pending.get(record.identity, ())), None)
        if existing is not None:
            return () if existing.content == record.content else (_describe_conflict(record.row, existing.row),)
        for stored_index in (index, pending_index):
            entry = stored_index.find(record.identity)
            if entry is not None and entry.content != record.content:
                return (_describe_conflict(record.row, stored_index.read_row(entry)),)
        return ()

    decisions = tuple(decide(parsed) for parsed in batch)
    return BatchResolution(
        decisions, tuple(new.values()), tuple(record for equal_records in pending.values() for record in equal_records)
    )


def compute_document_version(source: bytes) -> str:
    """Return the version of a document: the digest of its bytes `source`."""
    return hashlib.sha256(source).hexdigest()


def resolve_documents(
    rows: Sequence[ParsedRow],
    current: Mapping[str, Document],
    is_known: Callable[[str, str], bool],
    rejected: Mapping[str, Reasons],
) -> tuple[tuple[RowDecision, ...], dict[str, ParsedRow]]:
    """Decide which documents of a batch become current.

    Args:
        rows: Documents, or the reasons why they are invalid.
        current: The current documents by `doc_id`.
        is_known: Tests whether a version of a document, by `doc_id` and version, was ever accepted.
        rejected: Version -> reasons of documents that failed validation.

    Returns:
        The decisions, in order, and the winning rows by `doc_id`.
    """
    versions = [compute_document_version(row.raw) for row in rows]
    winners: dict[str, ParsedRow] = {}
    newest = dict(current)
    for row, version in zip(rows, versions, strict=True):
        document = row.document
        if document is None or version in rejected:
            continue
        best = newest.setdefault(document.doc_id, document)
        if document.updated_at > best.updated_at:
            newest[document.doc_id] = document

    def decide(row: ParsedRow, version: str) -> RowDecision:
        document = row.document
        if document is None:
            return "quarantined", row.reasons
        if version in rejected:
            return "quarantined", rejected[version]
        doc_id, best = document.doc_id, newest[document.doc_id]
        if document == current.get(doc_id) or (doc_id in winners and winners[doc_id].raw == row.raw):
            return "duplicate", ()
        if document == best:
            winners[doc_id] = row
            return "accepted", ()
        if is_known(doc_id, version):
            return "duplicate", ()
        if document.updated_at < best.updated_at:
            return "quarantined", (
                _make_conflict("updated_at", f"a newer version of the document '{doc_id}' is known"),
            )
        message = f"other content of the document '{doc_id}' has the same date: write a newer one"
        return "quarantined", (_make_conflict("updated_at", message),)

    decisions = tuple(decide(row, version) for row, version in zip(rows, versions, strict=True))
    return decisions, winners


def _describe_conflict(row: StoredRow, existing: StoredRow) -> Reason:
    differing_fields = ", ".join(
        name for name in type(row).model_fields if getattr(row, name) != getattr(existing, name)
    )
    match row:
        case Interaction():
            one_line = " ".join(row.interaction_id.split())
            return _make_conflict(
                "interaction_id", f"'{one_line}' is known with other content (differs in {differing_fields})"
            )
        case Thumb():
            message = f"this user's thumb of the same time is known with other content (differs in {differing_fields})"
            return _make_conflict("thumb", message, ReasonKind.SAME_MOMENT)
        case Review():
            return _make_conflict(
                "review", f"this reviewer's review of the same time is known (differs in {differing_fields})"
            )


def _make_conflict(field: str, message: str, kind: ReasonKind = ReasonKind.OTHER) -> Reason:
    return Reason(Code.FAILED_CHECK, field, message, kind)
