"""Report about one batch: accepted rows, rejected rows with reasons, and drift against the batches before."""

from __future__ import annotations

from collections.abc import Iterable

from abstain.core.markdown import document, heading, paragraph, table
from abstain.ingest.quarantine import QuarantinedRow
from abstain.ingest.report import IngestReport
from abstain.reports.data_reports.charts import drift_images, drift_section
from abstain.reports.data_reports.sections import failing_section, suite_sections
from abstain.reports.page import headline_section, render_html

STEPS = (
    ("abstain quarantine list", "what is there, and what it holds back"),
    ("abstain quarantine retry ID", "judge the rows again, under the rules and beside the data of then"),
    ("abstain quarantine discard ID", "delete them"),
)
FIX_AT_SOURCE = ("abstain ingest FILE...", "once the rows are fixed at their source: the retrain waits for it")


def ingest_report(
    report: IngestReport, about: str, rows: Iterable[QuarantinedRow] = (), rejection: str | None = None
) -> tuple[str, str]:
    """Render the result of an ingest.

    Args:
        report: Result of the ingest.
        about: Name of the batch, as a sentence.
        rows: Rows in the quarantine. Their raw text is not shown: more people may read the report than the data.
        rejection: Reason why the whole batch was rejected; None if it was not.

    Returns:
        The report as Markdown, and as an HTML page.
    """
    failing = (
        (f"{row.source}, line {row.line:,}", [reason.message_with_code for reason in row.reasons]) for row in rows
    )
    result = report.validation.to_dict() if report.validation else None
    drift = result["statistics"].get("drift") if result else None
    markdown = document(
        [
            heading(1, "Ingest"),
            paragraph(about),
            *_headline(report, rejection),
            *report.summarize("accepted" if rejection is None else "valid, not accepted"),
            *failing_section(failing, report.quarantined),
            *_next_steps(report, rejection),
            *(drift_section(drift) if drift else ()),
            *(suite_sections([result]) if result else ()),
        ]
    )
    return markdown, render_html(markdown, drift_images(drift) if drift else {})


def _headline(report: IngestReport, rejection: str | None) -> list[str]:
    if rejection is not None:
        return headline_section("failed", "Batch rejected, nothing accepted", [rejection])
    if report.quarantined:
        return headline_section("warned", f"{report.accepted:,} rows accepted, {report.quarantined:,} quarantined", [])
    warned = report.validation is not None and bool(report.validation.warnings)
    return headline_section("warned" if warned else "passed", f"{report.accepted:,} rows accepted", [])


def _next_steps(report: IngestReport, rejection: str | None) -> list[str]:
    if not report.quarantined:
        return []
    steps = STEPS if rejection is None else (FIX_AT_SOURCE, *STEPS)
    return [
        heading(2, "What to do"),
        table(("command", "what it does"), steps, "On the command line", ("what it does",)),
    ]
