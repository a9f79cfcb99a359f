"""Validation results as plain data: for ingest, for JSON, for a report.

Results of several batches are merged into one, which keeps the counts of all and the reasons of the first rows: a
million rejected rows need no more memory than ten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from abstain.core.codes import Code
from abstain.core.reasons import Reasons
from abstain.data.validation.checks import TABLES, Severity

MAX_SAMPLE_ROWS = 5
"""Maximum number of failing rows that a check names."""

MAX_LISTED_ROWS = 1_000
"""Maximum number of failing rows whose reasons a merged result keeps."""

MAX_REPORTED_ROWS = 50
"""Maximum number of failing rows that a report lists."""

UNITS = {"drift": "measures", "splits": "splits", "labels": "labelled answers", "people": "users and reviewers"}
"""Names for the rows of tables other than those of data/."""


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one expectation.

    Attributes:
        suite: Name of the table.
        expectation: Name of the class in Great Expectations.
        column: Name of the column.
        arguments: Arguments of the expectation.
        severity: "error" or "warning".
        success: Whether no row fails.
        failed_rows: Number of failing rows.
        sample: Keys of the first failing rows.
        messages: Messages for these rows.
        remark: Message for a failing row without its value.
        code: Code of the cause.
    """

    suite: str
    expectation: str
    column: str
    arguments: Mapping[str, Any]
    severity: Severity
    success: bool
    failed_rows: int
    sample: tuple[str, ...]
    messages: tuple[str, ...]
    remark: str
    code: Code

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class ValidationResult:
    """The outcome of a validation.

    Attributes:
        rows: Table -> number of rows.
        checks: Outcomes of the expectations.
        reasons: Key of a failing row -> reasons; warnings fail no row.
        notes: Remarks on checks that were skipped.
        statistics: Data of the charts.
        unlisted: Number of failing rows whose reasons were not kept.
    """

    rows: Mapping[str, int]
    checks: tuple[CheckResult, ...] = ()
    reasons: Mapping[str, Reasons] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    statistics: Mapping[str, Any] = field(default_factory=dict)
    unlisted: int = 0

    @classmethod
    def merge(cls, results: Iterable[ValidationResult]) -> ValidationResult:
        """Merge results of rows that were checked one part after another."""
        merged = cls(rows={})
        for result in results:
            merged = merged._merge_result(result)
        return merged

    @property
    def success(self) -> bool:
        """Whether every expectation of severity error holds."""
        return not self.errors

    @property
    def errors(self) -> tuple[CheckResult, ...]:
        """The checks of severity error with failing rows."""
        return tuple(check for check in self.checks if check.severity == "error" and not check.success)

    @property
    def warnings(self) -> tuple[CheckResult, ...]:
        """The checks of severity warning with failing rows."""
        return tuple(check for check in self.checks if check.severity == "warning" and not check.success)

    @property
    def n_failed_rows(self) -> int:
        """Number of failing rows."""
        return len(self.reasons) + self.unlisted

    @property
    def skipped_tables(self) -> tuple[str, ...]:
        """Tables without rows, which are not checked."""
        return tuple(name for name, count in self.rows.items() if not count)

    def format_warnings(self) -> list[str]:
        """Return the warnings with their codes, one line each; for tables of data/ only the number of failing rows."""
        lines: list[str] = []
        for check in self.warnings:
            if check.suite in TABLES:
                share = f"{check.failed_rows:,} of {self.rows[check.suite]:,} {check.suite}"
                lines.append(f"{check.code} {share}: {check.remark}")
            else:
                lines += [f"{check.code} {message}" for message in check.messages]
        return lines

    def describe_first_failure(self) -> str:
        """Return one line about the failing row whose key is the first."""
        key = min(self.reasons)
        return f"{' '.join(key.split())} first: {'; '.join(map(str, self.reasons[key]))}"

    def to_dict(self) -> dict[str, Any]:
        """Return the result for JSON: the same rows give the same dictionary, in the same order."""
        skipped = [f"{name}: no rows, the suite was skipped" for name in self.skipped_tables]
        return {
            "success": self.success,
            "rows": dict(self.rows),
            "notes": [*skipped, *self.notes],
            "warnings": self.format_warnings(),
            "expectations": [check.to_dict() for check in self.checks],
            "failing": self.n_failed_rows,
            "reasons": {key: list(map(str, self.reasons[key])) for key in sorted(self.reasons)},
            "statistics": dict(self.statistics),
        }

    def _merge_result(self, result: ValidationResult) -> ValidationResult:
        reasons = {**self.reasons, **result.reasons}
        listed_reasons = dict(list(reasons.items())[:MAX_LISTED_ROWS])
        checks = {_get_identity(check): check for check in self.checks}
        for check in result.checks:
            earlier = checks.get(_get_identity(check))
            checks[_get_identity(check)] = check if earlier is None else _merge_checks(earlier, check)
        return ValidationResult(
            rows={name: self.rows.get(name, 0) + result.rows.get(name, 0) for name in {**self.rows, **result.rows}},
            checks=tuple(checks.values()),
            reasons=listed_reasons,
            notes=tuple(dict.fromkeys((*self.notes, *result.notes))),
            statistics={**self.statistics, **result.statistics},
            unlisted=self.unlisted + result.unlisted + len(reasons) - len(listed_reasons),
        )


def describe_condition(expectation: str, arguments: Mapping[str, Any]) -> str:
    """Describe the condition on a column in a few words.

    Args:
        expectation: Name of the class in Great Expectations.
        arguments: Its arguments.

    Returns:
        The description, such as "at least 1, at most 1,000".
    """
    if expectation == "ExpectColumnValuesToBeBetween":
        low, high = arguments.get("min_value"), arguments.get("max_value")
        lower = "" if low is None else f"{'above' if arguments.get('strict_min') else 'at least'} {_format_number(low)}"
        upper = "" if high is None else f"at most {_format_number(high)}"
        return f"{lower}, {upper}" if lower and upper else lower or upper
    if expectation == "ExpectColumnValuesToBeInSet":
        return " or ".join(str(value) or "empty" for value in arguments["value_set"])
    return {"ExpectColumnValuesToNotBeNull": "present", "ExpectColumnValuesToBeUnique": "unique"}[expectation]


def _get_identity(check: CheckResult) -> tuple[str, ...]:
    return check.suite, check.column, check.expectation, check.severity, check.remark


def _merge_checks(first: CheckResult, second: CheckResult) -> CheckResult:
    return replace(
        first,
        success=first.success and second.success,
        failed_rows=first.failed_rows + second.failed_rows,
        sample=(*first.sample, *second.sample)[:MAX_SAMPLE_ROWS],
        messages=(*first.messages, *second.messages)[:MAX_SAMPLE_ROWS],
    )


def _format_number(value: float) -> str:
    return f"{int(value):,}" if float(value).is_integer() else f"{value:g}"
