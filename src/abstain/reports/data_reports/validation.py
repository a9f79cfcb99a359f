"""The page about everything that was accepted, and the training table that was made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from abstain.data.validation.checks import TABLES
from abstain.reports.data_reports.charts import balance_of, drift_of
from abstain.reports.data_reports.view import Verdict, View, failing_of, render, suites_of


def validation_page(results: Sequence[Mapping[str, Any]], about: str) -> str:
    """`results` (`ValidationResult.to_dict`, of different suites) as one page; `about` says of which run."""
    rows = {name: count for result in results for name, count in result["rows"].items()}
    checks = [check for result in results for check in result["expectations"]]
    failing = sum(result["failing"] for result in results)
    reasons = {key: value for result in results for key, value in result["reasons"].items()}
    figures = {name: value for result in results for name, value in result["figures"].items()}
    view = View(
        title="Data validation",
        about=about,
        verdict=_verdict(checks, rows, failing),
        tiles=[(name, f"{rows[name]:,}") for name in (*TABLES, "labels") if name in rows],
        warnings=[line for result in results for line in result["warnings"]],
        failing=(listed := failing_of(reasons)),
        more_failing=failing - len(listed),
        suites=[suite for result in results for suite in suites_of(result)],
        balance=balance_of(figures.get("splits", ())),
        drift=drift_of(figures["drift"]) if "drift" in figures else None,
        notes=list(dict.fromkeys(note for result in results for note in result["notes"])),
    )
    return render(view)


def _verdict(checks: Sequence[Mapping[str, Any]], rows: Mapping[str, int], failing: int) -> Verdict:
    errors = [check for check in checks if check["severity"] == "error" and not check["success"]]
    warnings = sum(check["severity"] == "warning" and not check["success"] for check in checks)
    accepted = sum(rows.get(name, 0) for name in TABLES)
    if errors:
        lines = [f"{check['suite']}: {check['note']} ({check['unexpected']:,})" for check in errors]
        return Verdict("failed", f"{_count(len(errors), 'expectation')} failed, by {_count(failing, 'row')}", lines)
    holds = f"{len(checks) - warnings} expectations hold on {accepted:,} rows"
    if warnings:
        return Verdict("warned", f"Passed, with {_count(warnings, 'warning')}", [holds])
    return Verdict("passed", "Passed", [holds])


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
