from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.review.cells import LONGEST, as_moment, as_yes_or_no, guard, readable, unguard

texts = st.text() | st.from_regex(r"'*[=+\-@\d/.: a-z]{0,12}", fullmatch=True)


@given(texts)
def test_any_text_comes_back(text: str) -> None:
    assert unguard(guard(text)) == text
    assert unguard(guard(guard(text))) == guard(text)


@given(texts)
def test_no_cell_runs(text: str) -> None:
    assert not guard(text).lstrip().startswith(("=", "+", "-", "@", "＝", "＋", "－", "＠"))
    assert not guard(text).startswith(("\t", "\r", "\n")) or guard(text) == text.lstrip("\t\r\n")


@pytest.mark.parametrize(
    "text",
    [
        *("=1+1", '=HYPERLINK("http://x","y")', "+31 20 123", "-1", "@SUM(A1)", " =1+1", "\t=1", "＝1+1"),
        *("00123", "1e5", "1-2", "3/4", "12:30", "90.00", "1.234,5", "5 May 2026", "May 5", "sept-1", "10 AM", "$5"),
        *("90 %", "TRUE", "wahr", "2026-11-21", "2026-11-21T14:30:00Z", "'=1+1", "5 €", "1234567890123456789"),
    ],
)
def test_what_a_spreadsheet_would_change_is_kept_from_it(text: str) -> None:
    assert guard(text) == f"'{text}"


@pytest.mark.parametrize(
    "text", ["", "yes", "The fee is 90 euros.", "i-1", "25 of 1340", "'tis so", "e", "a fee of 3 to 5 percent", "cards"]
)
def test_what_it_would_not_stays_as_it_is(text: str) -> None:
    assert guard(text) == text == unguard(text)


def test_what_a_cell_cannot_hold() -> None:
    assert readable("a\x00b\x0bc\x1f") == "a\ufffdb\ufffdc\ufffd"
    assert readable("a\r\nb\rc\td") == "a\nb\nc\td"
    long = readable("x" * (LONGEST + 1234))
    assert long == "x" * LONGEST + " [... and 1,234 more characters]" and len(long) < 32_767


@pytest.mark.parametrize("word", ["yes", "Y", " TRUE ", "1", "x", "X", "'1", "✓", "Ja", "wahr", "oui"])
def test_yes(word: str) -> None:
    assert as_yes_or_no(word) is True


@pytest.mark.parametrize("word", ["no", "N", "False", "0", "'0", " nein", "faux"])
def test_no(word: str) -> None:
    assert as_yes_or_no(word) is False


def test_neither() -> None:
    assert as_yes_or_no("") is None and as_yes_or_no("  ") is None
    for word in ("maybe", "yes no", "2", "-", "?", "ye"):
        with pytest.raises(ValueError, match="is neither yes nor no"):
            as_yes_or_no(word)


def test_moments() -> None:
    half_past_two = datetime(2026, 11, 21, 14, 30, tzinfo=UTC)
    for text in ("2026-11-21T14:30:00Z", "'2026-11-21T14:30:00Z", "2026-11-21 14:30", "2026-11-21T16:30:00+02:00"):
        assert as_moment(text) == half_past_two
    assert as_moment(half_past_two.astimezone(timezone(timedelta(hours=5))).isoformat()) == half_past_two
    assert as_moment("2026-11-21T14:30:00.000001Z") == half_past_two + timedelta(microseconds=1)
    assert as_moment(" ") is None
    for text in ("21.11.2026", "2026-11-21", "yesterday", "2026-13-01T10:00:00Z", "2026-11-21T99:00"):
        with pytest.raises(ValueError):
            as_moment(text)
