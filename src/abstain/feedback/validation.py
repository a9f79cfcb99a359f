"""Run the expectations over rows, with Great Expectations: at ingest on what arrives, later on all of data/.

Three decisions:

* One mechanism for both. Ingest asks which rows fail and quarantines them; the DVC stage asks whether any do.
* Great Expectations is imported inside the one function that needs it: it costs seconds, and most commands
  never validate.
* `batch.validate` on an ephemeral context, without a checkpoint: nothing is stored or sent, and the failing
  rows come back by key. Its results are taken over into plain dataclasses at once.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from abstain.feedback.checks import TABLES, Check, Severity, Table, suites, tables
from abstain.feedback.store import Dataset
from abstain.params import ValidationParams

SAMPLE = 5


@dataclass(frozen=True)
class CheckResult:
    """One expectation's outcome; `sample` holds the keys of the first failing rows, `note` says what they are."""

    suite: str
    expectation: str
    column: str
    arguments: Mapping[str, Any]
    severity: Severity
    success: bool
    unexpected: int
    sample: tuple[str, ...]
    note: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "suite": self.suite,
            "expectation": self.expectation,
            "column": self.column,
            "arguments": dict(self.arguments),
            "severity": self.severity,
            "success": self.success,
            "unexpected": self.unexpected,
            "sample": list(self.sample),
            "note": self.note,
        }


@dataclass(frozen=True)
class ValidationResult:
    """`reasons`: why each failing row fails, by `store.row_key`. Warnings fail no row."""

    rows: Mapping[str, int]
    checks: tuple[CheckResult, ...] = ()
    reasons: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def success(self) -> bool:
        """Whether every expectation of severity error holds."""
        return all(check.success for check in self.checks if check.severity == "error")

    @property
    def warnings(self) -> tuple[CheckResult, ...]:
        """The warnings that found something."""
        return tuple(check for check in self.checks if check.severity == "warning" and not check.success)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the same rows give the same dictionary, in the same order."""
        return {
            "success": self.success,
            "rows": dict(self.rows),
            "notes": list(self.notes),
            "expectations": [check.to_dict() for check in self.checks],
            "reasons": {key: list(self.reasons[key]) for key in sorted(self.reasons)},
        }

    def to_markdown(self) -> str:
        """A report: the verdict, one table of expectations a suite, the failing rows."""
        errors = sum(not check.success for check in self.checks if check.severity == "error")
        verdict = f"{errors} expectations fail" if errors else "every expectation holds"
        lines = ["# Data validation", "", f"**{'Failed' if errors else 'Passed'}**: {verdict}."]
        lines += [""] * bool(self.notes) + [f"- {note}" for note in self.notes]
        for suite in TABLES:
            checks = [check for check in self.checks if check.suite == suite]
            if not checks:
                continue
            lines += ["", f"## {suite} ({self.rows[suite]:,} rows)", ""]
            lines += ["| column | must be | outcome | failing rows | for example |", "| --- | --- | --- | ---: | --- |"]
            for check in checks:
                outcome = "ok" if check.success else {"error": "**fails**", "warning": "warning"}[check.severity]
                sample = ", ".join(key.partition("/")[2] for key in check.sample)
                lines.append(
                    f"| {check.column} | {_condition(check)} | {outcome} | {check.unexpected} | {_cell(sample)} |"
                )
        if self.reasons:
            lines += ["", "## Rows that fail", ""]
            lines += [f"- `{key}`: {'; '.join(self.reasons[key])}" for key in sorted(self.reasons)[:50]]
            lines += [f"- and {len(self.reasons) - 50} more"] if len(self.reasons) > 50 else []
        return "\n".join(lines) + "\n"


def validate(dataset: Dataset, params: ValidationParams, now: datetime) -> ValidationResult:
    """Check `dataset` against every suite, as seen at `now`.

    Raises `RuntimeError` where an expectation could not be evaluated: that is a bug, not bad data.
    """
    checks: list[CheckResult] = []
    reasons: dict[str, list[str]] = {}
    columns = tables(dataset, now)
    expected = suites(params, with_documents=bool(dataset.documents))
    filled = {name: columns[name] for name in TABLES if columns[name]}
    notes = [f"{name}: no rows, the suite was skipped" for name in TABLES if name not in filled]
    if dataset.interactions and not dataset.documents:
        notes.append("interactions: without documents their contexts were not checked")
    for name, failures in _evaluate(filled, expected).items():
        for check, failing in zip(expected[name], failures, strict=True):
            sample = tuple(row for row, _ in failing[:SAMPLE])
            checks.append(
                CheckResult(
                    suite=name,
                    expectation=check.expectation,
                    column=check.column,
                    arguments=check.arguments,
                    severity=check.severity,
                    success=not failing,
                    unexpected=len(failing),
                    sample=sample,
                    note=check.reason.replace("{value}", "…"),
                )
            )
            if check.severity == "error":
                for row, value in failing:
                    reasons.setdefault(row, []).append(check.reason.format(value=_readable(value)))
    return ValidationResult(
        rows={name: len(columns[name]) for name in TABLES},
        checks=tuple(checks),
        reasons={row: tuple(dict.fromkeys(found)) for row, found in reasons.items()},
        notes=tuple(notes),
    )


def _evaluate(
    filled: Mapping[str, Table], expected: Mapping[str, Sequence[Check]]
) -> dict[str, list[list[tuple[str, Any]]]]:
    """For each table and check the failing rows, as (key, value) in the table's order."""
    if not filled:
        return {}
    os.environ["GX_ANALYTICS_ENABLED"] = "False"  # read when the package is imported
    import great_expectations as gx
    import pandas as pd

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    source = context.data_sources.add_pandas("rows")
    found: dict[str, list[list[tuple[str, Any]]]] = {}
    for name, table in filled.items():
        definition = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe("all")
        batch = definition.get_batch({"dataframe": pd.DataFrame(table)})
        suite = gx.ExpectationSuite(
            name,
            expectations=[
                getattr(gx.expectations, check.expectation)(
                    column=check.column,
                    severity={"error": "critical", "warning": "warning"}[check.severity],
                    meta={"position": position},
                    **check.arguments,
                )
                for position, check in enumerate(expected[name])
            ],
        )
        outcome = batch.validate(
            suite, result_format={"result_format": "COMPLETE", "unexpected_index_column_names": ["row"]}
        )
        # The results' order is not the suite's, hence the position in `meta`.
        by_position = {result.expectation_config.meta["position"]: result for result in outcome.results}
        found[name] = [_failing(by_position[position], check) for position, check in enumerate(expected[name])]
    return found


