"""The ingest pipeline: read sources, deduplicate, validate, then write accepted rows to data/, as a stream.

Notes:

* An input row is accepted, a duplicate, held until its interaction or documents come, or quarantined, as a whole; the
  four counts must add up to the rows read (`IngestReport` raises where they do not).
* Documents come first, so that every row can be checked against them, and pending rows come last, once every
  interaction is known (`batch`).
* Everything is written beside data/ and moved in at the end, together with the sources' states. A batch in which too
  many rows are refused leaves only its quarantine behind, and blocks the retrain until a user decides on it.
* The failure limit counts rows that were not reported before: bad rows that stay in a drop folder do not refuse every
  later batch, and known good ones do not hide that a new export is broken.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import chain
from pathlib import Path

from abstain.config.params import QualityParams, ValidationParams
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.json_lines import to_json_lines
from abstain.data.store.dataset import DataStore, IngestedBatch, StagedBatch, is_review_queue
from abstain.data.validation.checks import ExistingData, ValidatedRows
from abstain.data.validation.drift import validate_drift
from abstain.data.validation.runner import ValidationResult, validate
from abstain.ingest.parsing import ParsedRow
from abstain.ingest.pipeline.ingest_pipeline import IngestPipeline
from abstain.ingest.pipeline.report import IngestReport
from abstain.ingest.privacy.policy import Privacy
from abstain.ingest.quarantine import FOLDER
from abstain.ingest.sources import Source, SourceReader

Validate = Callable[[ValidatedRows, ExistingData, ValidationParams, datetime], ValidationResult]


class BatchRejected(AbstainError):
    """Too many rows of a batch fail; `report` has the outcomes as if the other rows had been accepted."""

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
    validate: Validate = validate,
) -> IngestReport:
    """Ingest the rows of `sources` into the folder `data`.

    `now` is the latest moment that a timestamp may have. With `incremental`, each source continues where the last
    ingest left it; with `quality`, the report has the drift of the batch against earlier ones. Raises `AbstainError`,
    with nothing written, for a source that cannot be read; and `BatchRejected`, with the quarantine written but nothing
    accepted, where more than `params.max_failed_fraction` of the new rows are refused.
    """
    store, names, privacy = DataStore(data), tuple(source.name for source in sources), privacy or Privacy.disabled()
    with StagedBatch(store) as staging, _redacted_errors(privacy):
        intake = IngestPipeline(store, staging, privacy, lambda rows, known: validate(rows, known, params, now), now)
        readings = [source.read(store.read_source_state(source.name) if incremental else {}) for source in sources]
        documents, rows = _split_documents(readings)
        intake.add_documents(documents)
        intake.add_rows(rows)
        intake.retry_rows_awaiting_documents()
        intake.resolve_pending()
        present = frozenset[str]().union(*(reading.outcome.present_doc_ids or () for reading in readings))
        for name, reading in zip(names, readings, strict=True) if incremental else ():
            intake.remove_documents(reading.outcome.removed_doc_ids - present)  # it may have moved to another source
            state = json.dumps(reading.outcome.state, indent=1, sort_keys=True)
            staging.stage_file(f"sources/{name}.json", f"{state}\n".encode())
        intake.stage()
        profile = intake.profiler.profile()
        if quality and profile.rows:
            intake.results.append(validate_drift([*(batch.profile for batch in store.batches()), profile], quality))
        report = _report(intake, staging, readings, privacy, is_queue=all(map(is_review_queue, names)))
        _check_rejection_rate(report, params, names, intake, staging)
        if rows_of := {table: count for table, count in report.contracts.items() if count}:
            batch = IngestedBatch(batch=staging.batch, arrived_at=now, sources=names, rows=rows_of, profile=profile)
            staging.stage_file("batches.jsonl", to_json_lines([*store.batches(), batch]))
        staging.publish()
    return report


@contextmanager
def _redacted_errors(privacy: Privacy) -> Iterator[None]:
    """An error may quote a line or a field's name: it ends in the log, in the run's state and at the webhook."""
    try:
        yield
    except BatchRejected:  # made of redacted reasons
        raise
    except AbstainError as error:
        shown = privacy.redact_message(str(error))
        if shown == str(error):
            raise
        raise AbstainError(error.code, shown) from None


def _split_documents(readings: Iterable[SourceReader]) -> tuple[list[ParsedRow], Iterator[ParsedRow]]:
    """All documents (and unreadable ones), and the other rows: every source gives its documents first."""
    documents: list[ParsedRow] = []
    rest: list[Iterator[ParsedRow]] = []
    for reading in readings:
        iterator = iter(reading)
        for row in iterator:
            if not row.is_document:
                rest.append(chain([row], iterator))
                break
            documents.append(row)
    return documents, chain.from_iterable(rest)


def _report(
    intake: IngestPipeline,
    staging: StagedBatch,
    readings: Iterable[SourceReader],
    privacy: Privacy,
    *,
    is_queue: bool,
) -> IngestReport:
    outcomes = intake.outcomes
    return IngestReport(
        read=intake.read,
        accepted=outcomes["accepted"],
        duplicate=outcomes["duplicate"],
        held=outcomes["held"],
        quarantined=outcomes["quarantined"],
        newly_refused=intake.newly_refused,
        waiting=intake.waiting,
        weighted=0 if is_queue else intake.weighted,
        joined=dict(intake.joined),
        contracts={**staging.counts, "documents": intake.new_documents},
        reasons=dict(sorted(intake.reasons.items(), key=lambda item: (-item[1], item[0]))),
        quarantine=f"{FOLDER}/{intake.quarantined_in}.jsonl" if intake.quarantined_in else None,
        redacted=dict(privacy.counts),
        ignored=tuple(privacy.redact_message(name) for reading in readings for name in reading.outcome.ignored),
        source_notes=tuple(privacy.redact_message(note) for reading in readings for note in reading.outcome.notes),
        validation=ValidationResult.merge(intake.results) if intake.results else None,
    )


def _check_rejection_rate(
    report: IngestReport, params: ValidationParams, names: tuple[str, ...], intake: IngestPipeline, staging: StagedBatch
) -> None:
    """If too many rows are refused, publish the quarantine alone, block the retrain, and raise."""
    new = report.accepted + report.held + report.newly_refused
    if report.newly_refused < params.min_failed_rows or report.newly_refused <= params.max_failed_fraction * new:
        intake.clear_accepted_from_quarantine(names)
        return
    top = "; ".join(f"{count} x {reason}" for reason, count in list(report.reasons.items())[:3])
    message = (
        f"batch of {', '.join(names)} refused, nothing accepted: {report.newly_refused} of {new} new rows fail, more "
        f"than validation.max_failed_fraction = {params.max_failed_fraction:g} allows ({top})"
    )
    name = intake.quarantined_in or intake.refused_before  # where all of its bad rows are stored already
    intake.quarantine.block(name, names, message)
    intake.quarantine.stage_blocking(staging)
    staging.publish(FOLDER)
    raise BatchRejected(
        f"{message}: fix the rows listed by `abstain quarantine list` at the source and ingest again, or discard "
        f"them: `abstain quarantine discard {name}`",
        report,
    )
