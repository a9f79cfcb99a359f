"""Reports about data: one about a batch that was ingested, one about all accepted rows and the training table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from abstain.core.markdown import MarkdownText
from abstain.data.validation.checks import TABLES
from abstain.data.validation.results import MAX_REPORTED_ROWS, UNITS, describe_condition
from abstain.ingest.quarantine import QuarantinedRow
from abstain.ingest.report import IngestReport
from abstain.reports.data_reports.charts import describe_drift, drift_images
from abstain.reports.page import render_html
from abstain.reports.templating import render_template


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
    results = [report.validation.to_dict()] if report.validation else []
    summary = report.summarize("accepted" if rejection is None else "valid, not accepted")
    return _render(
        "data/ingest",
        results,
        about=about,
        report=report,
        rejection=rejection,
        summary=MarkdownText("\n\n".join(summary)),
        failing=report.quarantined,
        reasons=(
            (f"{row.source}, line {row.line:,}", [reason.message_with_code for reason in row.reasons]) for row in rows
        ),
    )


def validation_report(results: Sequence[Mapping[str, Any]], about: str) -> tuple[str, str]:
    """Render the results of a validation.

    Args:
        results: Results of different suites (`ValidationResult.to_dict`).
        about: Name of the run, as a sentence.

    Returns:
        The report as Markdown, and as an HTML page.
    """
    rows = {name: number for result in results for name, number in result["rows"].items()}
    return _render(
        "data/validation",
        results,
        about=about,
        rows=rows,
        accepted=sum(rows.get(name, 0) for name in TABLES),
        tables=[name for name in (*TABLES, "labels") if name in rows],
        checks=[check for result in results for check in result["expectations"]],
        failing=sum(result["failing"] for result in results),
        reasons=sorted((key, value) for result in results for key, value in result["reasons"].items()),
        warnings=[line for result in results for line in result["warnings"]],
        notes=list(dict.fromkeys(note for result in results for note in result["notes"])),
    )


def _render(
    template: str, results: Sequence[Mapping[str, Any]], reasons: Iterable[tuple[str, Sequence[str]]], **values: Any
) -> tuple[str, str]:
    statistics = {name: value for result in results for name, value in result["statistics"].items()}
    suites = [
        (f"{name}: {rows:,} {UNITS.get(name, 'rows')}", checks)
        for result in results
        for name, rows in result["rows"].items()
        if (checks := [check for check in result["expectations"] if check["suite"] == name])
    ]
    drift = statistics.get("drift")
    markdown = render_template(
        template,
        **values,
        reasons=list(islice(reasons, MAX_REPORTED_ROWS)),
        splits=statistics.get("splits", ()),
        suites=suites,
        drift=drift,
        drift_plots=describe_drift(drift) if drift else (),
        describe_condition=describe_condition,
    )
    return markdown, render_html(markdown, drift_images(drift) if drift else {})
