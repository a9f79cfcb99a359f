"""What is searched for, and where: entities, the views of a text, and the spans that recognizers are handed."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.core.errors import AbstainError
from abstain.ingest.privacy.entities import SPAN_ENTITIES, get_span_finder, require_valid_entities
from abstain.ingest.privacy.recognizers import NAME_ENTITIES, load_pattern_recognizers, require_phone_regions
from abstain.ingest.privacy.redaction import Redactor
from abstain.ingest.privacy.search_spans import IBAN_LENGTH_BY_COUNTRY, iter_windows
from abstain.ingest.privacy.view import make_view, make_views
from tests.ingest.privacy.builders import SHIPPED, params


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "hint"), [("credit_card", "'CREDIT_CARD'"), ("PERSONS", "'PERSON'"), ("UKNHS", "'UK_NHS'"), ("###", "URL")]
)
def test_redactor_unknown_entity_names_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(AbstainError, match=f"^privacy.redact: unknown entity '{name}': .*{hint}"):
        Redactor(params(redact=("URL", name)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"redact": ("PERSON",), "min_score": 0.9}, "PERSON is .* 0.85, .* privacy.min_score = 0.9"),
        ({"phone_regions": ("US", "UK")}, "^privacy.phone_regions: 'UK'"),
        ({"phone_regions": ("de",)}, "^privacy.phone_regions: 'de'"),
        *(
            ({"redact": ("PERSON",), "names_pipeline": name}, rf"spaCy pipeline '{name}'.*'abstain\[names\]'")
            for name in ("de_core_news_of_nobody", "no/such/folder", "", "a.b")
        ),
    ],
)
def test_redactor_unusable_parameter_raises_at_once(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(AbstainError, match=message):
        Redactor(params(**changes))


def test_shipped_entities_have_span_finders() -> None:
    require_valid_entities(SHIPPED.redact, SHIPPED.min_score)
    require_phone_regions(["DE", "GB", "NO"])
    assert set(SHIPPED.redact) <= set(SPAN_ENTITIES)
    assert all(get_span_finder(name, national_phones=False) is not iter_windows for name in SPAN_ENTITIES)


@pytest.mark.slow
def test_entity_scores_are_the_best_of_presidio() -> None:
    scores = {name: best for name, (_, best) in load_pattern_recognizers().items()}
    assert scores.items() >= {**SPAN_ENTITIES, "URL": 0.6, "IP_ADDRESS": 0.6, "US_PASSPORT": 0.1, "UK_NHS": 1.0}.items()
    assert len(scores) > 50
    require_valid_entities(scores, 0)
    with pytest.raises(AbstainError, match=r"US_PASSPORT is never surer than 0.1, so privacy.min_score = 0.4 would"):
        require_valid_entities(["EMAIL_ADDRESS", "US_PASSPORT"], 0.4)
    from presidio_analyzer.predefined_recognizers import SpacyRecognizer

    assert set(NAME_ENTITIES) <= set(SpacyRecognizer.ENTITIES)


ENTITIES = [get_span_finder(name, national_phones=False) for name in SPAN_ENTITIES]


@pytest.mark.heavy
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


ODD = "aZ9@ .-\n\u00ad\u0301\u00e9\uff21\u24ea\u2469\ufb01\u0660\u8bf7\u0430%40&#64;"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Ann & 5 %, a%4x &#6;", "Ann & 5 %, a%4x &#6;"),
        ("ann&#64;b.de c%40d.de e&#X40;f.de", "ann@b.de c@d.de e@f.de"),
        ("\uff21\uff11\u2460\u00b2\u0664\u0967\u277a", "A112415"),
        ("so\u00adft\u200b wo\ufeffrd", "soft word"),
        ("M\u00fcller Mu\u0308ller", "Muller Muller"),
        ("\u8bf7ann\u8c22 \u0e02 \u0645", "\nann\n \n \n"),
        ("\u0430\u043d\u043d \u03bd", "\u0430\u043d\u043d \u03bd"),
        ("\u00a0\u2011\u2013\u3000|\u3002\uff0e", " -- |.."),
        ("\ufb01\u338f", "fikg"),
    ],
)
def test_make_view_normalizes_the_text(text: str, shown: str) -> None:
    assert make_view(text).text == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\u2460 x\u00b2 \u2122 \u2116 \u00bd \u00aa", ["1 x2 TM No 1\n2 a", "\n x\n \n \n \n \n"]),
        ("1\ufe0f\u20e32", ["12", "1\n2"]),
        ("\u00e9 \uff11 \u0664 \ufb01 \u8bf7 \u2013 %40", ["e 1 4 fi \n - @"]),
        ("a 1 &#64;", ["a 1 @"]),
    ],
)
def test_make_views_shows_signs_also_as_line_breaks(text: str, shown: list[str]) -> None:
    assert [view.text for view in make_views(text)] == shown


@given(st.text() | st.text(alphabet=ODD))
def test_map_span_places_cover_the_text_in_order(text: str) -> None:
    for view in make_views(text):
        assert len(view.starts) == len(view.text) + 1 and view.starts[-1] == len(text)
        places = [view.map_span(at, at + 1) for at in range(len(view.text))]
        assert all(start < end for start, end in places)
        assert all(one == other or one[1] == other[0] for one, other in pairwise(places))


def test_map_span_takes_whole_characters() -> None:
    view = make_view("x\u00ad of\ufb01ce\u0301!")
    at = view.text.index("fi")
    assert view.text == "x office!"
    assert view.map_span(at, at + 1) == view.map_span(at, at + 2) == (5, 6)
    assert view.map_span(view.text.index("e"), len(view.text) - 1) == (7, 9)
