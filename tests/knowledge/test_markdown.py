import hashlib
import re
from itertools import count

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from abstain.contracts import Document
from abstain.errors import AbstainError
from abstain.knowledge.markdown import chunk_document, parse_document

FRONT = "---\ndoc_id: gold\ntitle: Gold Card\nupdated_at: 2026-08-01T00:00:00Z\n---\n"


def document(body: str, title: str = "Gold Card") -> Document:
    return Document(doc_id="gold", title=title, updated_at="2026-08-01T00:00:00Z", body=body)


def chunks(body: str, budget: int = 600) -> list[tuple[str, str]]:
    """Kind and text of each chunk, without the line of its section path."""
    return [(chunk.kind, chunk.text.partition("\n")[2]) for chunk in chunk_document(document(body), budget)]


def test_front_matter_and_body_are_read() -> None:
    text = FRONT.replace("title", "entitlements: [premium, staff]\nproduct: cards\ntitle") + "\n# Fees\n"
    read = parse_document(text, "gold.md")
    assert (read.doc_id, read.title, read.product, read.body) == ("gold", "Gold Card", "cards", "# Fees")
    assert read.entitlements == ("premium", "staff")
    assert read.updated_at.isoformat() == "2026-08-01T00:00:00+00:00"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# Fees\n", "no front matter: begin the file with '---', the lines doc_id, title and updated_at, '---'"),
        ("\n" + FRONT + "x", "no front matter: "),
        ("---\ndoc_id: gold\n", "no front matter: "),
        ("---\ndoc_id: [\n---\nx", "the front matter is not valid YAML: while parsing"),
        ("---\n- doc_id\n---\nx", "the front matter holds no 'name: value' lines: add doc_id, title, updated_at"),
        ("---\n---\nx", "the front matter holds no 'name: value' lines: add"),
        (FRONT.replace("title: Gold Card\n", "") + "x", "the front matter lacks 'title': add a line 'title: ...'"),
        (
            FRONT.replace("title", "tilte: Gold\ntitle") + "x",
            "unknown front matter field 'tilte': use doc_id, title, product, entitlements, updated_at",
        ),
        (FRONT.replace("Gold Card", "7") + "x", "front matter field 'title': "),
        (FRONT.replace("00Z", "00") + "x", "front matter field 'updated_at': .*: write it in UTC, as in 2026-"),
        (FRONT, "there is no text below the front matter: write the document there"),
        (FRONT + " \n\t\n", "there is no text below the front matter: "),
        (FRONT.replace("title", "body: x\ntitle") + "x", "'body' is no front matter field: write the text below"),
    ],
)
def test_an_error_is_one_line_that_names_file_problem_and_remedy(text: str, message: str) -> None:
    with pytest.raises(AbstainError) as refused:
        parse_document(text, "in/gold.md")
    assert re.match(f"in/gold.md: {message}", str(refused.value)), str(refused.value)
    assert "\n" not in str(refused.value)


def test_windows_line_ends_and_a_byte_order_mark_change_nothing() -> None:
    body = "# Fees\n\n- one\n- two\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    plain = parse_document(FRONT + body, "gold.md")
    windows = parse_document("\ufeff" + (FRONT + body).replace("\n", "\r\n"), "gold.md")
    assert windows == plain
    assert "\r" not in windows.body
    # A body that reached a row by another way than a file.
    assert [c.kind for c in chunk_document(document(body.replace("\n", "\r\n")))] == ["list", "table"]


def test_a_chunk_opens_with_its_section_path() -> None:
    body = "Intro.\n\n# Gold Card\n\nTop.\n\n## Fees\n\n### Abroad\n\nA.\n\n### At home\n\nH.\n\n## Limits\n\nL.\n"
    found = [(" > ".join(chunk.section_path), chunk.text) for chunk in chunk_document(document(body))]
    assert found == [
        ("Gold Card", "Gold Card\nIntro.\n\nTop."),  # a first heading that repeats the title is no section
        ("Gold Card > Fees > Abroad", "Gold Card > Fees > Abroad\nA."),
        ("Gold Card > Fees > At home", "Gold Card > Fees > At home\nH."),
        ("Gold Card > Limits", "Gold Card > Limits\nL."),
    ]


def test_a_heading_with_nothing_under_it_makes_no_chunk() -> None:
    assert chunk_document(document("# Fees\n\n## Abroad\n")) == []


def test_headings_that_skip_a_level_or_are_underlined_nest_all_the_same() -> None:
    body = "Fees\n====\n\n#### Deep\n\nd\n\n## Less  deep\n\nl\n"
    paths = [chunk.section_path for chunk in chunk_document(document(body))]
    assert paths == [("Gold Card", "Fees", "Deep"), ("Gold Card", "Fees", "Less deep")]


def test_a_chunk_holds_text_or_one_table_or_one_list() -> None:
    body = (
        "One.\n\nTwo.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n- x\n- y\n\n1. z\n\n"
        "> quoted\n\n```\n- code\n\n| code |\n```\n\n---\n\n<b>html</b>\n"
    )
    assert chunks(body) == [
        ("text", "One.\n\nTwo."),
        ("table", "| a | b |\n|---|---|\n| 1 | 2 |"),
        ("list", "- x\n- y"),
        ("list", "1. z"),
        ("text", "> quoted\n\n```\n- code\n\n| code |\n```\n\n<b>html</b>"),
    ]


