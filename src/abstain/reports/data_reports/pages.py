"""Common values of the templates of the reports about data, which are in `reports/templates/data`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from abstain.data.validation.results import MAX_REPORTED_ROWS, UNITS, ValidationResult, describe_condition
from abstain.reports.data_reports.charts import describe_drift, drift_images
from abstain.reports.page import render_html
from abstain.reports.templating import render_template


def render_data_report(
    template: str, result: ValidationResult, reasons: Iterable[tuple[str, Sequence[Any]]], **values: Any
) -> tuple[str, str]:
    """Render a report about data.

    Args:
        template: Name of its template.
        result: Result of the validation.
        reasons: Name and reasons of each failing row, in the order in which they are listed.
        **values: Further variables of the template.

    Returns:
        The report as Markdown, and as an HTML page.
    """
    suites = [
        (f"{name}: {rows:,} {UNITS.get(name, 'rows')}", checks)
        for name, rows in result.rows.items()
        if (checks := [check for check in result.checks if check.suite == name])
    ]
    markdown = render_template(
        template,
        **values,
        result=result,
        reasons=list(islice(reasons, MAX_REPORTED_ROWS)),
        suites=suites,
        drift=result.drift,
        drift_plots=describe_drift(result.drift) if result.drift else (),
        describe_condition=describe_condition,
    )
    return markdown, render_html(markdown, drift_images(result.drift) if result.drift else {})
