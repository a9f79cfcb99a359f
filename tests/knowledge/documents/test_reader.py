import re
import sys
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.core.codes import Code
from abstain.core.contracts import NOBODY, Document
from abstain.core.errors import AbstainError
from abstain.data.store.dataset import explain_invalid_file_name
from abstain.knowledge.documents import reader as module
from abstain.knowledge.documents.reader import FileOrigin, get_parser, make_document, make_document_id, parse_document
from tests.factories import NOW

FRONT = "---\ndoc_id: gold\ntitle: Gold Card\nupdated_at: 2026-08-01T00:00:00Z\n---\n"
HEAD = (
    '<title>Gold Card</title><meta name="doc_id" content="gold"><meta name="updated_at" content="2026-08-01T00:00:00Z">'
)


def page(body: str = "<p>x</p>", head: str = HEAD) -> str:
    return f"<!doctype html><html><head>{head}</head><body>{body}</body></html>"


def parse(content: bytes | str, name: str) -> Document:
    return parse_document(content if isinstance(content, bytes) else content.encode(), name)


def read_error(content: bytes | str, name: str) -> str:
    with pytest.raises(AbstainError) as refused:
        parse(content, name)
    return str(refused.value)


def test_parse_document_page_equals_markdown() -> None:
    markdown = FRONT.replace("title", "entitlements: [premium, staff]\nproduct: cards\ntitle") + "\n# Fees\n\nNone.\n"
    read = parse(markdown, "gold.md")
    assert (read.doc_id, read.title, read.product, read.body) == ("gold", "Gold Card", "cards", "# Fees\n\nNone.")
    assert read.entitlements == ("premium", "staff")
    assert read.updated_at.isoformat() == "2026-08-01T00:00:00+00:00"
    extra = '<META NAME=Product CONTENT=cards><meta name="entitlements" content=" premium, ,staff ,premium">'
    html = page("<h1>Fees</h1><p>None.</p>", HEAD + extra)
    assert parse(html, "gold.HTML") == parse(html.encode(), "gold.htm") == read
    several = '<meta name="entitlements" content="staff"><meta name="entitlements" content="premium,staff">'
    assert parse(page(head=HEAD + several), "gold.html").entitlements == ("staff", "premium")
    others = (
        '<meta name="viewport" content="x"><meta name="title" content="y"><meta property="og:title" content="z"><meta>'
        '<meta name="theme-color" content="#fff"><meta name="theme-color" content="#000">'
    )
    assert parse(page(head=HEAD + others), "gold.html") == parse(page(), "gold.html")


def test_parse_document_nul_becomes_a_replacement_character() -> None:
    texts = {"gold.md": FRONT + "a\0b", "gold.html": page("a\0b")}
    assert {parse(text, name).body for name, text in texts.items()} == {"a\ufffdb"}


def change_front(old: str, new: str) -> str:
    return FRONT.replace(old, new) + "x"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# Fees\n\nNone.\n", "updated_at: "),  # which a file's time gives, where there is a file
        ("---\ndoc_id: [\n---\nx", "the front matter is not valid YAML: "),
        ("---\ndoc_id: \x00\n---\nx", "the front matter is not valid YAML: "),
        (change_front("2026-08-01T00:00:00Z", "2026-13-45"), "the front matter is not valid YAML: "),
        (change_front("gold", "[" * 500), "the front matter is not valid YAML: "),
        ("+++\ntitle = \n+++\nx", "the front matter is not valid TOML: "),
        (change_front("Gold Card", "x" * (module.MAX_TITLE + 1)), f"the title has {module.MAX_TITLE + 1} characters"),
        (change_front("2026-08-01T00:00:00Z", "soon"), "updated_at: "),
        (change_front("2026-08-01T00:00:00Z", "'0001-01-01T00:00:00+14:00'"), "updated_at: .* the years 1 to 9999"),
        (change_front("title", "entitlements: [staff]\nentitlements: []\ntitle"), ".* names 'entitlements' twice"),
        (change_front("title", 'entitlements: [staff]\n"entitlements": []\ntitle'), ".* names 'entitlements' twice"),
        (change_front("title", "<<: {entitlements: [a]}\nentitlements: []\ntitle"), ".* names 'entitlements' twice"),
        (change_front("title", "entitlements: {a: 1, a: 2}\ntitle"), ".* names 'a' twice"),
        (change_front("title", "Entitlement: [staff]\ntitle"), "unknown field 'Entitlement'.*'entitlements'"),
        (FRONT, "there is no text"),
    ],
)
def test_parse_document_wrong_markdown_is_one_line(text: str, message: str) -> None:
    assert re.match(f"in/gold.md: {message}", read_error(text, "in/gold.md"))


