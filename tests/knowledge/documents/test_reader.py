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


def read_error(content: bytes | str, name: str) -> str:
    with pytest.raises(AbstainError) as refused:
        parse_document(content, name)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_parse_document_page_equals_markdown() -> None:
    markdown = FRONT.replace("title", "entitlements: [premium, staff]\nproduct: cards\ntitle") + "\n# Fees\n\nNone.\n"
    read = parse_document(markdown, "gold.md")
    assert (read.doc_id, read.title, read.product, read.body) == ("gold", "Gold Card", "cards", "# Fees\n\nNone.")
    assert read.entitlements == ("premium", "staff")
    assert read.updated_at.isoformat() == "2026-08-01T00:00:00+00:00"
    extra = '<META NAME=Product CONTENT=cards><meta name="entitlements" content=" premium, ,staff ,premium">'
    html = page("<h1>Fees</h1><p>None.</p>", HEAD + extra)
    assert parse_document(html, "gold.HTML") == parse_document(html.encode(), "gold.htm") == read
    several = '<meta name="entitlements" content="staff"><meta name="entitlements" content="premium,staff">'
    assert parse_document(page(head=HEAD + several), "gold.html").entitlements == ("staff", "premium")
    others = (
        '<meta name="viewport" content="x"><meta name="title" content="y"><meta property="og:title" content="z"><meta>'
    )
    assert parse_document(page(head=HEAD + others), "gold.html") == parse_document(page(), "gold.html")


def test_parse_document_nul_becomes_a_replacement_character() -> None:
    texts = {"gold.md": FRONT + "a\0b", "gold.html": page("a\0b")}
    assert {parse_document(text, name).body for name, text in texts.items()} == {"a\ufffdb"}


def change_front(old: str, new: str) -> str:
    return FRONT.replace(old, new) + "x"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# Fees\n", "no front matter: .*doc_id, title and updated_at"),
        ("---\ndoc_id: gold\n", "no front matter: "),
        ("---\ndoc_id: [\n---\nx", "the front matter is not valid YAML: "),
        ("---\ndoc_id: \x00\n---\nx", "the front matter is not valid YAML: "),
        (change_front("2026-08-01T00:00:00Z", "2026-13-45"), "the front matter cannot be read: "),
        (change_front("gold", "[" * 500), "the front matter (cannot be read|is not valid YAML): "),
        ("---\n- doc_id\n---\nx", "the front matter holds no 'name: value' lines"),
        (change_front("title: Gold Card\n", ""), "the front matter lacks 'title'"),
        (change_front("title", "tilte: Gold\ntitle"), "unknown front matter field 'tilte'"),
        (change_front("Gold Card", "x" * (MAX_TITLE + 1)), f"the title has {MAX_TITLE + 1} characters"),
        (change_front("00Z", "00"), "front matter field 'updated_at': "),
        (change_front("2026-08-01T00:00:00Z", "'0001-01-01T00:00:00+14:00'"), "'updated_at' .* the years 1 to 9999"),
        (change_front("title", "entitlements: [staff]\nentitlements: []\ntitle"), ".* names 'entitlements' twice"),
        (change_front("title", 'entitlements: [staff]\n"entitlements": []\ntitle'), ".* names 'entitlements' twice"),
        (change_front("title", "<<: {entitlements: [a]}\nentitlements: []\ntitle"), ".* names 'entitlements' twice"),
        (change_front("title", "entitlements: {a: 1, a: 2}\ntitle"), ".* names 'a' twice"),
        (FRONT, "there is no text below the front matter"),
        (change_front("title", "body: x\ntitle"), "'body' is no front matter field"),
    ],
)
def test_parse_document_wrong_markdown_is_one_line(text: str, message: str) -> None:
    assert re.match(f"in/gold.md: {message}", read_error(text, "in/gold.md"))


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            page(head=HEAD.replace('<meta name="doc_id" content="gold">', "")),
            'the page lacks \'doc_id\': add <meta name="doc_id" content="...">$',
        ),
        (page(head=HEAD.replace("Gold Card", " ")), "the page lacks 'title'"),
        (page(head=HEAD.replace("00Z", "00")), "page field 'updated_at': "),
        (page(head=HEAD.replace('content="gold"', 'content=""')), "page field 'doc_id': "),
        (page(head=HEAD.replace('content="gold"', "")), '<meta name="doc_id"> is empty'),
        (page(head=HEAD + '<meta name="doc_id" content="b">'), '<meta name="doc_id"> is there twice'),
        (page(head=HEAD + '<meta name="Entitlement" content="a">'), '<meta name="entitlement"> .*"entitlements"'),
        (page("<nav>a</nav><script>b</script> "), "there is no text in the page's body"),
        pytest.param(page("<div>" * 20_000 + "x"), "its tags are nested too deeply", id="nested"),
    ],
)
def test_parse_document_wrong_page_is_one_line(text: str, message: str) -> None:
    assert re.match(f"in/gold.html: {message}", read_error(text, "in/gold.html"))


def test_parse_document_ignores_byte_order_mark_and_crlf() -> None:
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
def test_parse_document_page_in_its_declared_charset(declaration: str, encoding: str) -> None:
    read = parse_document(page("<p>Gebühr: 4 €</p>", declaration + HEAD).encode(encoding), "gold.html")
    assert read.body == "Gebühr: 4 €"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.md", FRONT.encode() + b"\xff", r"not valid UTF-8 \(byte 72 is 0xff\)"),
        ("a.html", page("é").encode("latin-1"), r".*\(byte \d+ is 0xe9\)"),
        ("a.html", page("é", '<meta charset="ascii-7">' + HEAD).encode(), ".*the unknown charset 'ascii-7'"),
        ("a.html", page("+2AA-", '<meta charset="utf-7">' + HEAD).encode(), ".*not valid utf-7, .*half a character"),
        ("a.html", page("é", '<meta charset="base64">' + HEAD).encode(), ".*the unknown charset 'base64'"),
        ("a.html", page("x", '<meta charset="utf-8">' + HEAD).encode() + b"\xff", ".*not valid utf-8, .*byte"),
    ],
)
def test_parse_document_that_is_no_text_raises(name: str, content: bytes, message: str) -> None:
    assert re.match(f"{name}: {message}", read_error(content, name))


@given(
    st.binary(max_size=60), st.sampled_from(["a.md", "a.html"]), st.sampled_from([b"", FRONT.encode(), HEAD.encode()])
)
def test_parse_document_any_bytes_are_a_document_or_one_line(content: bytes, name: str, before: bytes) -> None:
    try:
        assert parse_document(before + content, name).doc_id == "gold"
    except AbstainError as error:
        assert re.match(rf"{name}: [^\n]+\Z", str(error))
