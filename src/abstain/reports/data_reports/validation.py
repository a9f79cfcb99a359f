"""Report about all accepted rows, and the training table that was built from them."""

from __future__ import annotations

from abstain.data.validation.checks import TABLES
from abstain.data.validation.results import ValidationResult
from abstain.reports.data_reports.pages import render_data_report


def validation_report(result: ValidationResult, about: str) -> tuple[str, str]:
    """Render the result of a validation.

    Args:
        result: Merged result of all suites.
        about: Name of the run, as a sentence.

    Returns:
        The report as Markdown, and as an HTML page.
    """
    return render_data_report(
        "data/validation",
        result,
        about=about,
        accepted=sum(result.rows.get(name, 0) for name in TABLES),
        tables=[name for name in (*TABLES, "labels") if name in result.rows],
        failing=result.n_failed_rows,
        reasons=sorted(result.reasons.items()),
    )
