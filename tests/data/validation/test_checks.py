import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.core.contracts import make_unnamed_context
from abstain.data.store.key_index import KeyIndex
from abstain.data.store.record_keys import make_record
from abstain.data.validation.checks import TABLES, ExistingData, ValidatedRows, build_suites, format_short_percent
from abstain.data.validation.columns import build_tables
from tests.factories import ASKED, CHUNK, DOCUMENT, NOW, PARAMS, cited, feedback, interaction, review


def rows(*interactions: object, **other: tuple) -> ValidatedRows:
    lines = {name: tuple(make_record(one) for one in other.get(name, ())) for name in ("feedback", "reviews")}
    return ValidatedRows(interactions=tuple(make_record(one) for one in interactions), **lines)


@pytest.mark.parametrize("with_documents", [True, False])
def test_build_suites_columns_exist(with_documents: bool) -> None:
    every = rows(interaction(), feedback=(feedback(),), reviews=(review(),))
    every = ValidatedRows(every.interactions, every.feedback, every.reviews, (DOCUMENT,), (CHUNK,))
    columns = build_tables(every, ExistingData(KeyIndex(), {"fees"}, {"fees#0"}), NOW)
    expected = build_suites(PARAMS, with_documents=with_documents)
    assert expected.keys() == columns.keys() == set(TABLES)
    for name, checks in expected.items():
        (row,) = columns[name]
        assert row["row"].startswith(f"{name}/")
        assert [check.column for check in checks if check.column not in row] == []
        for check in checks:  # told of a row that fails, whatever it held
            assert "{" not in check.reason.message.format(value="v", percent="p", row="r"), check.reason
    looked_at = {check.column for check in expected["interactions"]}
    assert ({"unknown_contexts", "outdated_contexts"} <= looked_at) == with_documents


def is_rejected(table: str, column: str, value: float, skew: float = 0) -> bool:
    """Return whether a bound of the suites rejects a value."""
    params = PARAMS.model_copy(update={"max_clock_skew_seconds": skew})
    checks = [check for check in build_suites(params, with_documents=True)[table] if check.column == column]
    bounds = [check.arguments for check in checks if check.expectation == "ExpectColumnValuesToBeBetween"]
    assert bounds and all(check.severity == "error" for check in checks)
    return any(
        not bound.get("min_value", -math.inf) <= value <= bound.get("max_value", math.inf)
        or (bound.get("strict_min", False) and value == bound["min_value"])
        for bound in bounds
    )


@pytest.mark.parametrize(
    ("table", "column", "allowed", "refused"),
    [
        ("interactions", "question_chars", [1, 200], [0, 201]),
        ("interactions", "answer_chars", [1, 200], [0, 201]),
        ("interactions", "longest_context_chars", [0, 200], [201]),
        ("interactions", "asked_at_seconds_ahead", [-1, 0], [0.01]),
        ("interactions", "largest_token_log_prob", [-99, 0], [0.01]),
        ("interactions", "propensity", [1e-9, 1], [0, 1.01]),
        ("feedback", "delay_days", [0, 90], [-0.01, 90.01]),
        ("feedback", "given_at_seconds_ahead", [-1, 0], [0.01]),
        ("feedback", "comment_chars", [0, 200], [201]),
        ("reviews", "delay_days", [0, 90], [-0.01, 90.01]),
        ("reviews", "reviewed_at_seconds_ahead", [-1, 0], [0.01]),
        ("reviews", "ideal_answer_chars", [0, 200], [201]),
        ("reviews", "inclusion_probability", [1e-6, 1], [9e-7, 1.01]),
        ("documents", "chunks", [1], [0]),
    ],
)
def test_build_suites_limits_are_inclusive(table: str, column: str, allowed: list[float], refused: list[float]) -> None:
    assert [value for value in (*allowed, *refused) if is_rejected(table, column, value)] == refused


def test_build_suites_allow_clock_skew() -> None:
    ahead, behind = ("interactions", "asked_at_seconds_ahead"), ("feedback", "delay_days")
    assert [is_rejected(*ahead, seconds, skew=300) for seconds in (300, 301)] == [False, True]
    assert [is_rejected(*behind, -seconds / 86400, skew=300) for seconds in (300, 301)] == [False, True]


def test_build_tables_unknown_or_outdated_contexts() -> None:
    known = ExistingData(KeyIndex(), {"fees", "cards"}, {"fees#0"})
    named = make_unnamed_context("No document is ingested for this.").chunk_id
    contexts = cited("fees#0", "cards#1", "b#1", "a#2", "a#2", named)
    (row,) = build_tables(rows(interaction(contexts=contexts)), known, NOW)["interactions"]
    assert row["unknown_contexts"] == "'a#2', 'b#1'"
    assert row["outdated_contexts"] == "'cards#1'"
    assert (row["contexts"], row["longest_context_chars"]) == (6, 1)


@given(st.floats(-400, 400), st.booleans())
def test_build_tables_delay_from_any_batch(days: float, is_known: bool) -> None:
    index, asked = KeyIndex(), interaction()
    if is_known:
        index.add(make_record(asked), 0, 0, 0)
    batch = rows(*(() if is_known else (asked,)), feedback=(feedback(days=days),))
    (row,) = build_tables(batch, ExistingData(index), NOW)["feedback"]
    assert row["interaction_known"] and row["delay_days"] == pytest.approx(days, abs=1e-9)
    seconds = (ASKED - NOW + timedelta(days=days)).total_seconds()
    assert row["given_at_seconds_ahead"] == pytest.approx(seconds, abs=1e-3)


def test_build_tables_unknown_interaction_has_no_delay() -> None:
    (row,) = build_tables(rows(reviews=(review(),)), ExistingData(KeyIndex()), NOW)["reviews"]
    assert not row["interaction_known"] and math.isnan(row["delay_days"])
    assert math.isnan(row["inclusion_probability"])  # none was given: nothing to judge


def test_format_short_percent_examples() -> None:
    percents = ["0 %", "0.5 %", "12.5 %", "33.3 %", "100 %"]
    assert [format_short_percent(share) for share in (0, 0.005, 0.125, 1 / 3, 1)] == percents
