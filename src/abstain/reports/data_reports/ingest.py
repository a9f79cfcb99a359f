"""Report about one batch that was ingested."""

from __future__ import annotations

from collections.abc import Iterable

from abstain.core.markdown import MarkdownText
from abstain.data.validation.results import ValidationResult
from abstain.ingest.quarantine import QuarantinedRow
from abstain.ingest.report import IngestReport
from abstain.reports.data_reports.pages import render_data_report


def ingest_report(
    report: IngestReport, about: str, rows: Iterable[QuarantinedRow] = (), rejection: str | None = None
) -> tuple[str, str]:
    """Render the result of an ingest: accepted rows, rejected rows with reasons, drift against the batches before.

    Args:
        report: Result of the ingest.
        about: Name of the batch, as a sentence.
        rows: Rows in the quarantine. Their raw text is not shown: more people may read the report than the data.
        rejection: Reason why the whole batch was rejected; None if it was not.

    Returns:
        The report as Markdown, and as an HTML page.
    """
    summary = report.summarize("accepted" if rejection is None else "valid, not accepted")
    return render_data_report(
        "data/ingest",
        report.validation or ValidationResult({}),
        about=about,
        report=report,
        rejection=rejection,
        summary=MarkdownText("\n\n".join(summary)),
        failing=report.quarantined,
        reasons=(
            (f"{row.source}, line {row.line:,}", [reason.message_with_code for reason in row.reasons]) for row in rows
        ),
    )
