"""Raw HTML and quotes in Markdown: never a way around whole rows and whole items."""

import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.knowledge.documents.chunks import chunk_document
from abstain.knowledge.documents.normalize_markdown import normalize_markdown
from tests.knowledge.builders import document
from tests.knowledge.documents import test_chunks

TABLE = "| A | B |\n| --- | --- |\n| 1 | 2 |"


def chunks(body: str) -> list[tuple[str, str]]:
    return test_chunks.chunks(normalize_markdown(body))


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
        ("> - a\n>   b\n> - c", "- a b\n- c"),
        ("> - a\nb\n> - c", "- a b\n- c"),  # the mark left out where the text goes on
        ("> 1. a\n> 2. c", "1. a\n2. c"),
    ],
)
def test_normalize_list_in_any_notation_is_a_list(body: str, expected: str) -> None:
    assert chunks(body) == [("list", expected)]


def test_normalize_text_around_a_list_is_text() -> None:
    assert chunks("All **fees**: <ul><li>a<li>b</ul> No more.\n\nx") == [
        ("text", "All fees:"),
        ("list", "- a\n- b"),
        ("text", "No more.\n\nx"),
    ]


def test_normalize_changes_a_section_between_its_structures() -> None:
    raw = "<table><tr><th>A<th>B<tr><td>1<td>2</table>"
    body = f"# *One*\n\n[a](b)\n\n{raw}\n\n**bold**\n\n> quote\n\n{raw}\n\n*after*\n\n# Two\n\n> *quote*\n"
    between = f"{TABLE}\n\nbold\n\nquote\n\n{TABLE}"
    expected = f"# *One*\n\n[a](b)\n\n{between}\n\n*after*\n\n# Two\n\n> *quote*\n"
    assert normalize_markdown(body).replace("\n\n\n", "\n\n") == expected


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
    ["<ul>\n\n" * 200 + "x", "> " * 99 + "- x", "> " * 99 + "<ul>x", "`" * 99_999 + "x <ul>", "*" * 20_000 + "x <ul>"],
    ids=["blocks", "quotes", "quoted tags", "backticks", "stars"],
)
@pytest.mark.slow
def test_normalize_deep_nesting_keeps_its_text(body: str) -> None:
    assert "x" in normalize_markdown(body)


@pytest.mark.heavy
@pytest.mark.parametrize("body", ["<ul>" * 20_000 + "x", "> " * 5_000 + "- x", "[" * 20_000 + "<ul>"])
def test_normalize_too_deep_nesting_is_refused(body: str) -> None:
    with pytest.raises(AbstainError, check=lambda error: error.code is Code.TOO_LARGE):
        normalize_markdown(body)


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
    markdown = normalize_markdown(body)
    parts = chunk_document(document(markdown), 40, len) if markdown.strip() else []
    found = "".join(chunk.text.partition("\n")[2] for chunk in parts)
    assert [letter * 3 for letter in "abc" if (letter * 3 in body) != (letter * 3 in found)] == []
