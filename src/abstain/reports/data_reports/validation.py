"""Report about all accepted rows, and the training table that was built from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from abstain.core.formatting import format_count
from abstain.core.markdown import document, heading, key_metrics_table, list_section, paragraph
from abstain.data.validation.checks import TABLES
from abstain.reports.data_reports.charts import drift_images, drift_section
from abstain.reports.data_reports.sections import balance_section, failing_section, suite_sections
from abstain.reports.page import headline_section, render_html


def validation_report(results: Sequence[Mapping[str, Any]], about: str) -> tuple[str, str]:
    """Render the results of a validation.

    Args:
        results: Results of different suites (`ValidationResult.to_dict`).
        about: Name of the run, as a sentence.

    Returns:
        The report as Markdown, and as an HTML page.
    """
    rows = {name: number for result in results for name, number in result["rows"].items()}
    checks = [check for result in results for check in result["expectations"]]
    failing = sum(result["failing"] for result in results)
    reasons = {key: value for result in results for key, value in result["reasons"].items()}
    statistics = {name: value for result in results for name, value in result["statistics"].items()}
    drift = statistics.get("drift")
    blocks = [
        heading(1, "Data validation"),
        paragraph(about),
        *_headline(checks, rows, failing),
        key_metrics_table((f"{rows[name]:,}", name) for name in (*TABLES, "labels") if name in rows),
        *failing_section(sorted(reasons.items()), failing),
        *list_section("Warnings", [line for result in results for line in result["warnings"]]),
        *balance_section(statistics.get("splits", ())),
        *(drift_section(drift) if drift else ()),
        *suite_sections(results),
        *list_section("Notes", list(dict.fromkeys(note for result in results for note in result["notes"]))),
    ]
    markdown = document(blocks)
    return markdown, render_html(markdown, drift_images(drift) if drift else {})


def _headline(checks: Sequence[Mapping[str, Any]], rows: Mapping[str, int], failing: int) -> list[str]:
    errors = [check for check in checks if check["severity"] == "error" and not check["success"]]
    warnings = sum(check["severity"] == "warning" and not check["success"] for check in checks)
    accepted = sum(rows.get(name, 0) for name in TABLES)
    if errors:
        lines = [f"{check['suite']}: {check['remark']} ({check['failed_rows']:,})" for check in errors]
        return headline_section(
            "failed", f"{format_count(len(errors), 'expectation')} failed, by {format_count(failing, 'row')}", lines
        )
    holds = f"{len(checks) - warnings} expectations hold on {accepted:,} rows"
    if warnings:
        return headline_section("warned", f"Passed, with {format_count(warnings, 'warning')}", [holds])
    return headline_section("passed", "Passed", [holds])
