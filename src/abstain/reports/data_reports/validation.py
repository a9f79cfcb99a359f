"""Report about all accepted rows, and the training table that was built from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from abstain.data.validation.checks import TABLES
from abstain.reports.data_reports.pages import render_data_report


def validation_report(results: Sequence[Mapping[str, Any]], about: str) -> tuple[str, str]:
    """Render the results of a validation.

    Args:
        results: Results of different suites (`ValidationResult.to_dict`).
        about: Name of the run, as a sentence.

    Returns:
        The report as Markdown, and as an HTML page.
    """
    rows = {name: number for result in results for name, number in result["rows"].items()}
    return render_data_report(
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
