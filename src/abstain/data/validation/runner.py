"""Check expectations on tables with Great Expectations: at ingest on the new batch, later on all of data/.

Notes:

* One mechanism checks rows, the training table and the drift statistics: a table of plain columns, a suite of
  `Expectation`s, `run_suites`.
* Great Expectations is imported inside the only function that needs it: the import takes seconds, and most commands
  never validate.
* `batch.validate` runs on an ephemeral context, without a checkpoint: nothing is stored or sent, and the failing rows
  are returned by key. Its results are converted into plain dataclasses at once.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from abstain.config.params import ValidationParams
from abstain.core.reasons import Reason
from abstain.data.validation.checks import (
    ExistingData,
    Expectation,
    Severity,
    ValidatedRows,
    build_suites,
    format_short_percent,
)
from abstain.data.validation.columns import Table, build_tables
from abstain.data.validation.results import MAX_SAMPLE_ROWS, CheckResult, ValidationResult

if TYPE_CHECKING:
    import pandas as pd


__all__ = ["CheckResult", "ValidationResult", "run_suites", "validate"]

FailingRows = list[tuple[str, Any]]
"""Keys of the rows that fail a check, with their values."""


def validate(
    rows: ValidatedRows,
    existing: ExistingData,
    params: ValidationParams,
    now: datetime,
    *,
    unknown_contexts: Severity = "error",
) -> ValidationResult:
    """Check rows against every suite.

    Args:
        rows: Rows to check.
        existing: Data that arrived before them.
        params: `validation` of params.yaml.
        now: Current time in UTC.
        unknown_contexts: Severity of a context that no document contains.

    Returns:
        The result.

    Raises:
        RuntimeError: An expectation could not be evaluated: that is a bug, not bad data.
    """
    has_documents = bool(existing.doc_ids)
    is_unchecked = rows.interactions and not has_documents
    notes = ("interactions: without documents their contexts were not checked",) if is_unchecked else ()
    suites = build_suites(params, with_documents=has_documents, unknown_contexts=unknown_contexts)
    return run_suites(build_tables(rows, existing, now), suites, notes=notes)


def run_suites(
    tables: Mapping[str, Table | pd.DataFrame],
    suites: Mapping[str, Sequence[Expectation]],
    *,
    notes: Sequence[str] = (),
) -> ValidationResult:
    """Check each table against the suite of its name; empty tables are skipped.

    Args:
        tables: Name -> table with a column `row` of unique keys.
        suites: Name -> expectations.
        notes: Notes of the result.

    Returns:
        The result.

    Raises:
        RuntimeError: An expectation could not be evaluated.
    """
    nonempty_tables = {name: table for name, table in tables.items() if len(table)}
    checks: list[CheckResult] = []
    reasons: dict[str, list[Reason]] = {}
    for name, failures in _evaluate(nonempty_tables, suites).items():
        for check, failing in zip(suites[name], failures, strict=True):
            failure_reasons = [
                _make_reason(check, row, value)
                for row, value in failing[: MAX_SAMPLE_ROWS if check.severity == "warning" else None]
            ]
            checks.append(
                CheckResult(
                    suite=name,
                    expectation=check.expectation,
                    column=check.column,
                    arguments=check.arguments,
                    severity=check.severity,
                    success=not failing,
                    failed_rows=len(failing),
                    sample=tuple(row for row, _ in failing[:MAX_SAMPLE_ROWS]),
                    messages=tuple(map(str, failure_reasons[:MAX_SAMPLE_ROWS])),
                    remark=str(_fill_reason(check.reason, value="…", percent="…", row="…")),
                    code=check.reason.code,
                )
            )
            if check.severity == "error":
                for (row, _), reason in zip(failing, failure_reasons, strict=True):
                    reasons.setdefault(row, []).append(reason)
    return ValidationResult(
        rows={name: len(table) for name, table in tables.items()},
        checks=tuple(checks),
        reasons={row: tuple(dict.fromkeys(row_reasons)) for row, row_reasons in reasons.items()},
        notes=tuple(notes),
    )


def _evaluate(
    tables: Mapping[str, Table | pd.DataFrame], suites: Mapping[str, Sequence[Expectation]]
) -> dict[str, list[FailingRows]]:
    """Return the failing rows of each table and check, in the table's order."""
    if not tables:
        return {}
    os.environ["GX_ANALYTICS_ENABLED"] = "False"  # read when the package is imported
    import great_expectations as gx
    import pandas as pd

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    source = context.data_sources.add_pandas("rows")
    failures_by_table: dict[str, list[FailingRows]] = {}
    for name, table in tables.items():
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
                for position, check in enumerate(suites[name])
            ],
        )
        outcome = batch.validate(
            suite, result_format={"result_format": "COMPLETE", "unexpected_index_column_names": ["row"]}
        )
        # The results' order is not the suite's, hence the position in `meta`.
        by_position = {result.expectation_config.meta["position"]: result for result in outcome.results}
        failures_by_table[name] = [
            _list_failing_rows(by_position[position], check) for position, check in enumerate(suites[name])
        ]
    return failures_by_table


def _list_failing_rows(result: Any, check: Expectation) -> FailingRows:
    indices = result.result.get("unexpected_index_list")
    if result.success:
        return []
    if not indices:  # neither passed nor failed: it was never evaluated
        raise RuntimeError(f"{check.expectation} on {check.column} could not be evaluated: {result.exception_info}")
    return [(index["row"], index[check.column]) for index in indices]


def _make_reason(check: Expectation, row: str, value: Any) -> Reason:
    share = format_short_percent(value) if isinstance(value, float) else ""
    return _fill_reason(
        check.reason, value=_format_value(value), percent=share, row=_format_value(row.partition("/")[2])
    )


def _fill_reason(reason: Reason, **values: str) -> Reason:
    return replace(reason, message=reason.message.format(**values))


def _format_value(value: Any) -> str:
    """Format a value for a one-line reason: short numbers, no line breaks."""
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:,.2f}".rstrip("0").rstrip(".") if abs(value) >= 0.01 else f"{value:.1g}"
    return " ".join(str(value).split())
