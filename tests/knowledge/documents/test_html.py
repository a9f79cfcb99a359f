"""HTML pages as Markdown: never a way around whole rows and whole items."""

import html
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.knowledge.documents.chunks import chunk_document
from abstain.knowledge.documents.html import html_to_markdown, parse_html
from abstain.knowledge.documents.sections import split_sections
from tests.knowledge.builders import document
from tests.knowledge.documents.test_chunks import chunks


def markdown(body: str) -> str:
    return html_to_markdown(f"<body>{body}</body>")


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
        ("<label>Home</label><label>Abroad</label>", "Home\n\nAbroad"),  # tabs
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
        ("<tr><th>a<tr><td><p>x<p>y<ul><li>1<li>2</ul><br>z", [["a"], ["x y • 1 • 2 z"]]),
        ("<tr><th>a<tr><td>x<ol><li>1<ul><li>2</ul></ol><dl><dt>y<dd>3", [["a"], ["x 1. 1 • 2 • y: 3"]]),
        ("<tr><th>a<tr><td><table><tr><td>1<td>2<tr><td>3</table>", [["a"], ["1, 2; 3"]]),
        ("<tr><th>a<th>a<tr><td>1<td>2", [["a", "a"], ["1", "2"]]),
        ("<tr><th colspan=2>a<th colspan=2>b<tr><td colspan=2>1<td colspan=2>2", [["a", "b"], ["1", "2"]]),
    ],
)
def test_html_table_irregular_becomes_regular(rows: str, expected: list[list[str]]) -> None:
    assert table(f"<table>{rows}</table>") == expected
    (section,) = split_sections(document(markdown(f"<table>{rows}</table>")))
    assert {chunk.kind for chunk in chunk_document(document(section.body))} == {"table"}


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ("<tr><th>Type<th>Euro<tr><td>Main<td>90<tr><td>Second<td>12", "Type: Main, Euro: 90; Type: Second, Euro: 12"),
        ("<tr><th>Type<th>Euro<tr><td>Main<td>", "Type: Main"),  # an empty cell says nothing
        ("<tr><th><th>Euro<tr><th>Main<td>90", "Main, Euro: 90"),
        ("<tr><th>Type<th>Euro", "Type, Euro"),
        ("<caption>2026:</caption><tr><td>Main<td>90", "2026: Main, 90"),
        ("<tr><th>Fee<tr><td><table><tr><th>Euro<tr><td>9</table>", "Fee: Euro: 9"),
    ],
)
def test_html_table_in_a_cell_keeps_its_rows(inner: str, expected: str) -> None:
    rows = f"<tr><th>Card<th>Fees<tr><td>Gold<td><table>{inner}</table>"
    assert table(f"<table>{rows}</table>") == [["Card", "Fees"], ["Gold", expected]]


CONFLUENCE = (
    "<div id=main-header><div id=breadcrumb-section><ol id=breadcrumbs><li><a>Bank</a></ol></div>"
    "<h1 id=title-heading class=pagetitle>Fees</h1></div>"
    "<div id=content class=view><div class=page-metadata>Created by <span class=author>A. Person</span></div>"
    "<div id=main-content class='wiki-content group'><div class=toc-macro><ul><li>Cash</ul></div><h2>Cash</h2>"
    "<p>None.</div><div class='pageSection group'><div class=pageSectionHeader><h2 id=attachments>Attachments:</h2>"
    "</div><div class=greybox>scan.pdf</div></div></div><div id=footer role=contentinfo><p>Generated</div>"
)
MKDOCS = (
    "<a href='#fees' class=md-skip>Skip to content</a><header class=md-header>Bank</header><div class=md-container>"
    "<main class=md-main><div class='md-sidebar md-sidebar--primary'><nav class=md-nav><ul><li>Home</ul></nav></div>"
    "<div class=md-content><article class='md-content__inner'><a class='md-content__button md-icon' title='Edit'>Edit</a>"
    "<h1 id=fees>Fees<a class=headerlink href='#fees'>&para;</a></h1><div class=toc><ul><li>Cash</ul></div>"
    "<h2>Cash<a class=headerlink>&para;</a></h2><p>None.<aside class=md-source-file>July 1</aside></article></div></main>"
    "<footer class=md-footer>Next</footer></div>"
)
DOCUSAURUS = (
    "<div role=region class=skipToContent_x><a>Skip to main content</a></div><nav class=navbar>Bank</nav>"
    "<aside class=theme-doc-sidebar-container><ul><li>Home</ul></aside><main><nav class=breadcrumbs><ul><li>Cards</ul>"
    "</nav><div class='tocCollapsible_x theme-doc-toc-mobile'><button>On this page</button></div>"
    "<div class=theme-doc-markdown><header><h1>Fees</h1></header><h2>Cash<a class=hash-link>&#8203;#</a></h2><p>None."
    "</div><footer class='theme-doc-footer'><a class=theme-edit-this-page>Edit this page</a></footer>"
    "<nav class=pagination-nav>Next</nav><div class='tableOfContents_x theme-doc-toc-desktop'><ul><li>Cash</ul></div></main>"
)
SPHINX = (
    "<div class=related role=navigation><ul><li>index</ul></div><div class=document><div class=body role=main>"
    "<h1>Fees<a class=headerlink>&para;</a></h1><h2>Cash<a class=headerlink>&para;</a></h2><p>None.</div></div>"
    "<div class=sphinxsidebar><h3>Table of Contents</h3></div><div class=footer>Created using Sphinx</div>"
)


@pytest.mark.parametrize(
    "page", [CONFLUENCE, MKDOCS, DOCUSAURUS, SPHINX], ids=["Confluence", "MkDocs", "Docusaurus", "Sphinx"]
)
def test_html_frame_of_a_page_is_left_out(page: str) -> None:
    assert markdown(page) == "# Fees\n\n## Cash\n\nNone."


@pytest.mark.heavy
def test_html_deep_tags_are_read_or_refused() -> None:
    assert markdown("<div>" * 200 + "Fee: 12 euros.") == "Fee: 12 euros."
    with pytest.raises(AbstainError, check=lambda error: error.code is Code.TOO_LARGE):
        markdown("<div>" * 20_000 + "x")


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


def test_html_entities_are_decoded() -> None:
    text, decoded = "a&amp;b&#8364;c&nbsp;d&shy;e&x;f", "a&b€c de&x;f"
    assert parse_html(f"<title>{text}</title><p>{text}".encode()) == ({"title": decoded}, decoded)


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