def _failing(result: Any, check: Check) -> list[tuple[str, Any]]:
    indices = result.result.get("unexpected_index_list")
    if result.success:
        return []
    if not indices:  # neither passed nor failed by rows: it was never evaluated
        raise RuntimeError(f"{check.expectation} on {check.column} could not be evaluated: {result.exception_info}")
    return [(index["row"], index[check.column]) for index in indices]


def _condition(check: CheckResult) -> str:
    """What the column must be, in few words."""
    if check.expectation == "ExpectColumnValuesToBeBetween":
        low, high = check.arguments.get("min_value"), check.arguments.get("max_value")
        lower = "" if low is None else f"{'above' if check.arguments.get('strict_min') else 'at least'} {low:,}"
        upper = "" if high is None else f"at most {high:,}"
        return f"{lower}, {upper}" if lower and upper else lower or upper
    if check.expectation == "ExpectColumnValuesToBeInSet":
        return " or ".join(str(value) or "empty" for value in check.arguments["value_set"])
    return {"ExpectColumnValuesToNotBeNull": "present", "ExpectColumnValuesToBeUnique": "unique"}[check.expectation]


def _readable(value: Any) -> str:
    """A value for a one-line reason: short numbers, no line breaks."""
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:,.2f}".rstrip("0").rstrip(".") if abs(value) >= 0.01 else f"{value:.1g}"
    return " ".join(str(value).split())


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
