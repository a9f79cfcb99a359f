"""HTML as Markdown: of pages, and of raw HTML and quotes in Markdown; never a way around whole rows and whole items."""

import html
import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from abstain.knowledge.documents import normalize_markdown as module
from abstain.knowledge.documents.chunks import chunk_document
from abstain.knowledge.documents.html import UnreadablePage, html_to_markdown
from abstain.knowledge.documents.normalize_markdown import normalize_markdown
from abstain.knowledge.documents.sections import parse_blocks, split_sections
from tests.knowledge.builders import document
from tests.knowledge.documents.test_chunks import chunks


def markdown(body: str) -> str:
    return html_to_markdown(f"<body>{body}</body>")[1]


def table(body: str) -> list[list[str]]:
    """The cells of the one table in `body`; the line below its header left out."""
    lines = [line for line in markdown(body).split("\n") if line.startswith("|")]
    assert set(lines[1]) == set("| -")
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in (lines[0], *lines[2:])]


NO_CONTENT = (
    "<header>Bank</header><nav>Home</nav><div role=navigation>Menu</div><!-- note --><script>s</script>"
    "<style>c</style><noscript>n</noscript><template>t</template><p hidden>h</p><?php p ?><svg><text>v</text></svg>"
    "<form><p>kept</p><input value=i><button>b</button><select><option>o</select></form><footer>(c)</footer>"
)
TABLE = "| A | B |\n| --- | --- |\n| 1 | 2 |"
LAYOUT = "<table><tr><td>menu<td><h2>Fees</h2>none<table><tr><th>a<tr><td>1</table></table>"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            "<h1>Fees &amp; limits</h1><p>There is <b>no</b>\n <a href='/x'>fee</a>.",
            "# Fees & limits\n\nThere is no fee.",
        ),
        ("<ul><li>cash<ol><li>1&nbsp;euro<li>2</ol><li><p>cards</ul>", "- cash\n  1. 1 euro\n  2. 2\n- cards"),
        ("<table><tr><th>Fee<th>Sum<tr><td>Cash<td>4&euro;</table>", "| Fee | Sum |\n| --- | --- |\n| Cash | 4€ |"),
        (NO_CONTENT, "kept"),
        ("<div>Menu</div><main><header><h1>Fees</h1></header>Kept</main><div>Ads</div>", "# Fees\n\nKept"),
        ("<main>One</main><main>Two</main>", "One\n\nTwo"),  # which is the content is not said
        (
            "<table><caption>All <b>fees</b></caption>stray<tr><th>a<tr><td>1</table>",
            "All fees\n\nstray\n\n| a |\n| --- |\n| 1 |",
        ),
        ("<table></table><table><tr><td></table>x", "x"),
        ("<table><tr><th>a|b<th>c<tr><td>1|2<td>3</table>", "| a\\|b | c |\n| --- | --- |\n| 1\\|2 | 3 |"),
        (LAYOUT, "menu\n\n## Fees\n\nnone\n\n| a |\n| --- |\n| 1 |"),
        ("<table role=presentation><tr><td>a<td>b</table>", "a\n\nb"),
        ("<p>= 5 euros<p><b>&lt; 5</b> - or # 5<p>a<br>&gt;5", "= 5 euros\n\n< 5 - or # 5\n\na\n>5"),
        ("<p>The fee is\n- or so -\n5. then</p>", "The fee is - or so - 5. then"),
        ("<ul><li>a</li><ul><li>b</li></ul><li>c</li></ul>", "- a\n  - b\n- c"),
        ("<ol start=9><li>a<li>b<p>c<p>d<ul><li>e</ul><li></ol>", "9. a\n10. b\n\n    c\n\n    d\n\n    - e"),
        ("<ol start=-3><li>a</ol>", "1. a"),
        (f"<ol start={'9' * 40}><li>a</ol>", "1. a"),
        ("<dl><dt>APR<dd>annual <p>rate<dt>EIR</dl>", "- APR: annual rate\n- EIR:"),
        ("<pre>a  b\n ```\n# c</pre>", "````\na  b\n ```\n# c\n````"),
        ("<p>Use <code>a_b*c</code> and 2*3*4_5_.", "Use `a_b*c` and 2*3*4_5_."),
        ('<p><img alt="The\n card" src=x><img src=y> <del>9</del> 8 m<sup>2</sup></p>', "The card ~~9~~ 8 m2"),
        (
            "<details><summary>Fees</summary>none</details><address>a</address><figure>b<figcaption>c",
            "Fees\n\nnone\n\na\n\nb\n\nc",
        ),
        ("<div>a<figure><img></figure> b<td>c</td>d</div>", "a b\n\nc\n\nd"),  # nothing joins two words
    ],
)
def test_html_to_markdown_converts_each_element(body: str, expected: str) -> None:
    assert markdown(body) == expected


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (  # a cell fills all that it spans
            "<thead><tr><th rowspan=2>Fee<th colspan=2>Amount<tr><th>at home<th>abroad</thead>"
            "<tr><td>Cash<td>1<td>2<tr><td rowspan=2>Both<td colspan=2>3<tr><td>4<td>5",
            [["Fee", "Amount at home", "Amount abroad"], ["Cash", "1", "2"], ["Both", "3", "3"], ["Both", "4", "5"]],
        ),
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
        ("<tr><th>a<th>a<tr><td>1<td>2", [["a", "a"], ["1", "2"]]),
        ("<tr><th colspan=2>a<th colspan=2>b<tr><td colspan=2>1<td colspan=2>2", [["a", "b"], ["1", "2"]]),
    ],
)
def test_html_table_irregular_becomes_regular(rows: str, expected: list[list[str]]) -> None:
    assert table(f"<table>{rows}</table>") == expected
    (section,) = split_sections(document(markdown(f"<table>{rows}</table>")))
    assert {chunk.kind for chunk in chunk_document(document(section.body))} == {"table"}