@pytest.mark.parametrize(
    ("front", "expected"),
    [
        ("---\ntitle: Fees\ndate: 2026-08-01\n---\n", "Fees"),
        ("\n\n---\nlast_update:\n  date: 2026-08-01\n---\n# Fees {#fees}\n", "Fees"),
        ('+++\ntitle = "Fees"\nlastmod = 2026-08-01T00:00:00Z\n+++\n', "Fees"),
        ("---\nupdated_at: 2026-08-01 00:00\n---\n\nText.\n\n## Fees ##\n", "Fees"),
        ("---\nrevision_date: '2026-08-01'\n---\n", "gold"),  # of the file
    ],
)
def test_parse_document_reads_front_matter_of_site_generators(front: str, expected: str) -> None:
    read = parse(front + "\nNone.\n", "cards/gold.md")
    assert (read.doc_id, read.title) == ("cards.gold", expected)
    assert read.updated_at.isoformat() == "2026-08-01T00:00:00+00:00"
    assert read.entitlements == (NOBODY,) and read.body.endswith("None.")


def test_parse_document_rule_and_table_are_no_front_matter() -> None:
    fields, body = get_parser("a.md")(b"---\n\nText.\n\n---\n")
    assert fields == {} and body.startswith("---")


def test_make_document_completes_the_file_from_its_origin() -> None:
    origin = FileOrigin("cards/gold.md", NOW, "cards", ("staff",), {"doc_id": "slug", "updated_at": "review.last"})
    read = make_document({"doc_id": "no", "slug": "gold", "tags": ["a"], "review": {"owner": "b"}}, "# Gold", origin)
    document = read.document
    assert (document.doc_id, document.title) == ("gold", "Gold")
    assert (document.product, document.entitlements) == ("cards", ("staff",))
    assert document.updated_at == NOW and not read.has_own_time
    assert read.unused_fields == ("doc_id", "tags", "review")
    own = make_document({"entitlements": [], "product": "loans", "review": {"last": date(2026, 1, 2)}}, "x", origin)
    assert (own.document.product, own.document.entitlements, own.has_own_time) == ("loans", (), True)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fees.md", "fees"),
        ("cards/gold/fees.pdf", "cards.gold.fees"),
        ("Fees & rates.docx", r"Fees-rates-[0-9a-f]{8}"),
        ("_index.md", r"index-[0-9a-f]{8}"),
        ("手数料.md", r"[0-9a-f]{8}"),
        ("a/" * 100 + "fees.md", r"(a\.)+a?-?[0-9a-f]{8}"),
    ],
)
def test_make_document_id_is_the_path_that_names_a_file(name: str, expected: str) -> None:
    doc_id = make_document_id(name)
    assert re.fullmatch(expected, doc_id) and explain_invalid_file_name(doc_id) is None


def test_make_document_id_differs_where_paths_differ() -> None:
    names = ["手数料.md", "手続き.md", "a b.md", "a-b.md", "a&b.md", "_a.md", "a.md"]
    assert len({make_document_id(name) for name in names}) == len(names)


TEXT = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1)  # others are refused in the front matter


