from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from abstain.ingest.privacy.entities import SPAN_ENTITIES, get_span_finder
from abstain.ingest.privacy.search_spans import (
    IBAN_LENGTH_BY_COUNTRY,
    iter_windows,
)

ENTITIES = [get_span_finder(name, national_phones=False) for name in SPAN_ENTITIES]


@given(st.text(), st.sampled_from([1, 5_000]))
def test_iter_windows_hold_everything_and_are_short(text: str, times: int) -> None:
    text *= times
    pieces = [(start, end) for start, ends in iter_windows(text) for end in ends]
    assert pieces[0][0] == 0 and pieces[-1][1] == len(text)
    assert all(end - start <= 2_000 for start, end in pieces)
    assert all(later[0] < earlier[1] for earlier, later in pairwise(pieces))


def test_iter_windows_are_cut_between_words() -> None:
    text = "word " * 2_000
    pieces = [text[start : ends[0]].split() for start, ends in iter_windows(text)]
    assert len(pieces) > 5 and {word for piece in pieces for word in piece} == {"word"}


@given(st.text(st.characters(exclude_categories=("Nd", "No"), exclude_characters="@")))
def test_span_finders_text_without_digits_and_at_has_no_spans(text: str) -> None:
    assert [piece for find in ENTITIES for piece in find(text)] == []


def test_find_iban_spans_knows_every_country_of_presidio() -> None:
    from presidio_analyzer.predefined_recognizers.generic.iban_patterns import regex_per_country

    assert regex_per_country.keys() <= IBAN_LENGTH_BY_COUNTRY.keys()