@pytest.mark.parametrize(
    "text",
    ["- a", "* a", "+", "# a", "## ", "1. a", "12) a", "> a", "---", "===", "___", "```", "~~~ a", "| a |", "<p>"],
)
def test_html_to_markdown_text_does_not_become_markup(text: str) -> None:
    line = html.escape(text)
    for body in (f"<p>{line}</p>z", f"<div>a<br>\n {line}<p>z</div>", f"x <i>{line}</i>"):
        (found,) = chunk_document(document(markdown(body)))
        assert found.kind == "text" and len(split_sections(document(markdown(body)))) == 1
        assert found.text.replace("\\", "").replace("\n", " ").find(text.strip()) > 0


def test_html_to_markdown_lines_like_a_table_are_text() -> None:
    for line in ("--- | ---", ":-- | --:"):
        assert [kind for kind, _ in chunks(markdown(f"<p>a | b<br>{line}<br>1 | 2"))] == ["text"]


@pytest.mark.slow
def test_html_twenty_thousand_items_take_seconds() -> None:
    found = markdown("<ol>" + "".join(f"<li>item {n}" for n in range(20_000)) + "</ol>")
    assert found.endswith("\n20000. item 19999")
    wide = "<tr>" + "<td colspan=1000 rowspan=60000>x" * 300
    assert len(grid := table(f"<table>{wide * 10}</table>")) == 11 and {len(row) for row in grid} == {len(grid[0])}


@pytest.mark.parametrize(
    "rows", [("<tr>" + "<td rowspan=1000>x" * 10) * 300, "<tr>" + "<td>x" * 500 + "<tr><td>x" * 500]
)
def test_html_table_of_too_many_places_raises(rows: str) -> None:
    with pytest.raises(UnreadablePage, match="a table has more than the 200,000 places allowed"):
        markdown(f"<table>{rows}</table>")
    assert normalize_markdown(f"<table>{rows}</table>") == f"<table>{rows}</table>"


def test_html_entities_are_decoded() -> None:
    text, decoded = "a&amp;b&#8364;c&nbsp;d&shy;e&x;f", "a&b€c de&x;f"
    assert html_to_markdown(f"<title>{text}</title><p>{text}") == ({"title": decoded}, decoded)


signs = st.text(st.sampled_from("-#*>|1.<&` "), max_size=4).map(html.escape)
tags = st.sampled_from(
    re.findall(r"\w+", "p div ul ol li table tr td th h2 b pre blockquote dl dt dd br caption thead section")
)
soup = st.lists(
    st.one_of(signs.map("{}w{{0:03}}{{1}} ".format), tags.map("<{}>".format), tags.map("</{}>".format)), max_size=25
)


@pytest.mark.heavy
@settings(max_examples=150)
@given(soup)
def test_html_any_page_keeps_every_word(parts: list[str]) -> None:
    body = "".join(part.replace("{0:03}{1}", f"{at:03}") for at, part in enumerate(parts))
    found = markdown(body)
    assert [word for word in re.findall(r"w\d{3}", body) if word not in found] == []
    below = re.findall(r"w\d{3}", re.sub("^#.*", "", found, flags=re.MULTILINE))  # a heading may have nothing below it
    chunked = " ".join(chunk.text for chunk in chunk_document(document(found))) if found else ""
    assert [word for word in below if word not in chunked] == []


