"""Stage one batch: deduplicate documents and rows, validate what is new, write it beside data/.

Blocks of `BLOCK_ROWS` rows, fewer of long ones, are in memory one at a time; a `KeyIndex` has the keys of all other
rows. Thumbs and reviews whose interaction is not known are set aside, and decided on at the end, together with those of
earlier batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from abstain.core.codes import Code
from abstain.core.contracts import Chunk, Document, Interaction, Review, get_document_id
from abstain.core.errors import AbstainError
from abstain.core.json_lines import read_lines, to_json_lines
from abstain.core.reasons import Reason, Reasons
from abstain.data.store.dataset import DataStore, DocumentVersion, StagedBatch, get_document_suffix
from abstain.data.store.key_index import BLOCK_ROWS, IndexedWriter, KeyIndex
from abstain.data.store.profile import Profiler
from abstain.data.store.record_keys import TABLES, Record, interaction_identity
from abstain.data.validation.checks import ExistingData, ValidatedRows
from abstain.data.validation.runner import ValidationResult
from abstain.ingest.parsing import ParsedRow, reparse
from abstain.ingest.pipeline.deduplicate import (
    RowDecision,
    RowRecords,
    document_version,
    resolve_documents,
    resolve_duplicates,
)
from abstain.ingest.pipeline.report import without_particulars
from abstain.ingest.privacy.policy import Privacy
from abstain.ingest.quarantine import (
    Quarantine,
    QuarantinedRow,
    QuarantineWriter,
    compute_row_digest,
    is_awaiting_documents,
    is_user_caused,
)
from abstain.knowledge.documents.reader import read_documents
from abstain.knowledge.documents.versioning import update_chunks

T = TypeVar("T")
Validate = Callable[[ValidatedRows, ExistingData], ValidationResult]

BLOCK_BYTES = 64 * 1024 * 1024
"""Rows that are in memory together have about as many bytes at most: 20,000 of 3 kB each."""

ERASED_USER_ROW = ParsedRow(
    "", 0, b"", reasons=(Reason(Code.ERASED_USER, "user", "erasure was requested, so the row was not kept"),)
)
"""The record of a row from an erased user: only that it came."""


class IngestPipeline:
    """Takes documents, then rows, then pending rows; counts the outcome of each."""

    def __init__(
        self, store: DataStore, staging: StagedBatch, privacy: Privacy, check: Validate, now: datetime
    ) -> None:
        self._store, self._staging, self._privacy, self._check, self._now = store, staging, privacy, check, now
        self._index = store.build_key_index()
        self._held = KeyIndex()
        for table, path in store.pending_files().items():
            self._held.add_file(table, path)
        self._documents = {document.doc_id: document for document in read_documents(store.document_files())}
        self._versions = list(store.iter_document_versions())
        self._chunks: dict[str, tuple[Chunk, ...]] = {}
        for chunk in store.chunks():
            self._chunks[chunk.doc_id] = (*self._chunks.get(chunk.doc_id, ()), chunk)
        self._changed: dict[str, ParsedRow | None] = {}
        forgotten = store.erased_users()
        self._forgotten, self._gone = frozenset(forgotten.users), frozenset(forgotten.interactions)
        self.quarantine = Quarantine(store.folder)
        self._writer = QuarantineWriter(staging)
        self._pending = self._pending_files(".pending")
        self._cleared: set[str] = set()
        self.read = 0
        self.outcomes: Counter[str] = Counter()
        self.joined: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.newly_refused = 0
        self.weighted = 0
        self.waiting = 0
        self.refused_before = ""
        self.results: list[ValidationResult] = []
        self.profiler = Profiler()

    # Documents

    def add_documents(self, rows: Sequence[ParsedRow]) -> None:
        """Deduplicate and check `rows`, which hold documents or the reasons why they are invalid."""
        self.read += len(rows)
        known = {(version.doc_id, version.version) for version in self._versions if version.state == "current"}
        refused: dict[str, Reasons] = {}
        is_checked = False
        while True:  # each turn refuses at least one version more, so it ends
            decisions, winners = resolve_documents(
                rows, self._documents, lambda doc_id, version: (doc_id, version) in known, refused
            )
            revised, uncut = self._revise_all(winners)
            if uncut:
                refused |= uncut
                continue
            if not revised:
                break
            documents = [row.document for row in winners.values() if row.document]
            live = [chunk for chunks in revised.values() for chunk in chunks if chunk.removed_at is None]
            result = self._check(ValidatedRows(documents=documents, chunks=live), self._known(also=revised))
            if not is_checked:
                self.results.append(result)
            is_checked = True
            failing = {_document_of(key): reasons for key, reasons in result.reasons.items()}
            if not failing:
                break
            refused |= {document_version(winners[doc_id].raw): reasons for doc_id, reasons in failing.items()}
        for doc_id, row in winners.items():
            self._stage_document(doc_id, row, revised[doc_id])
        for row, decision in zip(rows, decisions, strict=True):
            self._count(row, decision, self.outcomes)

    def remove_documents(self, doc_ids: Iterable[str]) -> None:
        """Documents that vanished from their source: their chunks become tombstones."""
        for doc_id in sorted(self._documents.keys() & set(doc_ids)):
            self._stage_document(doc_id, None, self._rechunk(doc_id, None))

    def _rechunk(self, doc_id: str, document: Document | None) -> tuple[Chunk, ...]:
        return update_chunks(self._chunks.get(doc_id, ()), self._documents.get(doc_id), document, self._now).chunks

    def _revise_all(self, rows: Mapping[str, ParsedRow]) -> tuple[dict[str, tuple[Chunk, ...]], dict[str, Reasons]]:
        """The chunks by `doc_id`, and why others of these documents cannot be cut into chunks, by version."""
        revised: dict[str, tuple[Chunk, ...]] = {}
        uncut: dict[str, Reasons] = {}
        for doc_id, row in rows.items():
            try:
                revised[doc_id] = self._rechunk(doc_id, row.document)
            except AbstainError as error:
                uncut[document_version(row.raw)] = (Reason(Code.FAILED_CHECK, "document", str(error)),)
        return revised, uncut

    def _stage_document(self, doc_id: str, row: ParsedRow | None, chunks: tuple[Chunk, ...]) -> None:
        self._chunks[doc_id], self._changed[doc_id] = chunks, row
        before = self._documents.pop(doc_id, None)
        if row is not None and row.document is not None:
            self._documents[doc_id] = row.document
            current = row.document.updated_at
            self._versions.append(
                DocumentVersion(doc_id=doc_id, version=document_version(row.raw), updated_at=current, state="current")
            )
        elif before is not None:
            self._versions.append(
                DocumentVersion(doc_id=doc_id, version="removed", updated_at=self._now, state="removed")
            )

    def _known(self, also: Iterable[str] = ()) -> ExistingData:
        ever = {version.doc_id for version in self._versions}.union(also, self._documents)
        live = {c.chunk_id for chunks in self._chunks.values() for c in chunks if c.removed_at is None}
        return ExistingData(self._index, ever, live)

    # Rows

    def add_rows(self, rows: Iterable[ParsedRow]) -> None:
        """Deduplicate and check `rows`, block by block."""
        known = self._known()
        for block in iter_blocks(rows, lambda row: len(row.raw)):
            self.read += len(block)
            self._resolve_rows([RowRecords.from_row(self._redact_row(row)) for row in block], known, self.outcomes)

    def retry_rows_awaiting_documents(self) -> None:
        """Decide again on rows that wait for documents, where this batch has brought some."""
        if self.new_documents:
            known = self._known()
            for block in iter_blocks(
                (row.reparse() for row in self.quarantine.iter_rows_awaiting_documents()), lambda row: len(row.raw)
            ):
                self._resolve_rows([RowRecords.from_row(self._redact_row(row)) for row in block], known, self.joined)

    def resolve_pending(self) -> None:
        """Decide on pending rows, of this batch or earlier ones, now that every interaction is known."""
        known, before, set_aside = self._known(), self._store.pending_files(), self._pending
        self._held = KeyIndex()  # so that a row decided on below is no duplicate of itself
        self._pending = self._pending_files("held")
        for table, rows in set_aside.items():
            rows.close()
            for path, outcomes in ((before.get(table), self.joined), (rows.path, self.outcomes)):
                for block in iter_blocks((text for _, text in read_lines(path)) if path else (), len):
                    parsed = [RowRecords.from_row(reparse(text, "held", 0)) for text in block]
                    self._resolve_rows(parsed, known, outcomes, is_last=True)
        for left in self._pending.values():
            left.close()
            if not left.rows:
                left.path.unlink()
                self._staging.stage_deletion(self._store.folder / "held" / left.path.name)

    def _pending_files(self, folder: str) -> dict[str, IndexedWriter]:
        path = self._staging.folder / folder
        return {table: IndexedWriter(path / f"{table}.jsonl", table, self._held) for table in ("feedback", "reviews")}

    def _resolve_rows(
        self, parsed: Sequence[RowRecords], known: ExistingData, outcomes: Counter[str], *, is_last: bool = False
    ) -> None:
        """Decide, without the rows that fail validation; stage what is new, and count in `outcomes`."""
        refused: dict[bytes, Reasons] = {}
        while True:  # each turn refuses at least one content more, so it ends
            resolution = resolve_duplicates(parsed, self._index, self._held, refused, is_last=is_last)
            if not resolution.new:
                break
            result = self._check(_rows(resolution.new), known)
            if not refused:  # the one that has seen all rows, those that fail among them
                self.results.append(result)
            failing = {line.content: result.reasons[line.key] for line in resolution.new if line.key in result.reasons}
            if not failing:
                break
            refused |= failing
        self._staging.append(resolution.new, self._index)
        sampled = {line.content for one in parsed if one.row.is_sampled for line in one.lines}
        for line in resolution.new:
            if isinstance(line.row, Interaction):
                self.profiler.add(line)
            is_weighted = isinstance(line.row, Review) and line.row.inclusion_probability is not None
            self.weighted += is_weighted and line.content not in sampled
        for line in resolution.pending:
            self._pending[TABLES[type(line.row)]].append(line)
        for rows in self._pending.values():
            rows.flush()
        for one, decision in zip(parsed, resolution.decisions, strict=True):
            # A row that is set aside is counted at the end, and one of an earlier batch that stays pending was counted.
            if decision[0] != "held" or (is_last and outcomes is self.outcomes):
                self._count(one.row, decision, outcomes)

    def _redact_row(self, row: ParsedRow) -> ParsedRow:
        """`row` without content that must not be kept: personal data, and all content from an erased user."""
        admitted = self._privacy.apply(row)
        part = admitted.interaction or admitted.feedback or admitted.review
        is_gone = part is not None and interaction_identity(part.interaction_id).hex() in self._gone
        is_theirs = admitted.feedback is not None and admitted.feedback.user in self._forgotten
        if is_gone or (is_theirs and admitted.interaction is None):
            return replace(ERASED_USER_ROW, source=row.source, line=row.line)
        return replace(admitted, feedback=None) if is_theirs else admitted

    def _count(self, row: ParsedRow, decision: RowDecision, outcomes: Counter[str]) -> None:
        """Count the outcome of a row, and keep it if it is refused. Only rows of this batch count towards the limit."""
        outcome, reasons = decision
        waits = outcome == "quarantined" and is_awaiting_documents(reasons)
        outcomes["held" if waits else outcome] += 1
        file = self.quarantine.file_of(row)
        if outcome != "quarantined":
            if file:
                self._cleared.add(compute_row_digest(row))
            return
        redacted = tuple(map(self._privacy.redact_reason, reasons))
        if waits:
            self.waiting += outcomes is self.outcomes
        else:
            self.reasons.update(without_particulars(redacted))
        if reasons == ERASED_USER_ROW.reasons:
            return
        is_new = not waits and not is_user_caused(reasons) and not self.quarantine.is_reported(row)
        if outcomes is self.outcomes and is_new:
            self.newly_refused += 1
            self.refused_before = self.refused_before or (file.stem if file else "")
        if file is None and not self.quarantine.is_discarded(row):
            self._writer.add(QuarantinedRow.from_row(row, redacted))

    # The end

    @property
    def new_documents(self) -> int:
        """Documents that are new, or have a new version."""
        return sum(row is not None for row in self._changed.values())

    def stage(self) -> None:
        """Write everything other than row parts: documents, chunks, refused rows."""
        self.quarantined_in = self._writer.close()
        for old in self._store.document_files() if self._changed else ():
            row = self._changed.get(old.stem)
            if old.stem in self._changed and (row is None or get_document_suffix(row.source) != old.suffix):
                self._staging.stage_deletion(old)
        for doc_id, row in self._changed.items():
            if row is not None:
                self._staging.stage_file(f"documents/{doc_id}{get_document_suffix(row.source)}", row.raw)
        if self._changed:
            self._staging.stage_file("documents.jsonl", to_json_lines(self._versions))
            chunks = (chunk for doc_id in sorted(self._chunks) for chunk in self._chunks[doc_id])
            self._staging.stage_file("chunks.jsonl", to_json_lines(chunks))

    def clear_accepted_from_quarantine(self, sources: Sequence[str]) -> None:
        """Remove accepted rows from the quarantine; unblock the `sources` that earlier batches blocked."""
        self.quarantine.remove_accepted(self._cleared, self._staging)
        self.quarantine.unblock(sources)
        self.quarantine.stage_blocking(self._staging)


def iter_blocks(rows: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """`rows` in lists of at most `BLOCK_ROWS`, each ended by the row whose bytes, by `size`, make it `BLOCK_BYTES`."""
    block: list[T] = []
    held = 0
    for row in rows:
        block.append(row)
        held += size(row)
        if len(block) == BLOCK_ROWS or held >= BLOCK_BYTES:
            yield block
            block, held = [], 0
    if block:
        yield block


def _rows(lines: Sequence[Record]) -> ValidatedRows:
    interactions, feedback, reviews = ([line for line in lines if type(line.row) is contract] for contract in TABLES)
    return ValidatedRows(interactions, feedback, reviews)


def _document_of(key: str) -> str:
    """The document that a failing `documents/...` or `chunks/...` belongs to."""
    table, _, name = key.partition("/")
    return name if table == "documents" else get_document_id(name)
