"""Validation results as plain data: for ingest, for JSON, for a report.

Results of several batches are merged into one, which keeps the counts of all and the reasons of the first rows: a
million rejected rows need no more memory than ten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Annotated, Any

from pydantic import AliasPath, BeforeValidator, Field, TypeAdapter

from abstain.core.codes import Code
from abstain.core.reasons import Reason, Reasons
from abstain.data.validation.checks import TABLES, Severity

MAX_SAMPLE_ROWS = 5
"""Maximum number of failing rows that a check names."""

MAX_LISTED_ROWS = 1_000
"""Maximum number of failing rows whose reasons a merged result keeps."""

MAX_REPORTED_ROWS = 50
"""Maximum number of failing rows that a report lists."""

UNITS = {"drift": "measures", "splits": "splits", "labels": "labelled answers", "people": "users and reviewers"}
"""Names for the rows of tables other than those of data/."""

_ReadReasons = BeforeValidator(lambda texts: tuple(Reason(Code.FAILED_CHECK, "", text) for text in texts))


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


@dataclass(frozen=True)
class DriftStatistics:
    """Data of the charts of drift: of the `newest` batches, and of those before.

    Attributes:
        limit: Largest shift without a warning.
        rows: "newest" and "previous" -> number of interactions.
        shift: Measure -> its population stability index.
        newest: Measure -> class -> number of interactions.
        previous: The same, of the batches before.
    """

    limit: float
    rows: Mapping[str, int]
    shift: Mapping[str, float]
    newest: Mapping[str, Mapping[str, int]]
    previous: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class SplitLabels:
    """Number of labelled answers of a split, of correct ones, and of those with a review."""

    split: str
    answers: int
    correct: int
    reviewed: int


@dataclass(frozen=True)
class ValidationResult:
    """The outcome of a validation.

    Attributes:
        rows: Table -> number of rows.
        checks: Outcomes of the expectations.
        reasons: Key of a failing row -> reasons, of which a file has only the texts; warnings fail no row.
        notes: Remarks on checks that were skipped.
        drift: Data of the charts of drift; None if it was not judged.
        splits: Labels of each split of the training table.
        unlisted: Number of failing rows whose reasons were not kept.
        as_of: Time as of which all accepted rows were checked; empty for other rows.
    """

    rows: Mapping[str, int]
    checks: Annotated[tuple[CheckResult, ...], Field(alias="expectations")] = ()
    reasons: Mapping[str, Annotated[Reasons, _ReadReasons]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    drift: Annotated[DriftStatistics | None, Field(validation_alias=AliasPath("statistics", "drift"))] = None
    splits: Annotated[tuple[SplitLabels, ...], Field(validation_alias=AliasPath("statistics", "splits"))] = ()
    unlisted: int = 0
    as_of: str = ""

    @classmethod
    def merge(cls, results: Iterable[ValidationResult]) -> ValidationResult:
        """Merge results of rows that were checked one part after another."""
        results = list(results)
        checks: dict[tuple[str, ...], CheckResult] = {}
        for check in (check for result in results for check in result.checks):
            identity = (check.suite, check.column, check.expectation, check.severity, check.remark)
            checks[identity] = _merge_checks(checks[identity], check) if identity in checks else check
        reasons = {key: row_reasons for result in results for key, row_reasons in result.reasons.items()}
        return cls(
            rows={name: sum(each.rows.get(name, 0) for each in results) for result in results for name in result.rows},
            checks=tuple(checks.values()),
            reasons=dict(islice(reasons.items(), MAX_LISTED_ROWS)),
            notes=tuple(dict.fromkeys(note for result in results for note in result.notes)),
            drift=next((result.drift for result in results if result.drift), None),
            splits=next((result.splits for result in results if result.splits), ()),
            unlisted=sum(result.unlisted for result in results) + max(len(reasons) - MAX_LISTED_ROWS, 0),
            as_of=max((result.as_of for result in results), default=""),
        )

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> ValidationResult:
        """Check the parsed content of validation.json or quality.json."""
        result = TypeAdapter(cls).validate_python(content)
        return replace(result, unlisted=content["failing"] - len(result.reasons))

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
    def all_notes(self) -> tuple[str, ...]:
        """The tables without rows, which are not checked, and the notes."""
        skipped = (f"{name}: no rows, the suite was skipped" for name, count in self.rows.items() if not count)
        return tuple(dict.fromkeys((*skipped, *self.notes)))

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
        drift = {"drift": asdict(self.drift)} if self.drift else {}
        splits = {"splits": [asdict(split) for split in self.splits]} if self.splits else {}
        return {
            "success": self.success,
            "rows": dict(self.rows),
            "notes": list(self.all_notes),
            "warnings": self.format_warnings(),
            "expectations": [asdict(check) for check in self.checks],
            "failing": self.n_failed_rows,
            "reasons": {key: list(map(str, self.reasons[key])) for key in sorted(self.reasons)},
            "statistics": drift | splits,
            **({"as_of": self.as_of} if self.as_of else {}),
        }


def describe_condition(expectation: str, arguments: Mapping[str, Any]) -> str:
    """Describe the condition that an expectation puts on a column, such as "at least 1, at most 1,000"."""
    if expectation == "ExpectColumnValuesToBeBetween":
        low, high = arguments.get("min_value"), arguments.get("max_value")
        lower = "" if low is None else f"{'above' if arguments.get('strict_min') else 'at least'} {_format_number(low)}"
        upper = "" if high is None else f"at most {_format_number(high)}"
        return f"{lower}, {upper}" if lower and upper else lower or upper
    if expectation == "ExpectColumnValuesToBeInSet":
        return " or ".join(str(value) or "empty" for value in arguments["value_set"])
    return {"ExpectColumnValuesToNotBeNull": "present", "ExpectColumnValuesToBeUnique": "unique"}[expectation]


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