@pytest.mark.parametrize(
    "body",
    [
        "<table>\n<tr><th>A</th><th>B</th></tr>\n<tr><td>1</td><td>2</td></tr>\n</table>",
        "<TABLE border=1><tr><th>A<th>B<tr><td>1<td>2</TABLE>",
        "<table>\n\n<tr><th>A</th><th>B</th></tr>\n\n    <tr><td>1</td>\n\n<td>2</td></tr>\n\n</table>",  # blank lines
        "<table><tr><th>A<th>B<tr><td>1<td>2",  # never closed
        '<div class="wide">\n<table><tr><th>A<th>B<tr><td>1<td>2</table>\n</div>',
        "> <table><tr><th>A<th>B<tr><td>1<td>2</table>",
        f"> {TABLE}".replace("\n", "\n> "),
        f">> {TABLE}".replace("\n", "\n>> "),
    ],
)
def test_normalize_table_in_any_notation_is_a_table(body: str) -> None:
    assert chunks(body) == [("table", TABLE)]
    assert chunks(f"x\n\n{body}\n\ny") == [("text", "x"), ("table", TABLE), ("text", "y")]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("<ul>\n<li>a\n<ul><li>b</ul>\n<li>c\n</ul>", "- a\n  - b\n- c"),
        ("<ul>\n\n<li>a\n\n<ul><li>b</li></ul>\n\n</li>\n\n<li>c</li>\n\n</ul>", "- a\n  - b\n- c"),
        ("<ol start=4><li>a<li>c</ol>", "4. a\n5. c"),
        ("<dl><dt>a<dd>b<dt>c<dd>d</dl>", "- a: b\n- c: d"),
        ("> - a\n>   b\n> - c", "- a\n  b\n- c"),
        ("> - a\nb\n> - c", "- a\nb\n- c"),  # the mark left out where the text goes on
        ("> 1. a\n> 2. c", "1. a\n2. c"),
    ],
)
def test_normalize_list_in_any_notation_is_a_list(body: str, expected: str) -> None:
    assert chunks(body) == [("list", expected)]


def test_normalize_text_around_a_list_stays() -> None:
    assert chunks("All **fees**: <ul><li>a<li>b</ul> No more.\n\nx") == [
        ("text", "All **fees**:"),
        ("list", "- a\n- b"),
        ("text", "No more.\n\nx"),
    ]


@pytest.mark.parametrize(
    "body",
    [
        "> quoted *text*\n> more\n",
        "<b>html</b> and <div>html</div>\n",
        "<div>\n\n- a\n\n</div>\n",
        "the tag <table> alone\n",
        "the tags `<ul><li>x</ul>` as code\n",
        "> the tags ``<ul>`</ul>`` as code\n",
        "```html\n<table><tr><td>x</table>\n```\n",
        "    <table><tr><td>x</table>\n",
        "<pre>\n<table>\n</pre>\n",
        "<!-- <ul> -->\n\nx\n\n<!-- </ul> -->\n",
        "- item\n\n  <table><tr><td>in an item, which is never cut</table>\n",
        "<tablet> <olive> <dlx>\n",
    ],
)
def test_normalize_other_text_stays(body: str) -> None:
    assert normalize_markdown(body) == body


@pytest.mark.parametrize(
    "body",
    [
        "<ul>\n\n" * 2_000 + "x",
        "<ul>" * 20_000 + "x",
        "> " * 5_000 + "- x",
        "> " * 5_000 + "<ul>x",
        "`" * 99_999 + "x",
    ],
    ids=["blocks", "tags", "quotes", "quoted tags", "backticks"],
)
@pytest.mark.slow
def test_normalize_deep_nesting_is_parsed_once(monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    parsed: list[int] = []
    monkeypatch.setattr(module, "parse_blocks", lambda text: parsed.append(len(text)) or parse_blocks(text))
    assert normalize_markdown(body).rstrip().endswith("x")
    assert parsed == [len(body)]


raw_tags = st.sampled_from(
    ["<table>", "</table>", "<tr>", "<td>", "<th>", "<ul>", "</ul>", "<ol>", "<li>", "<dl>", "<dd>", "<div>", "</div>"]
)
other = st.sampled_from(["> ", "- ", "1. ", "| ", "\n", "\n\n", "    ", " ", "**", "&lt;", "`"])
word = st.sampled_from(["aaa", "bbb.", "ccc"])


@pytest.mark.heavy
@settings(max_examples=200)
@given(st.lists(st.one_of(raw_tags, other, word), min_size=1, max_size=30).map("".join).filter(str.strip))
def test_normalize_any_html_keeps_every_letter(body: str) -> None:
    assume(not re.search(r"^[\s>]*- *$", body, re.MULTILINE))  # it makes the line above it a heading
    found = "".join(chunk.text.partition("\n")[2] for chunk in chunk_document(document(body), 40, len))
    assert [letter * 3 for letter in "abc" if (letter * 3 in body) != (letter * 3 in found)] == []
