import html
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abstain.knowledge.documents.chunks import chunk_document
from abstain.knowledge.documents.html import UnreadablePage, html_to_markdown
from abstain.knowledge.documents.normalize_markdown import normalize_markdown
from abstain.knowledge.documents.sections import split_sections
from tests.knowledge.builders import document


def markdown(body: str) -> str:
    return html_to_markdown(f"<body>{body}</body>")[1]


def table(body: str) -> list[list[str]]:
    """The cells of the one table in `body`; the line below its header left out."""
    lines = [line for line in markdown(body).split("\n") if line.startswith("|")]
    assert set(lines[1]) == set("| -")
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in (lines[0], *lines[2:])]


def test_headings_paragraphs_lists_and_tables_come_over() -> None:
    found = markdown(
        "<h1>Fees &amp; limits</h1><p>There is <b>no</b>\n <a href='/x'>annual fee</a>.</p><h3>Abroad</h3>"
        "<ul><li>cash<ol><li>1&nbsp;euro<li>2 euros</ol><li><p>cards</ul>"
        "<table><tr><th>Fee<th>Amount<tr><td>Cash<td>4&euro;</table>"
    )
    assert found == (
        "# Fees & limits\n\nThere is no annual fee.\n\n### Abroad\n\n- cash\n  1. 1 euro\n  2. 2 euros\n- cards\n\n"
        "| Fee | Amount |\n| --- | --- |\n| Cash | 4€ |"
    )


def test_what_is_no_content_goes() -> None:
    assert (
        markdown(
            "<header>Bank</header><nav>Home</nav><div role=navigation>Menu</div><!-- note --><script>s</script>"
            "<style>c</style><noscript>n</noscript><template>t</template><p hidden>h</p><?php p ?><svg><text>v</text></svg>"
            "<form><p>kept</p><input value=i><button>b</button><select><option>o</select></form><footer>(c)</footer>"
        )
        == "kept"
    )
    assert markdown("<div>Menu</div><main><header><h1>Fees</h1></header>Kept</main><div>Ads</div>") == "# Fees\n\nKept"
    assert markdown("<main>One</main><main>Two</main>") == "One\n\nTwo"  # which is the content is not said


def test_a_cell_stands_in_each_column_and_row_that_it_spans() -> None:
    assert table(
        "<table><thead><tr><th rowspan=2>Fee<th colspan=2>Amount<tr><th>at home<th>abroad</thead>"
        "<tr><td>Cash<td>1<td>2<tr><td rowspan=2>Both<td colspan=2>3<tr><td>4<td>5</table>"
    ) == [
        ["Fee", "Amount at home", "Amount abroad"],
        ["Cash", "1", "2"],
        ["Both", "3", "3"],
        ["Both", "4", "5"],
    ]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("<tr><td>a<td>b<tr><td>c", [["", ""], ["a", "b"], ["c", ""]]),  # no header, and a row too short
        ("<tr><th>a<tr><td>b<td>c", [["a", ""], ["b", "c"]]),
        ("<tr><th>a<td>b<tr><th>c<td>d", [["", ""], ["a", "b"], ["c", "d"]]),  # headers of rows
        ("<tr><th>a<th>b", [["a", "b"]]),
        ("<tr><th>a<th>b<tr><th>c<th>d", [["a", "b"], ["c", "d"]]),
        ("<tr><th>a<th>b<tr><td colspan=99>c", [["a", "b"], ["c", "c"]]),
        ("<tr><th>a<th>b<tr><td colspan=0 rowspan=-1>c<td colspan=x rowspan='9999999999'>d", [["a", "b"], ["c", "d"]]),
        ("<tr><th>a<th>b<tr><td rowspan=99>c<td>d<tr><td>e", [["a", "b"], ["c", "d"], ["c", "e"]]),
        ("<tr><th>a<tr><tr><td><tr><td>b", [["a"], ["b"]]),  # empty rows say nothing
        ("<tr><th>a<tr><td><p>x<p>y<ul><li>1<li>2</ul><br>z", [["a"], ["x y - 1 - 2 z"]]),
        ("<tr><th>a<tr><td><table><tr><td>1<td>2<tr><td>3</table>", [["a"], ["1 2 3"]]),
        ("<td>a<td>b<tr><td>c", [["", ""], ["a", "b"], ["c", ""]]),
        ("<tr><th>a<th>a<tr><td>1<td>2", [["a", "a"], ["1", "2"]]),
        ("<tr><th colspan=2>a<th colspan=2>b<tr><td colspan=2>1<td colspan=2>2", [["a", "b"], ["1", "2"]]),
    ],
)
def test_a_broken_table_becomes_a_whole_one(rows: str, expected: list[list[str]]) -> None:
    assert table(f"<table>{rows}</table>") == expected
    (section,) = split_sections(document(markdown(f"<table>{rows}</table>")))
    assert {chunk.kind for chunk in chunk_document(document(section.body))} == {"table"}