def test_a_table_that_is_cut_repeats_its_header() -> None:
    head = "| Fee | Amount |\n|---|---|"
    rows = [f"| Fee number {n} | {n} euros |" for n in range(7)]
    found = chunks("\n".join([head, *rows]), budget=110)
    assert len(found) > 2
    assert all(kind == "table" and text.startswith(head + "\n|") for kind, text in found)
    assert [line for _, text in found for line in text.split("\n")[2:]] == rows


def test_a_table_without_rows_is_kept() -> None:
    assert chunks("| Fee | Amount |\n|---|---|\n") == [("table", "| Fee | Amount |\n|---|---|")]


def test_a_list_item_is_never_cut_and_keeps_what_is_nested_in_it() -> None:
    long = "- " + "Sentence one. " * 9 + "End."
    nested = "- outer\n  - inner\n\n  more"
    assert chunks(f"{long}\n{nested}\n- last", budget=40) == [("list", long), ("list", nested), ("list", "- last")]


def test_a_long_paragraph_is_cut_between_sentences() -> None:
    sentences = [f"This is sentence number {n}." for n in range(6)]
    found = chunks(" ".join(sentences), budget=70)
    assert [text for _, text in found] == [" ".join(sentences[n : n + 2]) for n in (0, 2, 4)]


def test_a_chunk_has_the_rights_and_the_date_of_its_document() -> None:
    source = document("One.\n\n- two").model_copy(update={"entitlements": ("premium",)})
    first, second = chunk_document(source)
    assert (first.chunk_id, second.chunk_id) == ("gold#0", "gold#1")
    assert first.doc_id == "gold"
    assert first.entitlements == ("premium",)
    assert first.updated_at == source.updated_at
    assert first.content_hash == hashlib.sha256(first.text.encode()).hexdigest()


def test_a_carriage_return_alone_loses_nothing() -> None:
    read = parse_document(FRONT + "one\r\rtwo\n\n- x\n- y\n", "gold.md")
    found = " ".join(chunk.text for chunk in chunk_document(read))
    assert [word for word in ("one", "two", "- x", "- y") if found.count(word) != 1] == []


def test_a_date_that_is_none_is_an_error_that_names_the_file() -> None:
    with pytest.raises(AbstainError, match=r"gold.md: "):
        parse_document(FRONT.replace("2026-08-01T00:00:00Z", "2026-13-45") + "x", "gold.md")


words = st.text(st.sampled_from("abcdefghij"), min_size=1, max_size=12)
phrases = st.lists(words, max_size=6).map(" ".join)
blocks = st.tuples(st.sampled_from(["text", "table", "list"]), st.lists(phrases, min_size=1, max_size=6))
sections = st.lists(
    st.tuples(st.integers(1, 6), phrases, st.lists(blocks, min_size=1, max_size=3)), min_size=1, max_size=5
)


def body_of(sections: list[tuple[int, str, list[tuple[str, list[str]]]]]) -> tuple[str, list[str], list[str]]:
    """A body, its headings and its atoms: sentences, table rows and list items, told apart by a number."""
    number, parts, headings, atoms = count(), [], [], []
    for level, name, found in sections:
        headings.append(f"heading{next(number):03} {name}".strip())
        parts.append("#" * level + " " + headings[-1])
        for kind, texts in found:
            own = [f"atom{next(number):03} {text}".strip() for text in texts]
            form = {"table": "| {} | z |", "list": "- {}", "text": "{}."}[kind]
            mine = [form.format(atom) for atom in own]
            atoms += mine
            if kind == "table":
                mine = ["| Head | Other |", "|---|---|", *mine]
            parts.append((" " if kind == "text" else "\n").join(mine))
    return "\n\n".join(parts), headings, atoms


@settings(max_examples=150, deadline=None)
@given(sections, st.integers(1, 300))
def test_every_word_stands_in_some_chunk_and_only_an_atom_breaks_the_budget(
    sections: list[tuple[int, str, list[tuple[str, list[str]]]]], budget: int
) -> None:
    body, headings, atoms = body_of(sections)
    found = chunk_document(document(body), budget)
    assert [chunk.chunk_id for chunk in found] == [f"gold#{n}" for n in range(len(found))]
    assert {name for chunk in found for name in chunk.section_path[1:]} == set(headings)
    assert all(chunk.text.startswith(" > ".join(chunk.section_path) + "\n") for chunk in found)
    held = [[atom for atom in atoms if atom in chunk.text] for chunk in found]
    assert [atom for atoms_of_one in held for atom in atoms_of_one] == atoms  # each whole, once, in order
    assert all(len(chunk.text) <= budget or len(mine) == 1 for chunk, mine in zip(found, held, strict=True))
    assert all(("| Head | Other |" in chunk.text) == (chunk.kind == "table") for chunk in found)


markup = st.sampled_from(
    [*"-*>`|~_+!\\<", "1.", "    ", "\t", " ", "\n", "|---|", "```", "<div>", "&amp;", "a", "bb", "ccc."]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(markup, min_size=1, max_size=30).map("".join).filter(str.strip), st.integers(1, 60))
def test_no_markup_loses_a_word_or_crashes(body: str, budget: int) -> None:
    # No headings, whose names move to the paths: nor what underlines the line above it.
    assume(not re.search(r"^\s*-+\s*$", body, re.MULTILINE))
    found = " ".join(chunk.text for chunk in chunk_document(document(body), budget))
    assert sorted(set(re.findall(r"a|bb|ccc", body)) - set(re.findall(r"a|bb|ccc", found))) == []
