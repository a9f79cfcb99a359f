"""The ingest pipeline: read sources, deduplicate, validate, then write accepted rows to data/, as a stream.

Notes:

* An input row, as a whole, is accepted, a duplicate, pending until its interaction or documents come, or quarantined;
  the four counts must add up to the rows read (`IngestReport` raises if they do not).
* Documents come first, so that every row can be checked against them, and pending rows come last, once every
  interaction is known (`ingest_pipeline`).
* Everything is written beside data/ and moved in at the end, together with the sources' states. A batch of which too
  many rows are rejected leaves only its quarantine behind, and blocks the retrain until a user decides on it.
* With a reason to replace, rows take the place of stored ones with other content, in the same step.
* The failure limit counts only rows that were not reported before: bad rows that stay in a drop folder do not have
  every later batch rejected, and known good ones do not hide that a new export is broken.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import chain
from pathlib import Path

from abstain.config.params import QualityParams, ValidationParams
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.json_lines import to_json_lines
from abstain.core.text import ReasoningMarker
from abstain.data.store.dataset import DataStore, IngestedBatch, StagedBatch, is_review_queue
from abstain.data.store.record_keys import make_interaction_identity
from abstain.data.validation.checks import ExistingData, ValidatedRows
from abstain.data.validation.drift import validate_drift
from abstain.data.validation.runner import ValidationResult, validate
from abstain.ingest.parsing import ParsedRow
from abstain.ingest.pipeline.ingest_pipeline import IngestPipeline
from abstain.ingest.privacy.policy import Privacy
from abstain.ingest.quarantine import FOLDER
from abstain.ingest.report import IngestReport
from abstain.ingest.sources import Source, SourceReader

Validate = Callable[[ValidatedRows, ExistingData, ValidationParams, datetime], ValidationResult]


class BatchRejected(AbstainError):
    """Too many rows of a batch fail.

    Args:
        message: The problem and its remedy.
        report: The outcomes as if the other rows had been accepted.
    """

    def __init__(self, message: str, report: IngestReport) -> None:
        super().__init__(Code.BATCH_REJECTED, message)
        self.report = report


def ingest(
    sources: Sequence[Source],
    data: Path,
    params: ValidationParams,
    now: datetime,
    *,
    privacy: Privacy | None = None,
    incremental: bool = False,
    quality: QualityParams | None = None,
    reasoning: Collection[ReasoningMarker] = (),
    replace_reason: str | None = None,
    validate: Validate = validate,
) -> IngestReport:
    """Ingest the rows of `sources` into the data folder, as one atomic batch.

    Args:
        sources: Where rows come from.
        data: The data folder.
        params: Validation limits.
        now: Latest time that a row may have.
        privacy: Redaction rules; None redacts nothing.
        incremental: Continue each source where the last ingest stopped.
        quality: Limits for drift against earlier batches; None skips that check.
        reasoning: How models mark their reasoning, which is cut out of answers.
        replace_reason: Why rows take the place of stored ones with other content; None makes them conflicts.
        validate: Validation function, replaceable in tests.

    Returns:
        Counts of accepted, duplicate, pending and quarantined rows, with reasons.

    Raises:
        AbstainError: A source cannot be read. Nothing is written.
        BatchRejected: More than `params.max_failed_fraction` of the new rows were rejected. Only the quarantine is
            written.
    """
    store, names, privacy = DataStore(data), tuple(source.name for source in sources), privacy or Privacy.noop()
    with StagedBatch(store) as staging, _redacted_errors(privacy):
        pipeline = IngestPipeline(
            store,
            staging,
            privacy,
            lambda rows, existing: validate(rows, existing, params, now),
            now,
            reasoning=reasoning,
            can_replace=replace_reason is not None,
        )
        readers = [source.read(store.read_source_state(source.name) if incremental else {}) for source in sources]
        documents, rows = _split_documents(readers)
        pipeline.add_documents(documents)
        pipeline.add_rows(rows)
        pipeline.retry_rows_awaiting_documents()
        pipeline.resolve_pending()
        present_doc_ids = frozenset[str]().union(*(reader.outcome.present_doc_ids or () for reader in readers))
        for name, reader in zip(names, readers, strict=True) if incremental else ():
            pipeline.remove_documents(
                reader.outcome.removed_doc_ids - present_doc_ids
            )  # it may have moved to another source
            state = json.dumps(reader.outcome.state, indent=1, sort_keys=True)
            staging.stage_file(f"sources/{name}.json", f"{state}\n".encode())
        pipeline.stage()
        profile = pipeline.profiler.build_profile()
        if quality and profile.rows:
            pipeline.validation_results.append(
                validate_drift([*(batch.profile for batch in store.read_batches()), profile], quality)
            )
        report = _make_report(pipeline, staging, readers, privacy, is_queue=all(map(is_review_queue, names)))
        _check_rejection_rate(report, params, names, pipeline, staging)
        row_counts = {table: count for table, count in report.contracts.items() if count}
        if row_counts or report.replaced:
            batch = IngestedBatch(
                batch=staging.batch,
                arrived_at=now,
                sources=names,
                rows=row_counts,
                profile=profile,
                replaced=tuple(
                    sorted({make_interaction_identity(row.interaction_id).hex() for row in report.replaced})
                ),
                reason=replace_reason if report.replaced else None,
            )
            staging.stage_file("batches.jsonl", to_json_lines([*store.read_batches(), batch]))
        staging.publish()
    return report


@contextmanager
def _redacted_errors(privacy: Privacy) -> Iterator[None]:
    """Redact errors, which may quote a line or a field's name: they go to the log, the run's state and the webhook."""
    try:
        yield
    except BatchRejected:  # made of redacted reasons
        raise
    except AbstainError as error:
        message = privacy.redact_message(str(error))
        if message == str(error):
            raise
        raise AbstainError(error.code, message) from None


def _split_documents(readers: Iterable[SourceReader]) -> tuple[list[ParsedRow], Iterator[ParsedRow]]:
    """Return all documents (and unreadable ones), and the other rows: every source yields its documents first."""
    documents: list[ParsedRow] = []
    rest: list[Iterator[ParsedRow]] = []
    for reader in readers:
        iterator = iter(reader)
        for row in iterator:
            if not row.is_document:
                rest.append(chain([row], iterator))
                break
            documents.append(row)
    return documents, chain.from_iterable(rest)


def _make_report(
    pipeline: IngestPipeline,
    staging: StagedBatch,
    readers: Iterable[SourceReader],
    privacy: Privacy,
    *,
    is_queue: bool,
) -> IngestReport:
    outcomes = pipeline.outcomes
    return IngestReport(
        read=pipeline.n_read,
        accepted=outcomes["accepted"],
        duplicate=outcomes["duplicate"],
        pending=outcomes["pending"],
        quarantined=outcomes["quarantined"],
        newly_rejected=pipeline.newly_rejected,
        awaiting_documents=pipeline.awaiting_documents,
        weighted_reviews=0 if is_queue else pipeline.weighted_reviews,
        replaced=tuple(pipeline.replaced.values()),
        completed=pipeline.completed,
        resolved_pending=dict(pipeline.earlier_outcomes),
        contracts={**staging.counts, "documents": pipeline.new_documents},
        reasons=dict(sorted(pipeline.reasons.items(), key=lambda item: (-item[1], item[0]))),
        quarantine=f"{FOLDER}/{pipeline.quarantine_file_id}.jsonl" if pipeline.quarantine_file_id else None,
        cut_answers=pipeline.cut_answers,
        redacted=dict(privacy.counts),
        ignored=tuple(privacy.redact_message(name) for reader in readers for name in reader.outcome.ignored),
        source_notes=tuple(privacy.redact_message(note) for reader in readers for note in reader.outcome.notes),
        validation=ValidationResult.merge(pipeline.validation_results) if pipeline.validation_results else None,
    )


def _check_rejection_rate(
    report: IngestReport,
    params: ValidationParams,
    names: tuple[str, ...],
    pipeline: IngestPipeline,
    staging: StagedBatch,
) -> None:
    """If too many rows are rejected, publish only the quarantine, block the retrain, and raise `BatchRejected`."""
    n_new = report.accepted + report.pending + report.newly_rejected
    if report.newly_rejected < params.min_failed_rows or report.newly_rejected <= params.max_failed_fraction * n_new:
        pipeline.clear_accepted_from_quarantine(names)
        return
    common_reasons = "; ".join(f"{count} x {reason}" for reason, count in list(report.reasons.items())[:3])
    message = (
        f"batch of {', '.join(names)} rejected, nothing accepted: {report.newly_rejected} of {n_new} new rows fail, "
        f"more than validation.max_failed_fraction = {params.max_failed_fraction:g} allows ({common_reasons})"
    )
    file_id = pipeline.quarantine_file_id or pipeline.earlier_file_id  # where all of its bad rows are stored already
    pipeline.quarantine.block(file_id, names, message)
    pipeline.quarantine.stage_blocking(staging)
    staging.publish(FOLDER)
    raise BatchRejected(
        f"{message}: fix the rows listed by `abstain quarantine list` at the source and ingest again, or discard "
        f"them: `abstain quarantine discard {file_id}`",
        report,
    )
