"""Validation results as plain data: for ingest, for JSON, for a report (`validation_report`).

Results of several batches are merged into one, which keeps the counts of all and the reasons of the first rows: a
million refused rows need no more memory than ten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from abstain.core.codes import Code
from abstain.core.reasons import Reasons
from abstain.data.validation.checks import TABLES, Severity

SAMPLE = 5
"""Failing rows that a check names."""

LISTED = 1_000
"""Failing rows whose reasons a merged result keeps."""

SHOWN = 50
"""Failing rows that a report lists."""

UNITS = {"drift": "measures", "splits": "splits", "labels": "labelled answers", "people": "users and reviewers"}
"""Names for the rows of tables other than those of data/."""


@dataclass(frozen=True)
class CheckResult:
    """One expectation's outcome. `sample` holds the keys of the first failing rows, `messages` what is wrong with them.

    `remark` is the message for a failing row without its value, `code` the cause.
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


@dataclass(frozen=True)
class ValidationResult:
    """`rows` by table. `reasons`: why each failing row fails, by its key; warnings fail no row.

    `unlisted` counts failing rows whose reasons were not kept. `figures` is the data of the charts.
    """

    rows: Mapping[str, int]
    checks: tuple[CheckResult, ...] = ()
    reasons: Mapping[str, Reasons] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
    unlisted: int = 0

    @classmethod
    def merge(cls, results: Iterable[ValidationResult]) -> ValidationResult:
        """One result for rows that were checked in turns."""
        merged = cls(rows={})
        for result in results:
            merged = merged._with(result)
        return merged

    @property
    def success(self) -> bool:
        """Whether every expectation of severity error holds."""
        return not self.errors

    @property
    def errors(self) -> tuple[CheckResult, ...]:
        """The error checks with failing rows."""
        return tuple(check for check in self.checks if check.severity == "error" and not check.success)

    @property
    def warnings(self) -> tuple[CheckResult, ...]:
        """The warning checks with failing rows."""
        return tuple(check for check in self.checks if check.severity == "warning" and not check.success)

    @property
    def n_failed_rows(self) -> int:
        """Rows that fail."""
        return len(self.reasons) + self.unlisted

    @property
    def skipped(self) -> tuple[str, ...]:
        """Tables without rows, which are not checked."""
        return tuple(name for name, count in self.rows.items() if not count)

    def warning_lines(self) -> list[str]:
        """The warnings with their codes, one line each: every figure, but for rows only their number."""
        lines: list[str] = []
        for check in self.warnings:
            if check.suite in TABLES:
                share = f"{check.failed_rows:,} of {self.rows[check.suite]:,} {check.suite}"
                lines.append(f"{check.code} {share}: {check.remark}")
            else:
                lines += [f"{check.code} {message}" for message in check.messages]
        return lines

    def first_failure(self) -> str:
        """One line about the first row that fails, in the order of their names."""
        key = min(self.reasons)
        return f"{' '.join(key.split())} first: {'; '.join(map(str, self.reasons[key]))}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the same rows give the same dictionary, in the same order."""
        skipped = [f"{name}: no rows, the suite was skipped" for name in self.skipped]
        return {
            "success": self.success,
            "rows": dict(self.rows),
            "notes": [*skipped, *self.notes],
            "warnings": self.warning_lines(),
            "expectations": [asdict(check) for check in self.checks],
            "failing": self.n_failed_rows,
            "reasons": {key: list(map(str, self.reasons[key])) for key in sorted(self.reasons)},
            "figures": dict(self.figures),
        }

    def _with(self, other: ValidationResult) -> ValidationResult:
        reasons = {**self.reasons, **other.reasons}
        kept = dict(list(reasons.items())[:LISTED])
        checks = {_identity(check): check for check in self.checks}
        for check in other.checks:
            known = checks.get(_identity(check))
            checks[_identity(check)] = check if known is None else _merge_checks(known, check)
        return ValidationResult(
            rows={name: self.rows.get(name, 0) + other.rows.get(name, 0) for name in {**self.rows, **other.rows}},
            checks=tuple(checks.values()),
            reasons=kept,
            notes=tuple(dict.fromkeys((*self.notes, *other.notes))),
            figures={**self.figures, **other.figures},
            unlisted=self.unlisted + other.unlisted + len(reasons) - len(kept),
        )


def describe_condition(expectation: str, arguments: Mapping[str, Any]) -> str:
    """The condition on a column, in few words."""
    if expectation == "ExpectColumnValuesToBeBetween":
        low, high = arguments.get("min_value"), arguments.get("max_value")
        lower = "" if low is None else f"{'above' if arguments.get('strict_min') else 'at least'} {_figure(low)}"
        upper = "" if high is None else f"at most {_figure(high)}"
        return f"{lower}, {upper}" if lower and upper else lower or upper
    if expectation == "ExpectColumnValuesToBeInSet":
        return " or ".join(str(value) or "empty" for value in arguments["value_set"])
    return {"ExpectColumnValuesToNotBeNull": "present", "ExpectColumnValuesToBeUnique": "unique"}[expectation]


def _identity(check: CheckResult) -> tuple[str, ...]:
    return check.suite, check.column, check.expectation, check.severity, check.remark


def _merge_checks(one: CheckResult, other: CheckResult) -> CheckResult:
    return replace(
        one,
        success=one.success and other.success,
        unexpected=one.failed_rows + other.failed_rows,
        sample=(*one.sample, *other.sample)[:SAMPLE],
        messages=(*one.messages, *other.messages)[:SAMPLE],
    )


def _figure(value: float) -> str:
    return f"{int(value):,}" if float(value).is_integer() else f"{value:g}"
