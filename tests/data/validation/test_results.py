from typing import Any

import pytest

from abstain.core.codes import Code
from abstain.core.reasons import Reason
from abstain.data.validation.results import MAX_LISTED_ROWS, CheckResult, ValidationResult, describe_condition

EMPTY = Reason(Code.FAILED_CHECK, "text", "this field is empty")


def make_result(*failing: str, suite: str = "interactions", severity: str = "error") -> ValidationResult:
    """Make the result of one check of ten rows, in which these fail."""
    keys = tuple(f"{suite}/{name}" for name in failing)
    check = CheckResult(
        suite=suite,
        expectation="ExpectColumnValuesToNotBeNull",
        column="text",
        arguments={},
        severity=severity,
        success=not failing,
        failed_rows=len(failing),
        sample=keys,
        messages=tuple(f"{key}: empty" for key in keys),
        remark="text: this field is empty",
        code=Code.DRIFT if suite == "drift" else Code.FAILED_CHECK,
    )
    return ValidationResult({suite: 10}, (check,), dict.fromkeys(keys, (EMPTY,)) if severity == "error" else {})


def test_merge_keeps_first_reasons() -> None:
    many = {f"interactions/{at:05d}": (EMPTY,) for at in range(MAX_LISTED_ROWS)}
    first = ValidationResult({"interactions": MAX_LISTED_ROWS}, reasons=many)
    more = ValidationResult({"interactions": 3}, reasons={f"interactions/x{at}": (EMPTY,) for at in range(3)})
    merged = ValidationResult.merge([first, more, more.merge([ValidationResult({"feedback": 0})])])
    assert merged.reasons == many
    assert (merged.n_failed_rows, merged.unlisted) == (MAX_LISTED_ROWS + 3, 3)
    assert merged.all_notes == ("feedback: no rows, the suite was skipped",)


def test_describe_first_failure_multiline_key_is_one_line() -> None:
    first = make_result("a\n# b | c").describe_first_failure()
    assert first == "interactions/a # b | c first: text: this field is empty"


def test_format_warnings_counts_rows() -> None:
    both = ValidationResult.merge(
        [make_result("a", "b", severity="warning"), make_result("x", suite="drift", severity="warning")]
    )
    assert both.success
    assert both.format_warnings() == ["A104 2 of 10 interactions: text: this field is empty", "A108 drift/x: empty"]


@pytest.mark.parametrize(
    ("expectation", "arguments", "condition"),
    [
        ("BeBetween", {"min_value": 0, "max_value": 1, "strict_min": True}, "above 0, at most 1"),
        ("BeBetween", {"max_value": 20_000.0}, "at most 20,000"),
        ("BeBetween", {"min_value": 0.05}, "at least 0.05"),
        ("BeInSet", {"value_set": ["up", ""]}, "up or empty"),
        ("BeUnique", {}, "unique"),
    ],
)
def test_describe_condition_examples(expectation: str, arguments: dict[str, Any], condition: str) -> None:
    assert describe_condition(f"ExpectColumnValuesTo{expectation}", arguments) == condition