@given(TEXT, st.text(), st.lists(TEXT, max_size=2))
def test_serialize_document_is_parsed_as_it_was(title: str, body: str, entitlements: list[str]) -> None:
    try:
        document = Document(doc_id="a", title=title, entitlements=entitlements, updated_at=NOW, body=f"---\n{body}x")
        content = module.serialize_document(document)
    except ValueError:  # blank, or half a character
        return
    assert module.parse_stored_document(content) == document


def test_parse_document_ignores_byte_order_mark_and_crlf() -> None:
    body = "# Fees\n\n- one\n- two\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    plain = parse(FRONT + body, "gold.md")
    windows = parse("\ufeff" + (FRONT + body).replace("\n", "\r\n"), "gold.md")
    assert windows == plain == parse(b"\xef\xbb\xbf" + (FRONT + body).encode(), "gold.md")
    assert "\r" not in windows.body
    marked = b"\xef\xbb\xbf" + page("<p>a\r\nb</p>").encode()
    assert parse(marked, "gold.html") == parse(page("<p>a b</p>"), "gold.html")


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
    read = parse(page("<p>Gebühr: 4 €</p>", declaration + HEAD).encode(encoding), "gold.html")
    assert read.body == "Gebühr: 4 €"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.md", FRONT.encode() + b"\xff", r"not valid UTF-8 \(byte 72 is 0xff\)"),
        ("a.html", page("é").encode("latin-1"), r".*\(byte \d+ is 0xe9\)"),
        ("a.html", page("é", '<meta charset="ascii-7">' + HEAD).encode(), ".*the unknown charset 'ascii-7'"),
        ("a.html", page("+2AA-", '<meta charset="utf-7">' + HEAD).encode(), ".*not valid utf-7"),
        ("a.html", page("é", '<meta charset="base64">' + HEAD).encode(), ".*the unknown charset 'base64'"),
        ("a.html", page("x", '<meta charset="utf-8">' + HEAD).encode() + b"\xff", ".*not valid utf-8 .*byte"),
        ("a.html", page(head=HEAD.replace("2026-08-01T00:00:00Z", "soon")), "updated_at: "),
        ("a.html", page(head=HEAD + '<meta name="doc_id" content="b">'), '<meta name="doc_id"> is there twice'),
        ("a.html", page(head=HEAD + '<meta name="Entitlement" content="a">'), "unknown field 'entitlement'"),
        ("a.html", page("<nav>a</nav><script>b</script> "), "there is no text"),
        ("a.md", b"%PDF-1.7", ".*rename or convert"),
        ("a.pdf", b"PK\x03\x04", ".*rename or convert"),
        ("a.docx", b"%PDF-", ".*rename or convert"),
    ],
)
def test_parse_document_wrong_content_is_one_line(name: str, content: bytes | str, message: str) -> None:
    assert re.match(f"{name}: {message}", read_error(content, name))


@given(
    st.binary(max_size=60), st.sampled_from(["a.md", "a.html"]), st.sampled_from([b"", FRONT.encode(), HEAD.encode()])
)
def test_parse_document_any_bytes_are_a_document_or_one_line(content: bytes, name: str, before: bytes) -> None:
    try:
        assert parse(before + content, name).doc_id == "gold"
    except AbstainError as error:
        assert re.match(rf"{name}: [^\n]+\Z", str(error))


@pytest.mark.parametrize(("name", "package"), [("a.docx", "mammoth"), ("a.pdf", "pdfplumber")])
def test_get_parser_names_the_extra_that_is_missing(monkeypatch: pytest.MonkeyPatch, name: str, package: str) -> None:
    module = {"a.docx": "word", "a.pdf": "pdf"}[name]
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"abstain.knowledge.documents.{module}", raising=False)
    with pytest.raises(AbstainError, match=r"abstain\[documents\]", check=lambda error: error.code is Code.NO_PACKAGE):
        get_parser(name)
