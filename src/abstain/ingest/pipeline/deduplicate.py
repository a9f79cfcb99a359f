"""Classify the rows of a batch as new, duplicate, pending, or in conflict with existing rows; without side effects.

Notes:

* The first content of an identity wins, in order of arrival; different content is a conflict, unless the batch may
  replace what is stored. Existing content with a new thumb or review beside it is new feedback, and with a part that
  it lacked (`ADDABLE_PARTS`) it completes the stored interaction; without a part that is there it is a duplicate.
* A thumb or review that comes before its interaction is pending, not rejected: the queue that carries thumbs is often
  faster than the one that carries answers.
* The newest version of a document wins, wherever it stands in the batch. A version that was accepted once and is
  outdated by now is a duplicate; one that was outdated before it came is rejected. Of one date, other content is a
  conflict, unless the current document has got another product or other entitlements and is not in the batch itself.
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

ADDABLE_PARTS = ("contexts", "writer_scores", "token_log_probs")
"""The parts of an interaction that a later row may add: a pipeline often computes them after the answer."""


@dataclass(frozen=True)
class BatchResolution:
    """The decisions on a batch.

    Attributes:
        decisions: The outcome of each input row, in order.
        new: The new records.
        pending: The records whose interaction is not known yet.
        revised: The records that take the place of stored ones, because they replace or complete them.
        replaced: The records, stored or pending, whose content replaces another one.
        n_completed: Number of rows that add a part to an interaction.
    """

    decisions: tuple[RowDecision, ...]
    new: tuple[Record, ...]
    pending: tuple[Record, ...]
    revised: tuple[Record, ...]
    replaced: tuple[Record, ...]
    n_completed: int


@dataclass(frozen=True)
class RecordComparison:
    """What a record means for the stored data.

    Attributes:
        change: What it changes; "new" also for one that was pending.
        record: The record as it would be stored.
        reasons: Why it contradicts an existing row; empty if it does not.
    """

    change: Literal["none", "new", "completed", "replaced"]
    record: Record
    reasons: Reasons = ()


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
    can_replace: bool = False,
) -> BatchResolution:
    """Classify each row as accepted, duplicate, pending or quarantined.

    Args:
        batch: Parsed rows.
        index: Rows that are stored already.
        pending_index: Stored thumbs and reviews whose interaction is not known yet.
        rejected: Content digest -> reasons of rows that failed validation.
        is_last: Whether no more interactions follow. If so, the first of equal pending rows stays pending and the
            others are duplicates; until then, each of them is pending.
        can_replace: Whether a row takes the place of a stored one with other content, instead of being a conflict.

    Returns:
        One decision per row, and the records to store.
    """
    new: dict[bytes, Record] = {}
    revised: dict[bytes, Record] = {}
    pending: dict[bytes, list[Record]] = {}
    replaced: dict[bytes, Record] = {}
    n_completed = 0

    def decide(parsed: RowRecords) -> RowDecision:
        nonlocal n_completed
        comparisons = [compare(record) for record in parsed.records]
        reasons = parsed.row.reasons or tuple(
            reason
            for comparison in comparisons
            for reason in (*rejected.get(comparison.record.content, ()), *comparison.reasons)
        )
        if reasons:
            return "quarantined", tuple(dict.fromkeys(reasons))
        changes = [comparison for comparison in comparisons if comparison.change != "none"]
        if not changes:
            return "duplicate", ()
        first = changes[0].record
        replaced.update((change.record.identity, change.record) for change in changes if change.change == "replaced")
        if parsed.row.interaction is None and not is_interaction_known(first.row):
            if is_last and (first.identity in pending or pending_index.find(first.identity)):
                return "duplicate", ()
            pending.setdefault(first.identity, []).append(first)
            return "pending", ()
        for change in changes:
            identity = change.record.identity
            is_stored = identity not in new and index.find(identity) is not None
            (revised if is_stored else new)[identity] = change.record
            n_completed += change.change == "completed"
        return "accepted", ()

    def is_interaction_known(row: StoredRow) -> bool:
        identity = make_interaction_identity(row.interaction_id)
        return identity in new or index.find(identity) is not None

    def compare(record: Record) -> RecordComparison:
        """Compare `record` with the existing row of its identity."""
        identity = record.identity
        of_batch = new.get(identity) or revised.get(identity) or next(iter(pending.get(identity, ())), None)
        if of_batch is not None:
            is_pending = identity in pending
            return _compare(record, of_batch.content, of_batch.row, is_pending=is_pending, can_replace=False)
        for stored_index in (index, pending_index):
            entry = stored_index.find(identity)
            if entry is None:
                continue
            is_pending = stored_index is pending_index
            if entry.content == record.content:
                return RecordComparison("new" if is_pending else "none", record)
            is_replaceable = can_replace and stored_index.is_stored(entry)
            return _compare(
                record, entry.content, stored_index.read_row(entry), is_pending=is_pending, can_replace=is_replaceable
            )
        return RecordComparison("new", record)

    decisions = tuple(decide(parsed) for parsed in batch)
    return BatchResolution(
        decisions,
        tuple(new.values()),
        tuple(record for equal_records in pending.values() for record in equal_records),
        tuple(revised.values()),
        tuple(replaced.values()),
        n_completed,
    )


def complete_row(row: StoredRow, existing: StoredRow) -> StoredRow | None:
    """Add to a stored interaction the `ADDABLE_PARTS` that it lacks.

    Args:
        row: A row with the same identity.
        existing: The stored row.

    Returns:
        The stored row with every part that either of them has; None if they differ in anything else.
    """
    if not (isinstance(row, Interaction) and isinstance(existing, Interaction)):
        return None
    added = {name: getattr(row, name) for name in ADDABLE_PARTS if not getattr(existing, name)}
    completed = existing.model_copy(update=added)
    lacking = {name: getattr(completed, name) for name in ADDABLE_PARTS if not getattr(row, name)}
    return completed if row.model_copy(update=lacking) == completed else None


def _compare(
    record: Record, existing_content: bytes, existing: StoredRow, *, is_pending: bool, can_replace: bool
) -> RecordComparison:
    """Compare `record` with the `existing` row of its identity; a pending one is stored only at the end."""
    if existing_content == record.content:
        return RecordComparison("new" if is_pending else "none", record)
    completed = complete_row(record.row, existing)
    if completed is not None and (not can_replace or completed == record.row):
        return RecordComparison("none" if completed == existing else "completed", make_record(completed))
    if can_replace:
        return RecordComparison("replaced", record)
    return RecordComparison("none", record, (_describe_conflict(record.row, existing),))


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
    unchanged = {
        row.document.doc_id for row in rows if row.document and _is_same(row, current.get(row.document.doc_id))
    }
    for row, version in zip(rows, versions, strict=True):
        document = row.document
        if document is None or version in rejected:
            continue
        best = newest.setdefault(document.doc_id, document)
        is_reclassified = document.doc_id not in unchanged and _is_reclassified(document, current.get(document.doc_id))
        if document.updated_at > best.updated_at or is_reclassified:
            newest[document.doc_id] = document

    def decide(row: ParsedRow, version: str) -> RowDecision:
        document = row.document
        if document is None:
            return "quarantined", row.reasons
        if version in rejected:
            return "quarantined", rejected[version]
        doc_id, best = document.doc_id, newest[document.doc_id]
        if _is_same(row, current.get(doc_id)) or (doc_id in winners and winners[doc_id].raw == row.raw):
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


def _is_same(row: ParsedRow, current: Document | None) -> bool:
    """Whether a document is the current one; a time that only the file system or git tells makes no difference."""
    document = row.document
    if document is None or current is None or row.has_own_time:
        return document == current
    return document.model_copy(update={"updated_at": current.updated_at}) == current


def _is_reclassified(document: Document, current: Document | None) -> bool:
    """Whether only product or entitlements of the current document have changed, by a rule and not at a new time."""
    if current is None or document == current:
        return False
    return document.model_copy(update=current.model_dump(include={"product", "entitlements"})) == current


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
