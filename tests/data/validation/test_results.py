from hypothesis import given
from hypothesis import strategies as st

from abstain.core.codes import Code
from abstain.core.reasons import Reason
from abstain.data.validation.results import (
    MAX_LISTED_ROWS,
    MAX_SAMPLE_ROWS,
    CheckResult,
    ValidationResult,
    describe_condition,
)

EMPTY = Reason(Code.FAILED_CHECK, "text", "this field is empty")


def make_check(suite: str, column: str, failing: list[str], severity: str = "error") -> CheckResult:
    keys = tuple(f"{suite}/{name}" for name in failing)
    return CheckResult(
        suite=suite,
        expectation="ExpectColumnValuesToNotBeNull",
        column=column,
        arguments={},
        severity=severity,
        success=not failing,
        failed_rows=len(failing),
        sample=keys[:MAX_SAMPLE_ROWS],
        messages=tuple(f"{key}: empty" for key in keys[:MAX_SAMPLE_ROWS]),
        remark=f"{column}: this field is empty",
        code=Code.DRIFT if suite == "drift" else Code.FAILED_CHECK,
    )


def make_result(*checks: CheckResult, rows: int = 10) -> ValidationResult:
    reasons = {key: (EMPTY,) for check in checks if check.severity == "error" for key in check.sample}
    return ValidationResult({check.suite: rows for check in checks}, checks, reasons)


FAILING = st.lists(st.uuids().map(str), max_size=MAX_SAMPLE_ROWS, unique=True)
RESULTS = st.lists(
    st.builds(
        lambda suite, failing, severity: make_result(make_check(suite, "text", failing, severity)),
        st.sampled_from(["interactions", "feedback", "drift"]),
        FAILING,
        st.sampled_from(["error", "warning"]),
    ),
    max_size=5,
)


@given(RESULTS)
def test_merge_adds_counts(results: list[ValidationResult]) -> None:
    merged = ValidationResult.merge(results)
    assert sum(merged.rows.values()) == sum(sum(one.rows.values()) for one in results)
    assert sum(c.failed_rows for c in merged.checks) == sum(c.failed_rows for one in results for c in one.checks)
    assert merged.success == all(one.success for one in results)
    assert merged.n_failed_rows == sum(one.n_failed_rows for one in results)
    assert all(
        len(check.sample) <= MAX_SAMPLE_ROWS and len(check.messages) <= MAX_SAMPLE_ROWS for check in merged.checks
    )
    assert ValidationResult.merge([merged]) == merged


def test_merge_keeps_first_reasons() -> None:
    many = {f"interactions/{at:05d}": (EMPTY,) for at in range(MAX_LISTED_ROWS)}
    first = ValidationResult({"interactions": MAX_LISTED_ROWS}, reasons=many)
    more = ValidationResult({"interactions": 3}, reasons={f"interactions/x{at}": (EMPTY,) for at in range(3)})
    merged = ValidationResult.merge([first, more, more.merge([ValidationResult({"feedback": 0})])])
    assert merged.reasons == many
    assert (merged.n_failed_rows, merged.unlisted) == (MAX_LISTED_ROWS + 3, 3)
    assert merged.all_notes == ("feedback: no rows, the suite was skipped",)


def test_describe_first_failure_multiline_key_is_one_line() -> None:
    result = make_result(make_check("interactions", "text", ["a\n# b | c"]))
    assert result.describe_first_failure() == "interactions/a # b | c first: text: this field is empty"


def test_format_warnings_counts_rows() -> None:
    both = make_result(
        make_check("interactions", "text", ["a", "b"], "warning"), make_check("drift", "shift", ["x"], "warning")
    )
    assert both.success
    assert both.format_warnings() == ["A104 2 of 10 interactions: text: this field is empty", "A108 drift/x: empty"]


def test_describe_condition_examples() -> None:
    between, one_of = "ExpectColumnValuesToBeBetween", "ExpectColumnValuesToBeInSet"
    assert describe_condition(between, {"min_value": 0, "max_value": 1, "strict_min": True}) == "above 0, at most 1"
    assert describe_condition(between, {"max_value": 20_000.0}) == "at most 20,000"
    assert describe_condition(between, {"min_value": 0.05}) == "at least 0.05"
    assert describe_condition(one_of, {"value_set": ["up", ""]}) == "up or empty"
    assert describe_condition("ExpectColumnValuesToBeUnique", {}) == "unique"
