import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.core.errors import AbstainError
from abstain.knowledge.documents.reader import MAX_TITLE, parse_document

FRONT = "---\ndoc_id: gold\ntitle: Gold Card\nupdated_at: 2026-08-01T00:00:00Z\n---\n"
HEAD = (
    '<title>Gold Card</title><meta name="doc_id" content="gold"><meta name="updated_at" content="2026-08-01T00:00:00Z">'
)


def page(body: str = "<p>x</p>", head: str = HEAD) -> str:
    return f"<!doctype html><html><head>{head}</head><body>{body}</body></html>"


def refusal(content: bytes | str, name: str) -> str:
    with pytest.raises(AbstainError) as refused:
        parse_document(content, name)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_front_matter_and_body_are_read() -> None:
    text = FRONT.replace("title", "entitlements: [premium, staff]\nproduct: cards\ntitle") + "\n# Fees\n"
    read = parse_document(text, "gold.md")
    assert (read.doc_id, read.title, read.product, read.body) == ("gold", "Gold Card", "cards", "# Fees")
    assert read.entitlements == ("premium", "staff")
    assert read.updated_at.isoformat() == "2026-08-01T00:00:00+00:00"


def test_a_page_and_a_file_of_markdown_become_the_same_document() -> None:
    markdown = FRONT.replace("title", "entitlements: [premium, staff]\nproduct: cards\ntitle") + "# Fees\n\nNone."
    extra = '<META NAME=Product CONTENT=cards><meta name="entitlements" content=" premium, ,staff ,premium">'
    html = page("<h1>Fees</h1><p>None.</p>", HEAD + extra)
    assert parse_document(html, "gold.HTML") == parse_document(markdown, "gold.md")
    assert parse_document(html, "gold", "html") == parse_document(html.encode(), "gold.htm")


def test_a_nul_in_the_text_is_told_and_kept_from_databases() -> None:
    assert (
        parse_document(FRONT + "a\0b", "gold.md").body == parse_document(page("a\0b"), "gold.html").body == "a\ufffdb"
    )


def test_entitlements_may_stand_in_several_tags() -> None:
    tags = '<meta name="entitlements" content="staff"><meta name="entitlements" content="premium,staff">'
    assert parse_document(page(head=HEAD + tags), "gold.html").entitlements == ("staff", "premium")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# Fees\n", "no front matter: begin the file with '---', the lines doc_id, title and updated_at, '---'"),
        ("---\ndoc_id: gold\n", "no front matter: "),
        ("---\ndoc_id: [\n---\nx", "the front matter is not valid YAML: while parsing"),
        ("---\ndoc_id: \x00\n---\nx", "the front matter is not valid YAML: "),
        (FRONT.replace("2026-08-01T00:00:00Z", "2026-13-45") + "x", "the front matter cannot be read: month must be"),
        (FRONT.replace("gold", "[" * 500) + "x", "the front matter (cannot be read|is not valid YAML): "),
        ("---\n- doc_id\n---\nx", "the front matter holds no 'name: value' lines: add doc_id, title, updated_at"),
        (FRONT.replace("title: Gold Card\n", "") + "x", "the front matter lacks 'title': add a line 'title: ...'"),
        (
            FRONT.replace("title", "tilte: Gold\ntitle") + "x",
            "unknown front matter field 'tilte': use doc_id, title, product, entitlements, updated_at",
        ),
        (FRONT.replace("Gold Card", "x" * (MAX_TITLE + 1)) + "x", f"the title has {MAX_TITLE + 1} characters, and "),
        (FRONT.replace("00Z", "00") + "x", "front matter field 'updated_at': .*: write it in UTC, as in 2026-"),
        (
            FRONT.replace("2026-08-01T00:00:00Z", "'0001-01-01T00:00:00+14:00'") + "x",
            "'updated_at' lies outside the years 1 to 9999",
        ),
        (
            FRONT.replace("title", "entitlements: [staff]\nentitlements: []\ntitle") + "x",
            "the front matter names 'entitlements' twice: keep one of the two$",
        ),
        (
            FRONT.replace("title", 'entitlements: [staff]\n"entitlements": []\ntitle') + "x",
            "the front matter names 'entitlements' twice: ",
        ),
        (
            FRONT.replace("title", "<<: {entitlements: [staff]}\nentitlements: []\ntitle") + "x",
            "the front matter names 'entitlements' twice: ",
        ),
        (FRONT.replace("title", "entitlements: {a: 1, a: 2}\ntitle") + "x", "the front matter names 'a' twice: "),
        (FRONT, "there is no text below the front matter: write the document there"),
        (FRONT.replace("title", "body: x\ntitle") + "x", "'body' is no front matter field: write the text below"),
    ],
)
def test_what_is_wrong_with_markdown_is_one_line_that_names_file_problem_and_remedy(text: str, message: str) -> None:
    assert re.match(f"in/gold.md: {message}", refusal(text, "in/gold.md"))


