"""Common values of the templates of the reports about data, which are in `reports/templates/data`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from abstain.data.validation.results import MAX_REPORTED_ROWS, UNITS, describe_condition
from abstain.reports.data_reports.charts import describe_drift, drift_images
from abstain.reports.page import render_html
from abstain.reports.templating import render_template


def render_data_report(
    template: str, results: Sequence[Mapping[str, Any]], reasons: Iterable[tuple[str, Sequence[str]]], **values: Any
) -> tuple[str, str]:
    """Render a report about data.

    Args:
        template: Name of its template.
        results: Results of different suites (`ValidationResult.to_dict`).
        reasons: Name and reasons of each failing row, in the order in which they are listed.
        **values: Further variables of the template.

    Returns:
        The report as Markdown, and as an HTML page.
    """
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
