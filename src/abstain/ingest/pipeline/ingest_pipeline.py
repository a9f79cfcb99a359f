"""Stage one batch: deduplicate documents and rows, validate new ones, and write them beside data/.

Blocks of `BLOCK_ROWS` rows, fewer if the rows are long, are in memory one at a time; a `KeyIndex` has the keys of all
other rows. Thumbs and reviews whose interaction is not known are set aside, and decided on at the end, together with
those of earlier batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from abstain.core.codes import Code
from abstain.core.contracts import Chunk, Document, Interaction, Review, Thumb, get_document_id
from abstain.core.errors import AbstainError
from abstain.core.json_lines import read_lines, to_json_lines
from abstain.core.message_text import cut_reasoning
from abstain.core.reasons import Reason, Reasons
from abstain.core.text import ReasoningMarker
from abstain.data.store.dataset import DataStore, DocumentVersion, StagedBatch
from abstain.data.store.key_index import BLOCK_ROWS, IndexedWriter, KeyIndex
from abstain.data.store.profile import Profiler
from abstain.data.store.record_keys import TABLES, Record, make_interaction_identity, make_record
from abstain.data.validation.checks import ExistingData, ValidatedRows
from abstain.data.validation.runner import ValidationResult
from abstain.ingest.parsing import ParsedRow, make_reason, reparse
from abstain.ingest.pipeline.deduplicate import (
    RowDecision,
    RowRecords,
    compute_document_version,
    resolve_documents,
    resolve_duplicates,
)
from abstain.ingest.privacy.policy import Privacy
from abstain.ingest.quarantine import (
    Quarantine,
    QuarantinedRow,
    QuarantineWriter,
    compute_row_digest,
    is_awaiting_documents,
    is_user_caused,
)
from abstain.ingest.report import ReplacedRow, generalize_reasons
from abstain.knowledge.documents.reader import read_documents
from abstain.knowledge.documents.versioning import update_chunks

T = TypeVar("T")
Validate = Callable[[ValidatedRows, ExistingData], ValidationResult]

MAX_BLOCK_BYTES = 64 * 1024 * 1024
"""Approximate maximum size of the rows that are in memory together: 20,000 rows of 3 kB each."""

ERASED_USER_ROW = ParsedRow(
    "", 0, b"", reasons=(Reason(Code.ERASED_USER, "user", "erasure was requested, so the row was not kept"),)
)
"""The record of a row from an erased user: it tells only that such a row came."""


class IngestPipeline:
    """Decides on documents, then rows, then pending rows of one batch, and counts the outcomes.

    Args:
        store: The data folder.
        staging: The batch that is being staged.
        privacy: Redaction rules.
        validate: Validates new rows against existing data.
        now: Time of the ingest.
        reasoning: How models mark their reasoning, which is cut out of answers.
        can_replace: Whether input rows take the place of stored ones with other content.

    Attributes:
        n_read: Number of input rows.
        outcomes: Outcome -> number of input rows.
        earlier_outcomes: Outcome -> number of rows of earlier batches that were pending or awaited documents.
        reasons: Reason -> number of quarantined rows.
        newly_rejected: Number of quarantined rows that count towards the failure limit.
        weighted_reviews: Number of reviews with an inclusion probability of their source.
        awaiting_documents: Number of input rows that await documents.
        earlier_file_id: Id of a quarantine file that holds a rejected row already; empty if there is none.
        validation_results: Results of the validations.
        profiler: Profile of the new interactions.
        cut_answers: Number of rows whose answer had reasoning, which was cut out.
        replaced: By identity, the stored rows that are replaced by other content.
        completed: Number of rows that add a part to an interaction.
    """

    def __init__(
        self,
        store: DataStore,
        staging: StagedBatch,
        privacy: Privacy,
        validate: Validate,
        now: datetime,
        *,
        reasoning: Collection[ReasoningMarker] = (),
        can_replace: bool = False,
    ) -> None:
        self._store, self._staging, self._privacy, self._validate, self._now = store, staging, privacy, validate, now
        self._reasoning, self._can_replace = reasoning, can_replace
        self._index = store.build_key_index()
        self._pending_index = KeyIndex()
        for table, path in store.list_pending_files().items():
            self._pending_index.add_file(table, path)
        self._documents = {document.doc_id: document for document in read_documents(store.list_document_files())}
        self._versions = list(store.iter_document_versions())
        self._chunks: dict[str, tuple[Chunk, ...]] = {}
        for chunk in store.iter_chunks():
            self._chunks[chunk.doc_id] = (*self._chunks.get(chunk.doc_id, ()), chunk)
        self._changed_documents: dict[str, ParsedRow | None] = {}
        erased = store.read_erased_users()
        self._erased_users, self._erased_interactions = frozenset(erased.users), frozenset(erased.interactions)
        self.quarantine = Quarantine(store.folder)
        self._quarantine_writer = QuarantineWriter(staging)
        self._pending_writers = self._open_pending_writers(".pending")
        self._accepted_digests: set[str] = set()
        self.n_read = 0
        self.outcomes: Counter[str] = Counter()
        self.earlier_outcomes: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.newly_rejected = 0
        self.weighted_reviews = 0
        self.awaiting_documents = 0
        self.earlier_file_id = ""
        self.validation_results: list[ValidationResult] = []
        self.profiler = Profiler()
        self.cut_answers = 0
        self.replaced: dict[bytes, ReplacedRow] = {}
        self.completed = 0

    # Documents

    def add_documents(self, rows: Sequence[ParsedRow]) -> None:
        """Deduplicate and validate `rows`, which hold documents or the reasons why these are invalid."""
        self.n_read += len(rows)
        current_versions = {
            (version.doc_id, version.version) for version in self._versions if version.state == "current"
        }
        rejected: dict[str, Reasons] = {}
        is_checked = False
        while True:  # each turn rejects at least one version more, so it ends
            decisions, winners = resolve_documents(
                rows, self._documents, lambda doc_id, version: (doc_id, version) in current_versions, rejected
            )
            chunks_by_doc_id, failures = self._rechunk_all(winners)
            if failures:
                rejected |= failures
                continue
            if not chunks_by_doc_id:
                break
            documents = [row.document for row in winners.values() if row.document]
            live_chunks = [
                chunk for chunks in chunks_by_doc_id.values() for chunk in chunks if chunk.removed_at is None
            ]
            result = self._validate(
                ValidatedRows(documents=documents, chunks=live_chunks),
                self._make_existing_data(added_doc_ids=chunks_by_doc_id),
            )
            if not is_checked:
                self.validation_results.append(result)
            is_checked = True
            reasons_by_doc_id = {_get_document_id(key): reasons for key, reasons in result.reasons.items()}
            if not reasons_by_doc_id:
                break
            rejected |= {
                compute_document_version(winners[doc_id].raw): reasons for doc_id, reasons in reasons_by_doc_id.items()
            }
        for doc_id, row in winners.items():
            self._stage_document(doc_id, row, chunks_by_doc_id[doc_id])
        for row, decision in zip(rows, decisions, strict=True):
            self._count(row, decision, self.outcomes)

    def remove_documents(self, doc_ids: Iterable[str]) -> None:
        """Remove documents that are gone from their source: their chunks become tombstones.

        Args:
            doc_ids: Ids of documents; unknown ones are ignored.
        """
        for doc_id in sorted(self._documents.keys() & set(doc_ids)):
            self._stage_document(doc_id, None, self._rechunk(doc_id, None))

    def _rechunk(self, doc_id: str, document: Document | None) -> tuple[Chunk, ...]:
        return update_chunks(self._chunks.get(doc_id, ()), self._documents.get(doc_id), document, self._now)

    def _rechunk_all(self, rows: Mapping[str, ParsedRow]) -> tuple[dict[str, tuple[Chunk, ...]], dict[str, Reasons]]:
        """Return the chunks by `doc_id`, and by version the reasons why other documents cannot be cut into chunks."""
        chunks_by_doc_id: dict[str, tuple[Chunk, ...]] = {}
        failures: dict[str, Reasons] = {}
        for doc_id, row in rows.items():
            try:
                chunks_by_doc_id[doc_id] = self._rechunk(doc_id, row.document)
            except AbstainError as error:
                failures[compute_document_version(row.raw)] = (Reason(Code.FAILED_CHECK, "document", str(error)),)
        return chunks_by_doc_id, failures

    def _stage_document(self, doc_id: str, row: ParsedRow | None, chunks: tuple[Chunk, ...]) -> None:
        self._chunks[doc_id], self._changed_documents[doc_id] = chunks, row
        previous = self._documents.pop(doc_id, None)
        if row is not None and row.document is not None:
            self._documents[doc_id] = row.document
            current = row.document.updated_at
            self._versions.append(
                DocumentVersion(
                    doc_id=doc_id, version=compute_document_version(row.raw), updated_at=current, state="current"
                )
            )
        elif previous is not None:
            self._versions.append(
                DocumentVersion(doc_id=doc_id, version="removed", updated_at=self._now, state="removed")
            )

    def _make_existing_data(self, added_doc_ids: Iterable[str] = ()) -> ExistingData:
        doc_ids = {version.doc_id for version in self._versions}.union(added_doc_ids, self._documents)
        chunk_ids = {chunk.chunk_id for chunks in self._chunks.values() for chunk in chunks if chunk.removed_at is None}
        return ExistingData(self._index, doc_ids, chunk_ids)

    # Rows

    def add_rows(self, rows: Iterable[ParsedRow]) -> None:
        """Deduplicate and validate `rows`, block by block."""
        existing = self._make_existing_data()
        for block in iter_blocks(rows, lambda row: len(row.raw)):
            self.n_read += len(block)
            self._resolve_rows([RowRecords.from_row(self._redact_row(row)) for row in block], existing, self.outcomes)

    def retry_rows_awaiting_documents(self) -> None:
        """Decide again on rows that await documents, if this batch has brought documents."""
        if self.new_documents:
            existing = self._make_existing_data()
            for block in iter_blocks(
                (row.reparse() for row in self.quarantine.iter_rows_awaiting_documents()), lambda row: len(row.raw)
            ):
                self._resolve_rows(
                    [RowRecords.from_row(self._redact_row(row)) for row in block], existing, self.earlier_outcomes
                )

    def resolve_pending(self) -> None:
        """Decide on pending rows, of this batch or earlier ones, now that every interaction is known."""
        existing, earlier_files, batch_writers = (
            self._make_existing_data(),
            self._store.list_pending_files(),
            self._pending_writers,
        )
        self._pending_index = KeyIndex()  # so that a row decided on below is no duplicate of itself
        self._pending_writers = self._open_pending_writers("pending")
        for table, batch_writer in batch_writers.items():
            batch_writer.close()
            files = [(earlier_files.get(table), self.earlier_outcomes), (batch_writer.path, self.outcomes)]
            # Only a row that passes replaces an earlier one, so those of a batch that replaces come first.
            for path, outcomes in reversed(files) if self._can_replace else files:
                for block in iter_blocks((text for _, text in read_lines(path)) if path else (), len):
                    parsed = [RowRecords.from_row(reparse(text, "pending", 0)) for text in block]
                    if outcomes is self.earlier_outcomes:
                        parsed = [entry for entry in parsed if not self._is_replaced(entry.records[0])]
                    self._resolve_rows(parsed, existing, outcomes, is_last=True)
        for writer in self._pending_writers.values():
            writer.close()
            if not writer.rows:
                writer.path.unlink()
                self._staging.stage_deletion(self._store.folder / "pending" / writer.path.name)

    def _is_replaced(self, record: Record) -> bool:
        """Return whether a row of this batch has taken the place of an earlier pending one."""
        if not (self._index.find(record.identity) or self._pending_index.find(record.identity)):
            self.replaced.pop(record.identity, None)  # what was to replace it has failed
        return record.identity in self.replaced

    def _open_pending_writers(self, folder: str) -> dict[str, IndexedWriter]:
        path = self._staging.folder / folder
        return {
            table: IndexedWriter(path / f"{table}.jsonl", table, self._pending_index)
            for table in ("feedback", "reviews")
        }

    def _resolve_rows(
        self, batch: Sequence[RowRecords], existing: ExistingData, outcomes: Counter[str], *, is_last: bool = False
    ) -> None:
        """Decide on `batch` without the rows that fail validation, stage new rows, and count the outcomes."""
        rejected: dict[bytes, Reasons] = {}
        while True:  # each turn rejects at least one content more, so it ends
            resolution = resolve_duplicates(
                batch,
                self._index,
                self._pending_index,
                rejected,
                is_last=is_last,
                can_replace=self._can_replace and outcomes is self.outcomes,
            )
            checked = (*resolution.new, *resolution.revised)
            revised = frozenset(record.identity for record in resolution.revised)
            if not checked:
                break
            attached = [
                record for record in self._read_moved_feedback(resolution.revised) if record.identity not in revised
            ]
            result = self._validate(
                _group_by_contract((*checked, *attached)),
                replace(existing, revised=revised.union(record.identity for record in attached)),
            )
            if not rejected:  # the first result, of all rows including those that fail
                self.validation_results.append(result)
            failures = {
                record.content: result.reasons[record.key] for record in checked if record.key in result.reasons
            }
            failures |= _find_stranded_feedback(resolution.revised, attached, result)
            if not failures:
                break
            rejected |= failures
        self._staging.append(resolution.new, self._index)
        self._staging.revise(resolution.revised, self._index)
        sampled = {record.content for entry in batch if entry.row.is_sampled for record in entry.records}
        self.replaced |= {
            record.identity: ReplacedRow(TABLES[type(record.row)], record.identity, record.row.interaction_id)
            for record in resolution.replaced
        }
        self.completed += resolution.n_completed
        for record in checked:
            if isinstance(record.row, Interaction) and record.identity not in revised:
                self.profiler.add(record)
            is_weighted = isinstance(record.row, Review) and record.row.inclusion_probability is not None
            self.weighted_reviews += is_weighted and record.content not in sampled
        for record in resolution.pending:
            self._pending_writers[TABLES[type(record.row)]].append(record)
        for writer in self._pending_writers.values():
            writer.flush()
        for entry, decision in zip(batch, resolution.decisions, strict=True):
            # A pending row is counted at the end; one of an earlier batch that stays pending already was.
            if decision[0] != "pending" or (is_last and outcomes is self.outcomes):
                self._count(entry.row, decision, outcomes)

    def _read_moved_feedback(self, revised: Sequence[Record]) -> list[Record]:
        """Read the thumbs and reviews, stored before or by this batch, of interactions that get another time."""
        moved_ids = {
            record.row.interaction_id
            for record in revised
            if isinstance(record.row, Interaction)
            and self._index.get_asked_at(record.row.interaction_id) != record.row.asked_at
        }
        tables: tuple[type[Thumb | Review], ...] = (Thumb, Review) if moved_ids else ()
        rows = (
            row
            for contract in tables
            for part in (*self._store.list_part_files(contract), self._staging.get_part_file(contract))
            for row in self._store.iter_part_rows(part, contract)
        )
        return [make_record(row) for row in rows if row.interaction_id in moved_ids]

    def _redact_row(self, row: ParsedRow) -> ParsedRow:
        """Return `row` without content that must not be stored: reasoning, personal data, all from an erased user."""
        redacted = self._privacy.apply(self._cut_reasoning(row))
        content = redacted.interaction or redacted.thumb or redacted.review
        is_erased = (
            content is not None and make_interaction_identity(content.interaction_id).hex() in self._erased_interactions
        )
        is_from_erased_user = redacted.thumb is not None and redacted.thumb.user in self._erased_users
        if is_erased or (is_from_erased_user and redacted.interaction is None):
            return replace(ERASED_USER_ROW, source=row.source, line=row.line)
        return replace(redacted, thumb=None) if is_from_erased_user else redacted

    def _cut_reasoning(self, row: ParsedRow) -> ParsedRow:
        """Return `row` without the reasoning in its answer, and then without the log-probabilities of both."""
        if row.interaction is None:
            return row
        try:
            interaction = cut_reasoning(row.interaction, self._reasoning)
        except ValueError as error:
            return replace(row, interaction=None, thumb=None, review=None, reasons=(make_reason("answer", str(error)),))
        if interaction is row.interaction:
            return row
        self.cut_answers += 1
        return replace(row, interaction=interaction)

    def _count(self, row: ParsedRow, decision: RowDecision, outcomes: Counter[str]) -> None:
        """Count the outcome of a row, and quarantine it if rejected; only this batch counts towards the limit."""
        outcome, reasons = decision
        is_awaiting = outcome == "quarantined" and is_awaiting_documents(reasons)
        outcomes["pending" if is_awaiting else outcome] += 1
        file = self.quarantine.find_file(row)
        if outcome != "quarantined":
            if file:
                self._accepted_digests.add(compute_row_digest(row))
            return
        redacted = tuple(map(self._privacy.redact_reason, reasons))
        if is_awaiting:
            self.awaiting_documents += outcomes is self.outcomes
        else:
            self.reasons.update(generalize_reasons(redacted))
        if reasons == ERASED_USER_ROW.reasons:
            return
        is_new = not is_awaiting and not is_user_caused(reasons) and not self.quarantine.is_reported(row)
        if outcomes is self.outcomes and is_new:
            self.newly_rejected += 1
            self.earlier_file_id = self.earlier_file_id or (file.stem if file else "")
        if file is None and not self.quarantine.is_discarded(row):
            self._quarantine_writer.add(QuarantinedRow.from_row(row, redacted))

    # The end

    @property
    def new_documents(self) -> int:
        """The number of documents that are new or have a new version."""
        return sum(row is not None for row in self._changed_documents.values())

    def stage(self) -> None:
        """Stage documents, chunks, rejected rows and revised parts: everything except the new parts of rows."""
        self.quarantine_file_id = self._quarantine_writer.close()
        self._staging.stage_revisions(self._index)
        for doc_id, row in self._changed_documents.items():
            name = f"documents/{doc_id}.md"
            if row is not None:
                self._staging.stage_file(name, row.raw)
            elif (self._store.folder / name).exists():
                self._staging.stage_deletion(self._store.folder / name)
        if self._changed_documents:
            self._staging.stage_file("documents.jsonl", to_json_lines(self._versions))
            chunks = (chunk for doc_id in sorted(self._chunks) for chunk in self._chunks[doc_id])
            self._staging.stage_file("chunks.jsonl", to_json_lines(chunks))

    def clear_accepted_from_quarantine(self, sources: Sequence[str]) -> None:
        """Remove accepted rows from the quarantine, and unblock the `sources` that earlier batches blocked."""
        self.quarantine.remove_accepted(self._accepted_digests, self._staging)
        self.quarantine.unblock(sources)
        self.quarantine.stage_blocking(self._staging)


def iter_blocks(rows: Iterable[T], get_size: Callable[[T], int]) -> Iterator[list[T]]:
    """Group rows into blocks that fit into memory.

    Args:
        rows: The rows.
        get_size: Returns the size of a row in bytes.

    Yields:
        Lists of at most `BLOCK_ROWS` rows; the row that makes a list reach `MAX_BLOCK_BYTES` ends it.
    """
    block: list[T] = []
    n_bytes = 0
    for row in rows:
        block.append(row)
        n_bytes += get_size(row)
        if len(block) == BLOCK_ROWS or n_bytes >= MAX_BLOCK_BYTES:
            yield block
            block, n_bytes = [], 0
    if block:
        yield block


def _find_stranded_feedback(
    revised: Sequence[Record], attached: Sequence[Record], result: ValidationResult
) -> dict[bytes, Reasons]:
    """Return why interactions cannot be revised: their stored thumbs and reviews would fail. By content digest."""
    reasons = {
        record.row.interaction_id: result.reasons[record.key] for record in attached if record.key in result.reasons
    }
    return {
        record.content: tuple(
            Reason(reason.code, "asked_at", f"its stored feedback would fail: {reason.field}: {reason.message}")
            for reason in reasons[record.row.interaction_id]
        )
        for record in revised
        if isinstance(record.row, Interaction) and record.row.interaction_id in reasons
    }


def _group_by_contract(records: Sequence[Record]) -> ValidatedRows:
    interactions, thumbs, reviews = (
        [record for record in records if type(record.row) is contract] for contract in TABLES
    )
    return ValidatedRows(interactions, thumbs, reviews)


def _get_document_id(key: str) -> str:
    """Return the document that a failing `documents/...` or `chunks/...` belongs to."""
    table, _, name = key.partition("/")
    return name if table == "documents" else get_document_id(name)
