"""Everything that validates training data runs the real Great Expectations suites."""

import re
from typing import Any

import pandas as pd
import pytest

from abstain.core.codes import Code
from abstain.core.reasons import Reason
from abstain.data.labels.contradictions import Contradiction, Contradictions
from abstain.data.validation import results
from abstain.data.validation.quality import compute_text_digest, compute_text_digests, validate_training
from abstain.data.validation.results import CheckResult, SplitLabels, ValidationResult, describe_condition
from tests.checkout import shipped_params
from tests.factories import interaction

QUALITY = shipped_params().quality
SPLITS = ("train", "validation", "holdout", "newest")


def make_table(rows: int = 40, **changes: list) -> pd.DataFrame:
    """Make this number of reviewed answers for each split, half of them correct, each in a group of its own."""
    number = rows * len(SPLITS)
    frame = pd.DataFrame({"correct": [at % 2 for at in range(number)], "source": "review"}).assign(
        interaction_id=[f"i-{at}" for at in range(number)],
        group=[f"g-{at}" for at in range(number)],
        split=[split for split in SPLITS for _ in range(rows)],
        **dict.fromkeys(("reviews_disagree", "thumbs_disagree", "duplicate_in_training"), False),
    )
    for column, values in changes.items():
        frame[column] = values + frame[column].tolist()[len(values) :]
    return frame


def validate_table(frame: pd.DataFrame, left_out: int = 0, flagged: tuple = (), **copies: str) -> ValidationResult:
    """Validate a table; `copies` have the text of another row, as in i_1="i-2"."""
    digests = pd.Series(range(len(frame)), index=pd.Index(frame["interaction_id"]), dtype="int64")
    for one, other in copies.items():
        digests[one.replace("_", "-")] = digests[other]
    return validate_training(frame, digests, left_out, Contradictions(3, flagged).messages, QUALITY)


def test_compute_text_digest_depends_on_words_only() -> None:
    def digest(question: str, answer: str, key: str = "i-1") -> int:
        return compute_text_digest(interaction(key, question=question, answer=answer))

    fee = digest("What is the fee?", "It's 5 €.")
    assert fee == digest("What is  the FEE", "it's 5 €!", "other") == digest("What is the fee?", "It\u2019s ５ €.")
    assert fee != digest("What is the fee?", "It's 6 €.")
    assert digest("a", "b c") != digest("a b", "c")
    rows = [interaction(f"i-{number}", question="a", answer=f"b {number}") for number in range(99)]
    digests = compute_text_digests(rows)
    assert digests.dtype == "int64" and digests["i-1"] == digest("a", "b 1")


@pytest.mark.slow
def test_validate_training_sound_table_passes() -> None:
    """The newest answers may be of a group of the hold-out, and what is excluded may be anything."""
    frame = make_table()
    frame.loc[120, "group"] = "g-80"
    excluded = frame.tail(1).assign(interaction_id="i-160", group="g-80", split="excluded")
    result = validate_table(pd.concat([frame, excluded], ignore_index=True), i_160="i-80")
    assert result.success and result.warnings == ()
    assert result.rows == {"labels": 160, "splits": 5, "people": 3}
    assert result.splits[0] == SplitLabels("all", 160, 80, 160)
    assert [row.answers for row in result.splits] == [160, 40, 40, 40, 40]


@pytest.mark.slow
def test_validate_training_straddling_group_is_error() -> None:
    result = validate_table(make_table(group=["g-80", "g-40"]))  # of the hold-out, and of validation
    sides = {key: str(reason).partition(":")[2].partition(":")[0] for key, (reason,) in result.reasons.items()}
    held_out, checked = " 'g-80' in the hold-out and train", " 'g-40' in train and validation"
    assert sides == {"labels/i-0": held_out, "labels/i-80": held_out, "labels/i-1": checked, "labels/i-40": checked}


@pytest.mark.slow
def test_validate_training_leaked_holdout_is_error() -> None:
    result = validate_table(make_table(), i_80="i-0", i_81="i-41", i_120="i-1")
    (check,) = result.errors
    assert (check.column, check.sample) == ("leaked_share", ("splits/holdout",))
    (reason,) = map(str, result.reasons["splits/holdout"])
    assert "5 % of the answers" in reason and "1 % allowed" in reason
    assert [line[:9] for line in result.format_warnings()] == ["A107 i-80", "A107 i-81"]
    assert validate_table(make_table(200), i_400="i-0").success  # one in two hundred


@pytest.mark.slow
def test_validate_training_poor_labels_are_warnings() -> None:
    person = Contradiction("reviewer r-1", "000002", 45, 41, 3, 1e-9, "reviewer r-01234567 in batch 000002: 41 of 45")
    frame = make_table(
        80,
        correct=[1] * 80,
        source=["review"] * 160 + ["thumb"] * 48,
        reviews_disagree=[True] * 34,
        thumbs_disagree=[True] * 102,
        duplicate_in_training=[False] * 208 + [True] * 4,
    )
    result = validate_table(frame, left_out=1234, flagged=(person,))
    assert result.success and result.notes[0].startswith("1,234 near-duplicates") and result.rows["people"] == 3
    assert {check.column: check.sample[0] for check in result.warnings if check.suite == "splits"} == {
        "correct_share": "splits/train",
        "reviewed_share": "splits/holdout",
        "near_duplicate_share": "splits/holdout",
        "reviews_disagree_share": "splits/all",
        "thumbs_disagree_share": "splits/all",
    }
    *lines, contradiction = result.format_warnings()
    percents = [["100 %", "10 %", "90 %"], ["40 %", "50 %"], ["12.5 %", "5 %"], ["12.5 %", "10 %"], ["37.5 %", "25 %"]]
    assert sorted(re.findall(r"[\d.]+ %", line) for line in lines) == sorted(percents)
    assert contradiction == (
        "A112 judgements that contradict the others' beyond chance: reviewer r-01234567 in batch 000002: 41 of 45"
    )


@pytest.mark.slow
def test_validate_training_few_answers_are_not_judged() -> None:
    result = validate_table(make_table(4, correct=[1] * 16, source=["thumb"] * 16))
    assert result.success and result.warnings == ()
    assert result.splits[3] == SplitLabels("holdout", 4, 4, 0)


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
    many = {f"interactions/{at:05d}": (EMPTY,) for at in range(results.MAX_LISTED_ROWS)}
    first = ValidationResult({"interactions": results.MAX_LISTED_ROWS}, reasons=many)
    more = ValidationResult({"interactions": 3}, reasons={f"interactions/x{at}": (EMPTY,) for at in range(3)})
    merged = ValidationResult.merge([first, more, more.merge([ValidationResult({"feedback": 0})])])
    assert merged.reasons == many
    assert (merged.n_failed_rows, merged.unlisted) == (results.MAX_LISTED_ROWS + 3, 3)
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