def head_without(name: str) -> str:
    return re.sub(f'<meta name="{name}"[^>]*>', "", HEAD)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (page(head=head_without("doc_id")), 'the page lacks \'doc_id\': add <meta name="doc_id" content="...">$'),
        (page(head=HEAD.replace("Gold Card", " ")), "the page lacks 'title': add a <title>$"),
        (page(head=HEAD.replace("00Z", "00")), "page field 'updated_at': .*: write it in UTC"),
        (page(head=HEAD.replace('content="gold"', 'content=""')), "page field 'doc_id': "),
        (page(head=HEAD.replace('content="gold"', "")), '<meta name="doc_id"> is empty: add content="..."$'),
        (
            page(head=HEAD + '<meta name="doc_id" content="b">'),
            '<meta name="doc_id"> is there twice, as "gold" and as "b"',
        ),
        (
            page(head=HEAD + '<meta name="Entitlement" content="staff">'),
            '<meta name="entitlement"> is unknown: did you mean "entitlements"\\?$',
        ),
        (page("<nav>a</nav><script>b</script> "), "there is no text in the page's body: if a script draws it"),
        pytest.param(
            page("<div>" * 20_000 + "x"),
            "its tags are nested too deeply to be read, more than the 100 allowed: simplify the page$",
            id="nested",
        ),
    ],
)
def test_what_is_wrong_with_a_page_is_one_line_that_names_file_problem_and_remedy(text: str, message: str) -> None:
    assert re.match(f"in/gold.html: {message}", refusal(text, "in/gold.html"))


def test_what_else_a_page_says_of_itself_is_no_business_of_ours() -> None:
    tags = (
        '<meta name="viewport" content="x"><meta name="title" content="y"><meta property="og:title" content="z"><meta>'
    )
    assert parse_document(page(head=HEAD + tags), "gold.html") == parse_document(page(), "gold.html")


def test_windows_line_ends_and_a_byte_order_mark_change_nothing() -> None:
    body = "# Fees\n\n- one\n- two\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    plain = parse_document(FRONT + body, "gold.md")
    windows = parse_document("\ufeff" + (FRONT + body).replace("\n", "\r\n"), "gold.md")
    assert windows == plain == parse_document(b"\xef\xbb\xbf" + (FRONT + body).encode(), "gold.md")
    assert "\r" not in windows.body
    marked = b"\xef\xbb\xbf" + page("<p>a\r\nb</p>").encode()
    assert parse_document(marked, "gold.html") == parse_document(page("<p>a b</p>"), "gold.html")


@pytest.mark.parametrize(
    ("declaration", "encoding"),
    [
        ('<meta charset="windows-1252">', "windows-1252"),
        ('<meta charset="iso-8859-1">', "windows-1252"),  # as browsers take it: the euro sign is in it
        ('<meta http-equiv="Content-Type" content="text/html; charset=ISO-8859-15">', "iso-8859-15"),
        ('<meta charset="UTF-8">', "utf-8"),
        ("", "utf-8"),
        ('<meta charset="utf-16">', "utf-8"),  # who can read it in ASCII knows better
        ("", "utf-16"),  # with its byte order mark
    ],
)
def test_a_page_is_read_in_the_charset_that_it_declares(declaration: str, encoding: str) -> None:
    read = parse_document(page("<p>Gebühr: 4 €</p>", declaration + HEAD).encode(encoding), "gold.html")
    assert read.body == "Gebühr: 4 €"


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (FRONT.encode() + b"\xff", "a.md", "not valid UTF-8 (byte 72 is 0xff): save it as UTF-8"),
        (page("é").encode("latin-1"), "a.html", "is 0xe9): save it as UTF-8"),
        (
            page("é", '<meta charset="ascii-7">' + HEAD).encode(),
            "a.html",
            "declares the unknown charset 'ascii-7': save it",
        ),
        (
            page("+2AA-", '<meta charset="utf-7">' + HEAD).encode(),
            "a.html",
            "not valid utf-7, which it declares to be (half a character): save it as UTF-8",
        ),
        (
            page("é", '<meta charset="base64">' + HEAD).encode(),
            "a.html",
            "declares the unknown charset 'base64': save it",
        ),
        (
            page("x", '<meta charset="utf-8">' + HEAD).encode() + b"\xff",
            "a.html",
            "not valid utf-8, which it declares to be (byte",
        ),
    ],
)
def test_bytes_that_are_no_text_are_refused(content: bytes, name: str, message: str) -> None:
    said = refusal(content, name)
    assert said.startswith(f"{name}: ")
    assert message in said


@given(
    st.binary(max_size=60), st.sampled_from(["a.md", "a.html"]), st.sampled_from([b"", FRONT.encode(), HEAD.encode()])
)
def test_no_bytes_are_anything_but_a_document_or_one_line(content: bytes, name: str, before: bytes) -> None:
    try:
        assert parse_document(before + content, name).doc_id == "gold"
    except AbstainError as error:
        assert re.match(rf"{name}: [^\n]+\Z", str(error))