def test_a_bar_in_a_cell_is_no_column() -> None:
    (found,) = chunk_document(document(markdown("<table><tr><th>a|b<th>c<tr><td>1|2<td>3</table>")))
    assert (found.kind, found.text.split("\n")[1:]) == ("table", ["| a\\|b | c |", "| --- | --- |", "| 1\\|2 | 3 |"])


def test_caption_and_text_that_strayed_from_its_cell_are_kept() -> None:
    assert markdown("<table><caption>All <b>fees</b></caption>stray<tr><th>a<tr><td>1</table>").startswith(
        "All fees\n\nstray\n\n| a |"
    )
    assert markdown("<table></table><table><tr><td></table>x") == "x"


def test_a_table_that_arranges_the_page_is_none() -> None:
    inner = "<h2>Fees</h2>none<table><tr><th>a<tr><td>1</table>"
    expected = "menu\n\n## Fees\n\nnone\n\n| a |\n| --- |\n| 1 |"
    assert markdown(f"<table><tr><td>menu<td>{inner}</table>") == expected
    assert markdown("<table role=presentation><tr><td>a<td>b</table>") == "a\n\nb"


@pytest.mark.parametrize(
    "text",
    ["- a", "* a", "+", "# a", "## ", "1. a", "12) a", "> a", "---", "===", "___", "```", "~~~ a", "| a |", "<p>"],
)
def test_what_is_no_markup_does_not_become_one(text: str) -> None:
    for body in (
        f"<p>{html.escape(text)}</p>z",
        f"<div>a<br>\n {html.escape(text)}<p>z</div>",
        f"x <i>{html.escape(text)}</i>",
    ):
        found = chunk_document(document(markdown(body)))
        assert [chunk.kind for chunk in found] == ["text"]
        assert len(split_sections(document(markdown(body)))) == 1
        assert found[0].text.replace("\\", "").replace("\n", " ").find(text.strip()) > 0


def test_lines_that_only_look_like_a_table_are_none_and_signs_inside_a_line_stay() -> None:
    for line in ("--- | ---", ":-- | --:"):
        (found,) = chunk_document(document(markdown(f"<p>a | b<br>{line}<br>1 | 2")))
        assert found.kind == "text"
    assert markdown("<p>= 5 euros<p><b>&lt; 5</b> - or # 5<p>a<br>&gt;5") == "= 5 euros\n\n< 5 - or # 5\n\na\n>5"


def test_a_line_of_the_source_is_no_line_of_the_text() -> None:
    assert markdown("<p>The fee is\n- or so -\n5. then</p>") == "The fee is - or so - 5. then"


def test_lists_that_stand_straight_in_lists_belong_to_the_item_before() -> None:
    assert markdown("<ul><li>a</li><ul><li>b</li></ul><li>c</li></ul>") == "- a\n  - b\n- c"
    (found,) = chunk_document(document(markdown("<ul><li>a</li><ul><li>b</li></ul></ul>")))
    assert found.text == "Gold Card\n- a\n  - b"


