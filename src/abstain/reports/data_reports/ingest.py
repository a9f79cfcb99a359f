"""The page about one batch: what was accepted, what was refused and why, how far it is from the batches before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from abstain.data.validation.results import SHOWN
from abstain.ingest.pipeline.report import IngestReport
from abstain.ingest.quarantine import QuarantinedRow
from abstain.reports.data_reports.charts import drift_of
from abstain.reports.data_reports.view import Failing, Verdict, View, render, suites_of


def ingest_page(
    report: IngestReport,
    about: str,
    rows: Iterable[QuarantinedRow] = (),
    refused: str | None = None,
) -> str:
    """`report` as one page; `about` says of which batch, `rows` are those in the quarantine.

    `refused` is why the batch was refused whole. The raw text of a row is not shown: more people may read the page than
    the data.
    """
    listed = [Failing(f"{row.source}, line {row.line:,}", row.reasons) for row in islice(rows, SHOWN)]
    result = report.validation.to_dict() if report.validation else None
    figures = result["figures"] if result else {}
    accepted = "accepted" if refused is None else "valid, not accepted"
    counts = {
        "read": report.read,
        accepted: report.accepted,
        "duplicate": report.duplicate,
        "held": report.held,
        "quarantined": report.quarantined,
    }
    view = View(
        title="Ingest",
        about=about,
        verdict=_verdict(report, refused),
        tiles=[(name, f"{count:,}") for name, count in counts.items()],
        warnings=report.validation.warning_lines() if report.validation else (),
        reasons=[(count, reason) for reason, count in report.reasons.items()],
        failing=listed,
        more_failing=report.quarantined - len(listed) if listed else 0,
        suites=suites_of(result) if result else (),
        drift=drift_of(figures["drift"]) if "drift" in figures else None,
        notes=_notes(report),
        next_steps=_next_steps(report, refused),
    )
    return render(view)


def _verdict(report: IngestReport, refused: str | None) -> Verdict:
    if refused is not None:
        return Verdict("failed", "Batch refused, nothing accepted", [refused])
    new = ", ".join(f"{count:,} {name}" for name, count in report.contracts.items() if count) or "nothing"
    lines = [f"new: {new}"]
    if report.quarantined:
        return Verdict("warned", f"{report.accepted:,} rows accepted, {report.quarantined:,} quarantined", lines)
    warned = report.validation is not None and bool(report.validation.warnings)
    return Verdict("warned" if warned else "passed", f"{report.accepted:,} rows accepted", lines)


def _notes(report: IngestReport) -> Sequence[str]:
    notes = [*report.validation.notes] if report.validation else []
    if report.held:
        notes.append(f"{report.held:,} thumbs and reviews wait for their interaction")
    if report.joined:
        became = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(report.joined.items()))
        notes.append(f"of those that had waited: {became}")
    if report.redacted:
        notes.append(f"redacted: {', '.join(f'{count:,} {what}' for what, count in sorted(report.redacted.items()))}")
    if report.ignored:
        notes.append(f"ignored, of no known kind: {', '.join(report.ignored)}")
    return notes


def _next_steps(report: IngestReport, refused: str | None) -> Sequence[tuple[str, str]]:
    if not report.quarantined:
        return ()
    steps = [
        ("abstain quarantine list", "what is there, and what it holds back"),
        ("abstain quarantine retry ID", "judge the rows again, under the rules and beside the data of then"),
        ("abstain quarantine discard ID", "delete them"),
    ]
    if refused is not None:
        steps.insert(
            0, ("abstain ingest FILE...", "once the rows are mended at their source: the retrain waits for it")
        )
    return steps
