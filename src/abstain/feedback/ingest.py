"""From files of feedback to accepted rows in data/: read, settle, validate, then write.

Three decisions:

* An input row is accepted, a duplicate, or quarantined, as a whole, and the three counts must add up to the
  rows read (`IngestReport` raises where they do not).
* Rows are settled and validated in turns: a refused row may be what another one was a conflict or a duplicate
  of, so the others are settled again without it until no row fails.
* Everything is decided before anything is written, and data/ is valid before and after: a batch that would
  break rows already accepted is refused whole, like one with too many bad rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from abstain.contracts import Row
from abstain.errors import AbstainError
from abstain.feedback import validation
from abstain.feedback.report import IngestReport, count_reasons
from abstain.feedback.rows import InputRow, read_files
from abstain.feedback.settle import Reasons, Settled, settle
from abstain.feedback.store import Dataset, QuarantinedRow, read_dataset, write_dataset, write_quarantine
from abstain.feedback.validation import ValidationResult
from abstain.params import ValidationParams

__all__ = ["IngestReport", "ingest"]

Validate = Callable[[Dataset, ValidationParams, datetime], ValidationResult]


def ingest(
    files: Sequence[Path],
    data: Path,
    params: ValidationParams,
    now: datetime,
    *,
    validate: Validate = validation.validate,
) -> IngestReport:
    """Take the rows of `files` (`.jsonl`, `.md`, or folders of them) into the folder `data`.

    `now` is the moment that no timestamp may lie behind. Raises `AbstainError`, with nothing written, for
    files that cannot be read and for a batch that would break stored rows; and, with the quarantine written
    but nothing accepted, where more than `params.max_failed_fraction` of the rows are refused.
    """
    batch = read_files(files)
    stored = read_dataset(data)
    settled, result = _settle_and_validate(batch.rows, stored, lambda dataset: validate(dataset, params, now))
    counts = Counter(settled.outcomes)
    quarantined = [
        QuarantinedRow.of(row.source, row.line, row.raw, reasons)
        for row, outcome, reasons in zip(batch.rows, settled.outcomes, settled.reasons, strict=True)
        if outcome == "quarantined"
    ]
    report = IngestReport(
        read=len(batch.rows),
        accepted=counts["accepted"],
        duplicate=counts["duplicate"],
        quarantined=len(quarantined),
        contracts=settled.accepted,
        reasons=count_reasons(row.reasons for row in quarantined),
        ignored=batch.ignored,
        validation=result,
    )
    if quarantined:
        path, is_new = write_quarantine(data, quarantined)
        report = replace(report, quarantine=path.relative_to(data).as_posix(), quarantine_is_new=is_new)
        _require_few_refused(report, params, path)
    write_dataset(data, settled.dataset)
    return report


def _settle_and_validate(
    rows: Sequence[InputRow], stored: Dataset, validate: Callable[[Dataset], ValidationResult]
) -> tuple[Settled, ValidationResult | None]:
    """The rows settled so that no new one fails; no result where there is nothing new to validate."""
    refused: dict[Row, Reasons] = {}
    while True:  # each turn refuses at least one content more, so it ends
        settled = settle(rows, stored, refused)
        if "accepted" not in settled.outcomes:
            return settled, None
        result = validate(settled.dataset)
        failing = {settled.owners[key]: reasons for key, reasons in result.reasons.items() if key in settled.owners}
        if failing:
            refused |= failing
            continue
        if result.reasons:  # of stored rows, then
            broken = sorted(result.reasons.keys() - validate(stored).reasons.keys())
            if broken:
                raise AbstainError(
                    f"batch refused, nothing accepted: it would break {len(broken)} rows already in data/, first "
                    f"{broken[0]} ({result.reasons[broken[0]][0]}): ingest what they refer to in the same batch"
                )
        return settled, result


def _require_few_refused(report: IngestReport, params: ValidationParams, quarantine: Path) -> None:
    if report.quarantined <= params.max_failed_fraction * report.read:
        return
    top = "; ".join(f"{count} x {reason}" for reason, count in list(report.reasons.items())[:3])
    raise AbstainError(
        f"batch refused, nothing accepted: {report.quarantined} of {report.read} rows fail, more than "
        f"validation.max_failed_fraction = {params.max_failed_fraction:g} allows ({top}): "
        f"mend the rows listed in {quarantine} and ingest again"
    )