def test_numbered_lists_start_where_they_say() -> None:
    assert (
        markdown("<ol start=9><li>a<li>b<p>c<p>d<ul><li>e</ul><li></ol>") == "9. a\n10. b\n\n    c\n\n    d\n\n    - e"
    )
    assert markdown("<ol start=-3><li>a</ol>") == markdown(f"<ol start={'9' * 40}><li>a</ol>") == "1. a"


@pytest.mark.slow
def test_twenty_thousand_items_or_places_take_seconds() -> None:
    found = markdown("<ol>" + "".join(f"<li>item {n}" for n in range(20_000)) + "</ol>")
    assert found.endswith("\n20000. item 19999")
    wide = "<tr>" + "<td colspan=1000 rowspan=60000>x" * 300
    assert len(grid := table(f"<table>{wide * 10}</table>")) == 11 and {len(row) for row in grid} == {len(grid[0])}


@pytest.mark.parametrize(
    "rows", [("<tr>" + "<td rowspan=1000>x" * 10) * 300, "<tr>" + "<td>x" * 500 + "<tr><td>x" * 500]
)
def test_a_table_of_many_places_and_little_text_is_refused_in_a_page_and_left_in_markdown(rows: str) -> None:
    with pytest.raises(UnreadablePage, match="a table has more than the 200,000 places allowed"):
        markdown(f"<table>{rows}</table>")
    assert normalize_markdown(f"<table>{rows}</table>") == f"<table>{rows}</table>"


def test_a_glossary_is_a_list_and_code_stays_as_it_is() -> None:
    assert markdown("<dl><dt>APR<dd>annual <p>rate<dt>EIR</dl>") == "- APR: annual rate\n- EIR:"
    assert markdown("<pre>a  b\n ```\n# c</pre>") == "````\na  b\n ```\n# c\n````"
    assert markdown("<p>Use <code>a_b*c</code> and 2*3*4_5_.") == "Use `a_b*c` and 2*3*4_5_."


def test_pictures_say_what_they_show_and_struck_text_stays_struck() -> None:
    assert (
        markdown('<p><img alt="The\n card" src=x><img src=y> <del>9</del> 8 m<sup>2</sup></p>') == "The card ~~9~~ 8 m2"
    )


def test_what_opens_and_closes_is_told_apart() -> None:
    assert markdown("<details><summary>Fees</summary>none</details><address>a</address><figure>b<figcaption>c") == (
        "Fees\n\nnone\n\na\n\nb\n\nc"
    )
    assert markdown("<div>a<figure><img></figure> b<td>c</td>d</div>") == "a b\n\nc\n\nd"  # nothing joins two words


@pytest.mark.parametrize(
    ("entity", "text"), [("&amp;", "&"), ("&#8364;", "€"), ("&nbsp;", " "), ("&shy;", ""), ("&x;", "&x;")]
)
def test_entities_are_what_they_stand_for(entity: str, text: str) -> None:
    assert markdown(f"<p>a{entity}b") == f"a{text}b"
    assert html_to_markdown(f"<title>a{entity}b</title>")[0] == {"title": f"a{text}b"}


signs = st.text(st.sampled_from("-#*>|1.<&` "), max_size=4).map(html.escape)
tags = st.sampled_from(
    re.findall(r"\w+", "p div ul ol li table tr td th h2 b pre blockquote dl dt dd br caption thead section")
)
soup = st.lists(
    st.one_of(signs.map("{}w{{0:03}}{{1}} ".format), tags.map("<{}>".format), tags.map("</{}>".format)), max_size=25
)


@pytest.mark.heavy
@settings(max_examples=150, deadline=None)
@given(soup)
def test_no_page_loses_a_word(parts: list[str]) -> None:
    body = "".join(part.replace("{0:03}{1}", f"{at:03}") for at, part in enumerate(parts))
    found = markdown(body)
    assert [word for word in re.findall(r"w\d{3}", body) if word not in found] == []
    below = re.findall(r"w\d{3}", re.sub("^#.*", "", found, flags=re.MULTILINE))  # a heading may have nothing below it
    chunked = " ".join(chunk.text for chunk in chunk_document(document(found))) if found else ""
    assert [word for word in below if word not in chunked] == []
