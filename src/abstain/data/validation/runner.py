"""Run the expectations over tables, with Great Expectations: at ingest on the new batch, later on all of data/.

Notes:

* One mechanism checks rows, the training table and the drift figures: a table of plain columns, a suite of
  `Expectation`s, `run_suites`.
* Great Expectations is imported inside the one function that needs it: it costs seconds, and most commands
  never validate.
* `batch.validate` on an ephemeral context, without a checkpoint: nothing is stored or sent, and the failing
  rows come back by key. Its results are converted into plain dataclasses at once.
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
from abstain.data.validation.checks import ExistingData, Expectation, Severity, ValidatedRows, build_suites, percent
from abstain.data.validation.columns import Table, build_tables
from abstain.data.validation.results import SAMPLE, CheckResult, ValidationResult

if TYPE_CHECKING:
    import pandas as pd


__all__ = ["CheckResult", "ValidationResult", "run_suites", "validate"]

Failing = list[tuple[str, Any]]
"""Keys of the rows that fail a check, and their values."""


def validate(
    rows: ValidatedRows,
    known: ExistingData,
    params: ValidationParams,
    now: datetime,
    *,
    unknown_contexts: Severity = "error",
) -> ValidationResult:
    """Check `rows`, which come after `known`, against every suite, as seen at `now`.

    Raises `RuntimeError` where an expectation could not be evaluated: that is a bug, not bad data.
    """
    checked = bool(known.doc_ids)
    notes = (
        () if checked or not rows.interactions else ("interactions: without documents their contexts were not checked",)
    )
    expected = build_suites(params, with_documents=checked, unknown_contexts=unknown_contexts)
    return run_suites(build_tables(rows, known, now), expected, notes=notes)


def run_suites(
    tables: Mapping[str, Table | pd.DataFrame],
    suites: Mapping[str, Sequence[Expectation]],
    *,
    notes: Sequence[str] = (),
    figures: Mapping[str, Any] | None = None,
) -> ValidationResult:
    """Check each table, which has a column `row` of unique keys, against the suite of its name; skip empty ones."""
    filled = {name: table for name, table in tables.items() if len(table)}
    checks: list[CheckResult] = []
    reasons: dict[str, list[Reason]] = {}
    for name, failures in _evaluate(filled, suites).items():
        for check, failing in zip(suites[name], failures, strict=True):
            failed = [
                _reason_of(check, row, value)
                for row, value in failing[: SAMPLE if check.severity == "warning" else None]
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
                    sample=tuple(row for row, _ in failing[:SAMPLE]),
                    messages=tuple(map(str, failed[:SAMPLE])),
                    remark=str(_filled(check.reason, value="…", percent="…", row="…")),
                    code=check.reason.code,
                )
            )
            if check.severity == "error":
                for (row, _), reason in zip(failing, failed, strict=True):
                    reasons.setdefault(row, []).append(reason)
    return ValidationResult(
        rows={name: len(table) for name, table in tables.items()},
        checks=tuple(checks),
        reasons={row: tuple(dict.fromkeys(found)) for row, found in reasons.items()},
        notes=tuple(notes),
        figures=figures or {},
    )


def _evaluate(
    filled: Mapping[str, Table | pd.DataFrame], suites: Mapping[str, Sequence[Expectation]]
) -> dict[str, list[Failing]]:
    """For each table and check the failing rows, in the table's order."""
    if not filled:
        return {}
    os.environ["GX_ANALYTICS_ENABLED"] = "False"  # read when the package is imported
    import great_expectations as gx
    import pandas as pd

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    source = context.data_sources.add_pandas("rows")
    found: dict[str, list[Failing]] = {}
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
                for position, check in enumerate(suites[name])
            ],
        )
        outcome = batch.validate(
            suite, result_format={"result_format": "COMPLETE", "unexpected_index_column_names": ["row"]}
        )
        # The results' order is not the suite's, hence the position in `meta`.
        by_position = {result.expectation_config.meta["position"]: result for result in outcome.results}
        found[name] = [_failing(by_position[position], check) for position, check in enumerate(suites[name])]
    return found


def _failing(result: Any, check: Expectation) -> Failing:
    indices = result.result.get("unexpected_index_list")
    if result.success:
        return []
    if not indices:  # neither passed nor failed: it was never evaluated
        raise RuntimeError(f"{check.expectation} on {check.column} could not be evaluated: {result.exception_info}")
    return [(index["row"], index[check.column]) for index in indices]


def _reason_of(check: Expectation, row: str, value: Any) -> Reason:
    share = percent(value) if isinstance(value, float) else ""
    return _filled(check.reason, value=_readable(value), percent=share, row=_readable(row.partition("/")[2]))


def _filled(reason: Reason, **values: str) -> Reason:
    return replace(reason, message=reason.message.format(**values))


def _readable(value: Any) -> str:
    """A value for a one-line reason: short numbers, no line breaks."""
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:,.2f}".rstrip("0").rstrip(".") if abs(value) >= 0.01 else f"{value:.1g}"
    return " ".join(str(value).split())
