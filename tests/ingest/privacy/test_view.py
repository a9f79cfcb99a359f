from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.ingest.privacy.view import make_view, make_views

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
