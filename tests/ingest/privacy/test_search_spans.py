from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.ingest.privacy.entities import SPAN_ENTITIES, get_span_finder
from abstain.ingest.privacy.search_spans import (
    IBAN_LENGTH_BY_COUNTRY,
    SearchSpan,
    find_card_spans,
    find_email_spans,
    find_iban_spans,
    find_phone_spans,
    iter_windows,
)

ENTITIES = [get_span_finder(name, national_phones=False) for name in SPAN_ENTITIES]


def texts(text: str, pieces: Iterable[SearchSpan]) -> list[list[str]]:
    return [[text[start:end] for end in ends] for start, ends in pieces]


def test_an_email_is_tried_with_fewer_and_fewer_labels() -> None:
    text = "to ann@mail.example.org.Please"
    found = ["ann@mail.example.org.Please", "ann@mail.example.org", "ann@mail.example"]
    assert texts(text, find_email_spans(text)) == [found]
    assert list(find_email_spans("@home, a@b and a @ b, or a  @ b.c")) == []


def test_a_card_may_begin_and_end_with_any_group() -> None:
    text = "Order 3000 4111 1111 1111 1111, 7 pieces"
    assert texts(text, find_card_spans(text)) == [["3000 4111 1111 1111"], ["4111 1111 1111 1111"]] * 2
    text = "4111-1111-1111-1111-123 4"
    assert texts(text, find_card_spans(text))[0] == ["4111-1111-1111-1111"], "the others have a wrong check digit"
    text = "4111 / 1111 / 1111 / 1111 / 2026"
    assert texts(text, find_card_spans(text)) == [["4111 / 1111 / 1111 / 1111"]]
    assert list(find_card_spans("A4111111111111111 4111111111111111B 4111 1111 1111 1234 5678 9012 3452")) == []


def test_an_iban_is_as_long_as_its_country_has_it() -> None:
    text = "an AT61 1904 3002 3457 3201 1000 Euro, de89370400440532013000cobadeff and DE88 3704 0044 0532 0130 00"
    assert texts(text, find_iban_spans(text)) == [["AT61 1904 3002 3457 3201"], ["de89370400440532013000"]]
    text = "XAT611904300234573201 and no25"
    assert texts(text, find_iban_spans(text)) == [["AT611904300234573201"]], "behind a letter, too"
    text = "DE89370400440532013000AT611904300234573201X"
    assert texts(text, find_iban_spans(text)) == [["DE89370400440532013000"], ["AT611904300234573201"]], (
        "one after the other"
    )


def test_a_phone_number_is_tried_with_fewer_and_fewer_numbers() -> None:
    text = "+49 170 1234567, 1000 Euro"
    assert texts(text, find_phone_spans(text)) == [[text, text[:21], "+49 170 1234567", "+49 170", "+49"]]


@given(st.text(), st.sampled_from([1, 5_000]))
def test_windows_hold_everything_and_are_short(text: str, times: int) -> None:
    text *= times
    pieces = [(start, end) for start, ends in iter_windows(text) for end in ends]
    assert pieces[0][0] == 0 and pieces[-1][1] == len(text)
    assert all(end - start <= 2_000 for start, end in pieces)
    assert all(later[0] < earlier[1] for earlier, later in pairwise(pieces))


def test_windows_are_cut_between_words() -> None:
    text = "word " * 2_000
    pieces = [text[start : ends[0]].split() for start, ends in iter_windows(text)]
    assert len(pieces) > 5 and {word for piece in pieces for word in piece} == {"word"}


@given(st.text(st.characters(exclude_categories=("Nd", "No"), exclude_characters="@")))
def test_text_without_digits_and_signs_has_no_pieces(text: str) -> None:
    assert [piece for find in ENTITIES for piece in find(text)] == []


@pytest.mark.parametrize(
    "text",
    [
        "What does the Gold card cost in 2026? 234,567.89 euros, from 30.06.2026 on (see 4.2.1).",
        "Order 12345678, invoice R-2026-0042, flat 12b, 24/7, 50 % of 1 000",
        "@home, a@b and a @ b.c, C++ and +3.5 %",
    ],
)
def test_figures_of_everyday_text_have_no_pieces(text: str) -> None:
    assert [piece for find in ENTITIES for piece in find(text)] == []


def test_ibans_of_every_country_of_presidio_have_a_length() -> None:
    from presidio_analyzer.predefined_recognizers.generic.iban_patterns import regex_per_country

    assert regex_per_country.keys() <= IBAN_LENGTH_BY_COUNTRY.keys()
