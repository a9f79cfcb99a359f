from datetime import date
from typing import get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.sample.catalogue import Range
from benchmarks.sample.handbook import build_handbook
from benchmarks.sample.values import Value, agree, phrase, quantities, says, write

pytestmark = pytest.mark.soak(twin="test_sample_command_writes_recorded_data")


def cents(most: int) -> st.SearchStrategy[float]:
    return st.integers(0, most).map(lambda n: n / 100)


def of_date(day: date) -> float:
    return float(day.year * 10_000 + day.month * 100 + day.day)


AMOUNTS: dict[str, st.SearchStrategy[float]] = {
    "euros": cents(10**9),
    "percent": cents(100_000),
    "days": st.integers(0, 5000).map(float),
    "months": st.integers(0, 5000).map(float),
    "years": st.integers(0, 5000).map(float),
    "clock": st.integers(0, 24 * 60 - 1).map(float),
    "date": st.dates(date(1900, 1, 1), date(2999, 12, 31)).map(of_date),
    "number": cents(10**9),
}
written = st.one_of([st.tuples(st.just(unit), amounts) for unit, amounts in AMOUNTS.items()])


def value(unit: str, amount: float) -> Value:
    return Value("months", amount * 12) if unit == "years" else Value(unit, amount)


def test_units_of_the_catalogue_are_all_tested() -> None:
    assert set(AMOUNTS) == set(get_args(get_type_hints(Range)["unit"]))


@given(written)
def test_quantities_reads_back_written_values(pair: tuple[str, float]) -> None:
    assert quantities(write(*pair)) == [value(*pair)]


@given(st.lists(written, max_size=3))
def test_quantities_are_in_order_of_place(pairs: list[tuple[str, float]]) -> None:
    text = "".join(f"It is {write(*pair)}, or so. " for pair in pairs)
    assert quantities(text) == [value(*pair) for pair in pairs]


def test_says_every_value_of_a_handbook_sentence() -> None:
    facts = [fact for page in build_handbook() for fact in page.facts]
    assert [fact.sentence for fact in facts if not all(says(fact.sentence, value) for value in fact.values)] == []


@pytest.mark.parametrize(
    ("unit", "amount", "text"),
    [
        ("euros", 1500, "1,500 euros"),
        ("euros", 0.5, "0.50 euros"),
        ("percent", 2.50, "2.5%"),
        ("days", 1, "1 day"),
        ("years", 18, "18 years"),
        ("clock", 990, "16:30"),
        ("clock", 5, "0:05"),
        ("date", 20270104, "4 January 2027"),
        ("number", 3, "3"),
    ],
)
def test_write_by_unit(unit: str, amount: float, text: str) -> None:
    assert write(unit, amount) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("€95", ("euros", 95)),
        ("EUR 1,500.50", ("euros", 1500.5)),
        ("95 €", ("euros", 95)),
        ("$95", ("foreign", 95)),
        ("95 pounds", ("foreign", 95)),
        ("It is free of charge.", ("euros", 0)),
        ("There is no fee.", ("euros", 0)),
        ("2.5 per cent", ("percent", 2.5)),
        ("2.5 Percent", ("percent", 2.5)),
        ("two weeks", ("days", 14)),
        ("48 hours", ("days", 2)),
        ("12 working days", ("days", 12)),
        ("a 14-day notice", ("days", 14)),
        ("one year", ("months", 12)),
        ("4:30 pm", ("clock", 990)),
        ("at 12 a.m.", ("clock", 0)),
        ("January 4th, 2027", ("date", 20270104)),
        ("the 4th of Jan. 2027", ("date", 20270104)),
        ("2027-01-04", ("date", 20270104)),
        ("4 January", ("date", 104)),
        ("three", ("number", 3)),
        ("You may go.", None),  # no month
        ("this one", None),  # no number
    ],
)
def test_quantities_of_other_wordings(text: str, expected: tuple[str, float] | None) -> None:
    assert quantities(text) == ([Value(*expected)] if expected else [])


@pytest.mark.parametrize(
    ("expected", "stated", "same"),
    [
        (("euros", 95), ("euros", 95), True),
        (("euros", 95), ("number", 95), True),
        (("euros", 95), ("foreign", 95), False),
        (("euros", 95), ("euros", 96), False),
        (("number", 3), ("days", 3), False),
        (("months", 1), ("days", 30), False),
        (("date", 20270104), ("date", 104), True),
        (("date", 20270104), ("date", 20280104), False),
    ],
)
def test_agree_by_unit_and_amount(expected: tuple[str, float], stated: tuple[str, float], same: bool) -> None:
    assert agree(Value(*expected), Value(*stated)) is same


@pytest.mark.parametrize(
    ("text", "words", "stated"),
    [
        ("Cancel it in the mobile app.", "in the mobile app", True),
        ("Use the mobile app.", "in the mobile app", True),
        ("Send an e-mail.", "by email", True),
        ("By Emails", "by email", True),
        ("Write to Moreau.", "Ms Moreau", True),
        ("It is a blanket ban.", "an umbrella", False),
        ("Cranberries", "Crane", False),
        ("", "Crane", False),
    ],
)
def test_says_words_in_other_forms(text: str, words: str, stated: bool) -> None:
    assert says(text, phrase(words)) is stated
