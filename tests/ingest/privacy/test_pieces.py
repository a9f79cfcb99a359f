from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.ingest.privacy.pieces import SIGNS, Piece, cards, emails, ibans, may_hold_any, windows
from abstain.ingest.privacy.plain import plain
from tests.ingest.privacy import builders


def texts(text: str, pieces: Iterable[Piece]) -> list[list[str]]:
    return [[text[start:end] for end in ends] for start, ends in pieces]


def test_an_email_is_tried_with_fewer_and_fewer_labels() -> None:
    text = "to ann@mail.example.org.Please"
    found = ["ann@mail.example.org.Please", "ann@mail.example.org", "ann@mail.example"]
    assert texts(text, emails(text)) == [found]
    assert list(emails("@home, a@b and a @ b, or a  @   b.c")) == []


def test_a_card_may_begin_and_end_with_any_group() -> None:
    text = "Order 3000 4111 1111 1111 1111, 7 pieces"
    assert texts(text, cards(text)) == [["3000 4111 1111 1111"], ["4111 1111 1111 1111"]]
    text = "4111-1111-1111-1111-123 4"
    assert texts(text, cards(text)) == [["4111-1111-1111-1111"]], "the others have a wrong check digit"
    assert list(cards("A4111111111111111 4111111111111111B 4111 1111 1111")) == []


def test_an_iban_ends_where_its_checksum_is_right() -> None:
    text = "an AT61 1904 3002 3457 3201 1000 Euro, de89370400440532013000cobadeff and DE88 3704 0044 0532 0130 00"
    assert texts(text, ibans(text)) == [["AT61 1904 3002 3457 3201"], ["de89370400440532013000"]]
    assert list(ibans("XAT611904300234573201 and no25")) == []


@given(st.text(), st.sampled_from([1, 5_000]))
def test_windows_hold_everything_and_are_short(text: str, times: int) -> None:
    text *= times
    pieces = [(start, end) for start, ends in windows(text) for end in ends]
    assert pieces[0][0] == 0 and pieces[-1][1] == len(text)
    assert all(end - start <= 2_000 for start, end in pieces)
    assert all(later[0] < earlier[1] for earlier, later in pairwise(pieces))


def test_windows_are_cut_between_words() -> None:
    text = "word " * 2_000
    pieces = [text[start : ends[0]].split() for start, ends in windows(text)]
    assert len(pieces) > 5 and {word for piece in pieces for word in piece} == {"word"}


@given(st.text(st.characters(exclude_categories=("Nd",), exclude_characters=SIGNS)))
def test_text_without_digits_and_signs_holds_nothing(text: str) -> None:
    assert not may_hold_any(text)
    flat = plain(text)
    assert [*emails(flat), *cards(flat), *ibans(flat)] == []


@given(st.text(), builders.secrets, st.text())
def test_a_text_with_something_in_it_may_hold_something(before: str, secret: str, after: str) -> None:
    assert may_hold_any(f"{before} {secret} {after}")


@given(st.text(alphabet="aZé谢１٣0123456789 -@＠+＋.,'\n\u00a0\u2011"))
def test_what_may_hold_nothing_has_no_pieces(text: str) -> None:
    flat = plain(text)
    if any(list(pieces(view)) for pieces in (emails, cards, ibans) for view in (text, flat)):
        assert may_hold_any(text)


@pytest.mark.parametrize(
    "text",
    [
        "What does the Gold card cost in 2026? 234,567.89 euros, from 30.06.2026 on (see 4.2.1).",
        "Order 12345678, invoice R-2026-0042, flat 12b, 24/7, 50 % of 1 000",
    ],
)
def test_figures_of_everyday_text_are_no_reason_to_look_closer(text: str) -> None:
    assert not may_hold_any(text)


def test_the_patterns_mean_what_plain_makes_of_a_character() -> None:
    for code in [*range(0x80, 0x3000), *range(0xFB00, 0x10000), *range(0x1D400, 0x1D800)]:
        character = chr(code)
        seen = plain(character)
        assert len(seen) == 1
        assert bool(re.match(r"\d", seen)) == bool(re.match(r"\d", character)), hex(code)
        assert not (seen.isascii() and seen.isalpha()) or re.match(r"[^\W\d_]", character), hex(code)
        assert seen not in "@+" or character in SIGNS, hex(code)
        assert seen not in " -" or re.match(r"\W", character), hex(code)
