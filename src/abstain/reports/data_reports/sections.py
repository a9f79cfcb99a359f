"""Common sections of the reports about data: rows that fail, expectations, the balance of labels, drift."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from abstain.core.formatting import format_percent
from abstain.core.markdown import bold, heading, paragraph, table
from abstain.data.validation.results import MAX_REPORTED_ROWS, UNITS, describe_condition
from abstain.reports.page import State, status_heading

OUTCOMES: dict[tuple[bool, str], tuple[str, State]] = {
    (True, "error"): ("ok", "passed"),
    (True, "warning"): ("ok", "passed"),
    (False, "error"): ("fails", "failed"),
    (False, "warning"): ("warning", "warned"),
}
BAR = 20
"""Length, in characters, of a bar for all answers."""


def failing_section(rows: Iterable[tuple[str, Sequence[str]]], failing: int) -> list[str]:
    """Render the first rows that fail, with all reasons of each.

    Args:
        rows: Name and reasons of each row, in the order in which they are listed.
        failing: Number of rows that fail, listed here or not.

    Returns:
        Markdown blocks; none if no row fails.
    """
    first = [(name, "; ".join(reasons)) for name, reasons in islice(rows, MAX_REPORTED_ROWS)]
    if not first:
        return []
    remainder = [paragraph(f"and {failing - len(first):,} more")] if failing > len(first) else []
    return [
        heading(2, "Rows that fail"),
        table(("row", "because"), first, "With all reasons", ("because",)),
        *remainder,
    ]


def suite_sections(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Render every expectation by suite.

    Args:
        results: Results of different suites (`ValidationResult.to_dict`).

    Returns:
        Markdown blocks; none if there are no expectations.
    """
    blocks = []
    for result in results:
        for name, rows in result["rows"].items():
            checks = [check for check in result["expectations"] if check["suite"] == name]
            if checks:
                blocks += _render_suite(f"{name}: {rows:,} {UNITS.get(name, 'rows')}", checks)
    return [heading(2, "What was checked"), *blocks] if blocks else []


def balance_section(splits: Sequence[Mapping[str, Any]]) -> list[str]:
    """Render how many answers of each split are correct, and how many are reviewed.

    Args:
        splits: The statistics `splits` of a validation result.

    Returns:
        Markdown blocks; none if there are no splits.
    """
    columns = ("split", "answers", "correct", "of all, correct", "reviewed", "of all, reviewed")
    words = ("of all, correct", "of all, reviewed")
    caption = "Labels of each split; a full bar: all of its answers"
    rows = map(_format_balance, splits)
    return [heading(2, "Labels by split"), table(columns, rows, caption, words)] if splits else []


def _render_suite(title: str, checks: Sequence[Mapping[str, Any]]) -> list[str]:
    states = [OUTCOMES[check["success"], check["severity"]][1] for check in checks]
    state: State = "failed" if "failed" in states else "warned" if "warned" in states else "passed"
    summary = f"{sum(check['success'] for check in checks)} of {len(checks)} expectations hold"
    columns = ("column", "must be", "outcome", "failing", "for example", "why")
    words = ("must be", "outcome", "for example", "why")
    return [
        status_heading(3, state, f"{title}, {summary}"),
        table(columns, map(_format_check, checks), "Each expectation of a column", words),
    ]


def _format_check(check: Mapping[str, Any]) -> Sequence[str]:
    outcome, state = OUTCOMES[check["success"], check["severity"]]
    return [
        check["column"],
        describe_condition(check["expectation"], check["arguments"]),
        bold(outcome) if state == "failed" else outcome,
        f"{check['failed_rows']:,}" if check["failed_rows"] else "",
        ", ".join(key.partition("/")[2] for key in check["sample"]),
        "" if check["success"] else check["remark"],
    ]


def _format_balance(split: Mapping[str, Any]) -> Sequence[str]:
    row = [split["split"], f"{split['answers']:,}"]
    if not split["answers"]:
        return [*row, "no answers"]
    shares = (split[name] / split["answers"] for name in ("correct", "reviewed"))
    return [*row, *(text for share in shares for text in (format_percent(share), _draw_bar(share)))]


def _draw_bar(share: float) -> str:
    full = round(BAR * share)
    return "█" * full + "░" * (BAR - full)
