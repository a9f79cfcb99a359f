import hashlib
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from abstain.core.contracts import Chunk, Document
from abstain.core.errors import AbstainError
from abstain.knowledge.documents import chunks as module
from abstain.knowledge.documents import versioning
from abstain.knowledge.documents.chunks import DEFAULT_BUDGET, chunk_document
from abstain.knowledge.documents.sections import MAX_HEADING, PAGE_MARKER, split_sections
from abstain.knowledge.documents.tokens import make_token_counter
from abstain.knowledge.documents.versioning import update_chunks
from tests.knowledge.builders import document

COUNT = make_token_counter()
SUBSECTIONS = "Intro.\n\n# Gold Card\n\nTop.\n\n## Fees\n\n### Abroad\n\nA.\n\n### At home\n\nH.\n\n## Limits\n\nL.\n"
IN_BLOCKS = "- a\n\n  # b\n\n> # c\n\n```\n# d\n```\n\n<div>\n# e\n</div>\n\n    # f"
LARGE = "word " * (MAX_HEADING // 5 + 1)


def chunks(body: str, budget: int = 600, size: Callable[[str], int] = len) -> list[tuple[str, str]]:
    """Kind and text of each chunk, without the line of its section path."""
    return [(chunk.kind, chunk.text.partition("\n")[2]) for chunk in chunk_document(document(body), budget, size)]


def test_chunk_document_separates_text_tables_and_lists() -> None:
    body = (
        "One.\n\nTwo.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n- x\n- y\n\n1. z\n\n"
        "> quoted\n\n```\n- code\n\n| code |\n```\n\n---\n\n<b>html</b>\n"
    )
    assert chunks("| Fee | Amount |\n|---|---|\n") == [("table", "| Fee | Amount |\n|---|---|")], "without rows"
    assert chunks(body) == [
        ("text", "One.\n\nTwo."),
        ("table", "| a | b |\n|---|---|\n| 1 | 2 |"),
        ("list", "- x\n- y"),
        ("list", "1. z"),
        ("text", "> quoted\n\n```\n- code\n\n| code |\n```\n\n<b>html</b>"),
    ]


PAGES = """Intro.

<!-- page 2 -->

# Fees

<!-- page 3 -->

One.

<!-- page 4 -->

Two.

| a |
|---|
| 1 |

<!-- page 5 -->

| a |
|---|
| 2 |

# Limits

Three words here.
"""


def test_chunk_document_reads_page_markers() -> None:
    """Beside a heading, inside running text, and across sections; of a packed chunk, that of its first piece counts."""
    found = chunk_document(document(PAGES), 600, len)
    assert [(chunk.page, chunk.text.partition("\n")[2]) for chunk in found] == [
        (None, "Intro."),
        (3, "One.\n\nTwo."),
        (4, "| a |\n|---|\n| 1 |"),
        (5, "| a |\n|---|\n| 2 |"),
        (5, "Three words here."),
    ]
    cut = chunk_document(document(PAGES), 18, len)
    assert [chunk.page for chunk in cut if chunk.section_path[-1] == "Fees" and chunk.kind == "text"] == [3, 4]
    assert [chunk.page for chunk in cut if chunk.section_path[-1] == "Limits"] == [5] * 3
    assert not any("<!--" in chunk.text for chunk in (*found, *cut))
    plain = chunk_document(document(PAGE_MARKER.sub("", PAGES)), 600, len)
    assert [chunk.chunk_id for chunk in plain[:2]] == [chunk.chunk_id for chunk in found[:2]], "pages make no other ids"
    assert {chunk.page for chunk in plain} == {None} and "page" not in plain[0].to_json_line()


def test_chunk_document_long_header_is_not_repeated() -> None:
    head = f"| {'x' * 2000} | Amount |\n|---|---|"
    found = chunks("\n".join([head, *(f"| {n} | {n} euros |" for n in range(100))]), budget=100)
    assert len(found) > 2 and found[0] == ("table", head)
    assert all(kind == "table" and "x" not in text for kind, text in found[1:])


def test_chunk_document_too_many_chunks_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CHUNKS", 2)
    assert len(chunk_document(document("# A\n\none\n\n# B\n\ntwo"))) == 2
    with pytest.raises(AbstainError, match=r"^the document has more than the 2 chunks allowed: divide it$"):
        chunk_document(document("# A\n\none\n\n# B\n\ntwo\n\n# C\n\nthree"))


def test_chunk_document_list_item_is_never_cut() -> None:
    long = "- " + "Sentence one. " * 9 + "End."
    nested = "- outer\n  - inner\n    - innermost\n\n  more"
    assert chunks(f"{long}\n{nested}\n- last", budget=40) == [("list", long), ("list", nested), ("list", "- last")]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("aa. bb. c d e.", ["aa. bb.", "c d e."]),  # between sentences, though a word more had fitted
        ("one two three four five six", ["one two", "three four", "five six"]),  # a long sentence between words
        ("one two. three four. five", ["one two.", "three", "four. five"]),
        ("one. two three four five", ["one. two", "three four", "five"]),
        ("abcdefghijklmnopqrstuvwxy", ["abcdefghij", "klmnopqrst", "uvwxy"]),  # at last a word that is none
        ("~~~\na b c\nd e f g h i\n```\n~~~", ["~~~\na b c", "d e f g h", "i\n```\n~~~"]),  # code: between lines
    ],
)
def test_chunk_document_cuts_between_sentences_words_or_lines(body: str, expected: list[str]) -> None:
    found = chunk_document(document(body, title="T"), budget=12, count_tokens=len)
    assert [chunk.text.removeprefix("T\n") for chunk in found] == expected


def test_chunk_document_long_path_leaves_half_the_budget() -> None:
    body = "# " + "Fees and other charges " * 3 + "\n\none two three four five six seven eight"
    texts = [text for _, text in chunks(body, 10, lambda text: len(text.split()))]
    assert texts == ["one two three four five", "six seven eight"]


def test_chunk_document_fields_are_of_document_and_content() -> None:
    source = document("One.\n\n- two", entitlements=("premium",))
    for chunk in chunk_document(source):
        assert (chunk.doc_id, chunk.entitlements) == ("gold", ("premium",))
        assert (chunk.updated_at, chunk.removed_at) == (source.updated_at, None)
        assert chunk.content_hash == hashlib.sha256(chunk.text.encode()).hexdigest()
        assert chunk.chunk_id == f"gold#{chunk.content_hash[:10]}"
    assert len(chunk_document(source)) == 2


def test_chunk_document_same_text_twice_is_one_chunk() -> None:
    found = chunk_document(document("# A\n\none\n\n# B\n\ntwo\n\n# A\n\none"))
    assert [chunk.text for chunk in found] == ["Gold Card > A\none", "Gold Card > B\ntwo"]


def test_chunk_document_two_chunks_of_one_id_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ID_DIGITS", 1)
    with pytest.raises(AbstainError, match=r"^gold#\w would be the id of two chunks"):
        chunk_document(document("\n\n".join(f"# {n}\n\n{n}" for n in range(17))))


def test_chunk_document_budget_is_in_tokens_of_the_encoder() -> None:
    body = " ".join(f"Antidisestablishmentarianism costs {n} euros." for n in range(200))
    found = chunk_document(document(body))
    assert all(DEFAULT_BUDGET - 20 < COUNT(chunk.text) <= DEFAULT_BUDGET for chunk in found[:-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        "".join(f"w{n} " for n in range(40_000)),
        "".join(chr(0x4E00 + n % 20_000) for n in range(80_000)),
        "".join(f"{n:x}" for n in range(50_000)),
    ],
    ids=["no sentence ends", "no spaces", "no word"],
)
def test_chunk_document_huge_paragraph_stays_in_budget(body: str) -> None:
    found = chunk_document(document(body))
    assert max(COUNT(chunk.text) for chunk in found) <= DEFAULT_BUDGET + 1
    assert max(len(chunk.text) for chunk in found) < 8 * DEFAULT_BUDGET
    kept = "".join(chunk.text.partition("\n")[2] for chunk in found)
    assert re.sub(r"\s", "", kept) == re.sub(r"\s", "", body)


atom = st.lists(st.text(st.sampled_from("abcdefghij"), min_size=1, max_size=12), max_size=6).map(" ".join)
blocks = st.tuples(st.sampled_from(["text", "table", "list"]), st.lists(atom, min_size=1, max_size=6))
parts = st.lists(st.tuples(st.integers(1, 6), atom, st.lists(blocks, min_size=1, max_size=3)), min_size=1, max_size=5)


def make_body(parts: list[Any]) -> tuple[str, list[str], list[str], list[str]]:
    """A body, its headings, its atoms (table rows and list items), its sentences; all told apart by a number."""
    number, lines, headings, atoms, sentences = count(), [], [], [], []
    for level, name, found in parts:
        headings.append(f"heading{next(number):03} {name}".strip())
        lines.append("#" * level + " " + headings[-1])
        for kind, texts in found:
            own = [" ".join(f"{word}{next(number):03}" for word in ("atom", *text.split())) for text in texts]
            form = {"table": "| {} | z |", "list": "- {}", "text": "{}."}[kind]
            mine = [form.format(one) for one in own]
            (sentences if kind == "text" else atoms).extend(mine)
            if kind == "table":
                mine = ["| Head | Other |", "|---|---|", *mine]
            lines.append((" " if kind == "text" else "\n").join(mine))
    return "\n\n".join(lines), headings, atoms, sentences


@pytest.mark.heavy
@settings(max_examples=80)
@given(parts, st.integers(40, 300))
def test_chunk_document_keeps_every_word_in_budget(parts: list[Any], budget: int) -> None:
    body, headings, atoms, sentences = make_body(parts)
    found = chunk_document(document(body), budget, len)
    assert {name for chunk in found for name in chunk.section_path[1:]} == set(headings)
    assert all(chunk.text.startswith(" > ".join(chunk.section_path) + "\n") for chunk in found)
    assert all(("| Head | Other |" in chunk.text) == (chunk.kind == "table") for chunk in found)
    for chunk in found:
        content = chunk.text.partition("\n")[2]
        if chunk.kind == "table":
            content = content.split("\n", 2)[2]
        held = [one for one in atoms if one in content]
        room = max(budget - (len(chunk.text) - len(content)), budget // 2)
        assert len(content) <= room or (chunk.kind != "text" and len(held) == 1)
    whole = [one for chunk in found if chunk.kind != "text" for one in atoms if one in chunk.text]
    assert whole == atoms  # each whole, once, in order
    text = "".join(chunk.text.partition("\n")[2] for chunk in found if chunk.kind == "text")
    assert re.sub(r"\s", "", text) == re.sub(r"\s", "", "".join(sentences))  # each word once, in order


markup = st.sampled_from(
    [*"-*>`|~_+!\\<", "1.", "    ", "\t", " ", "\n", "|---|", "```", "<div>", "&amp;", "a", "bb", "ccc."]
)


@pytest.mark.heavy
@settings(max_examples=200)
@given(st.lists(markup, min_size=1, max_size=30).map("".join).filter(str.strip), st.integers(1, 60))
def test_chunk_document_any_markup_keeps_every_letter(body: str, budget: int) -> None:
    # No headings, whose names move to the paths: nor what underlines the line above it.
    assume(not re.search(r"^\s*-+\s*$", body, re.MULTILINE))
    found = "".join(chunk.text.partition("\n")[2] for chunk in chunk_document(document(body), budget, len))
    assert [letter for letter in "abc" if (letter in body) != (letter in found)] == []


@pytest.mark.parametrize(
    ("body", "sections"),
    [
        (
            SUBSECTIONS,
            [
                ("Gold Card", "Intro."),
                ("Gold Card", "Top."),  # a first heading that repeats the title is no section
                ("Gold Card > Fees > Abroad", "A."),
                ("Gold Card > Fees > At home", "H."),
                ("Gold Card > Limits", "L."),
            ],
        ),
        ("# Fees\n\n## Abroad\n", []),
        ("# Fees\n \n\t\n## Abroad\n\nx", [("Gold Card > Fees > Abroad", "x")]),
        (
            "Fees\n====\n\n#### Deep\n\nd\n\n## Less  deep\n\nl\n",
            [("Gold Card > Fees > Deep", "d"), ("Gold Card > Fees > Less deep", "l")],
        ),
        ("# Fees\n\na\n\n# Fees\n\nb\n", [("Gold Card > Fees", "a"), ("Gold Card > Fees", "b")]),
        (IN_BLOCKS, [("Gold Card", IN_BLOCKS)]),
        (f"# Fees\n\na\n\n## {LARGE}\n\nb", [("Gold Card > Fees", f"a\n\n## {LARGE}\n\nb")]),
    ],
    ids=["subsections", "empty", "blank", "skipped level", "repeated", "inside a block", "long heading"],
)
def test_split_sections_paths_and_bodies(body: str, sections: list[tuple[str, str]]) -> None:
    assert [(" > ".join(one.path), one.body.strip()) for one in split_sections(document(body))] == sections


lines = st.sampled_from(
    ["# A", "## B", "### C", "####", "x", "- y", "  - z", "", "| a | b |", "|---|---|", "===", "---", "> q"]
)


@given(st.lists(lines, max_size=15).map("\n".join).filter(str.strip), st.sampled_from(["\n", "\r\n", "\r"]))
def test_split_sections_every_line_is_in_one_section_or_heading(body: str, end: str) -> None:
    parts = split_sections(document(body.replace("\n", end)))
    lines = [line for one in parts for line in one.body.split("\n") if line.strip()]
    rest = iter(line for line in document(body).body.split("\n") if line.strip())
    assert all(line in rest for line in lines)  # in order, none twice
    assert parts == split_sections(document(body))


def test_token_counter_counts_words_and_unknown_ones_by_length() -> None:
    """No special tokens, and nothing cut off."""
    texts = {"": 0, "the fee": 2, "unaffable": 3, "the fee, really": 4, "fee " * 999: 999, f"the {'x' * 400} fee": 103}
    assert {text: COUNT(text) for text in texts} == texts


@given(st.lists(st.text(max_size=8), max_size=6), st.sampled_from([" ", "\n", "\n\n"]))
def test_token_counter_is_additive(parts: list[str], joint: str) -> None:
    assert COUNT(joint.join(parts)) == sum(map(COUNT, parts))


def test_make_token_counter_without_a_tokenizer_raises(tmp_path: Path) -> None:
    with pytest.raises(AbstainError, match=r"tokenizer\.json is not there: chunks are measured by the encoder's"):
        make_token_counter(tmp_path)


AT = datetime(2026, 9, 1, tzinfo=UTC)
LATER = AT + timedelta(days=1)
FIRST = document("# A\n\none\n\n# B\n\ntwo")
SECOND = document("# A\n\none\n\n# B\n\nTWO", updated_at="2026-09-01T00:00:00Z", entitlements=("staff",))
CHUNKS = update_chunks([], None, FIRST, AT)


def list_texts(found: tuple[Chunk, ...]) -> list[tuple[str, bool]]:
    """The text of each chunk, and whether it is still there."""
    return [(chunk.text.partition("\n")[2], chunk.removed_at is None) for chunk in found]


def test_update_chunks_unchanged_document_is_not_cut_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = Mock(side_effect=chunk_document)
    monkeypatch.setattr(versioning, "chunk_document", cut)
    assert update_chunks(CHUNKS, FIRST, FIRST.model_copy(), LATER) == CHUNKS
    cut.assert_not_called()
    assert update_chunks([], FIRST, FIRST, LATER) == CHUNKS, "its chunks were lost"


def test_update_chunks_vanished_text_becomes_a_tombstone() -> None:
    second = update_chunks(CHUNKS, FIRST, SECOND, LATER)
    assert list_texts(second) == [("one", True), ("TWO", True), ("two", False)]
    assert second[2] == CHUNKS[1].model_copy(update={"removed_at": LATER})
    assert [chunk.entitlements for chunk in second] == [("staff",), ("staff",), ()]
    assert (second[0].chunk_id, second[0].updated_at) == (CHUNKS[0].chunk_id, SECOND.updated_at)


def test_update_chunks_removed_document_is_all_tombstones() -> None:
    second = update_chunks(CHUNKS, FIRST, SECOND, AT)
    gone = update_chunks(second, SECOND, None, LATER)
    assert [chunk.removed_at for chunk in gone] == [LATER, LATER, AT]
    assert update_chunks(gone, None, None, LATER + timedelta(days=1)) == gone
    assert list_texts(update_chunks(gone, None, SECOND, LATER)) == list_texts(second)


sources = st.lists(st.sampled_from("abcde"), min_size=1, max_size=4).map(
    lambda parts: document("\n\n".join(f"# {part}\n\n{part}" for part in parts))
)


@pytest.mark.heavy
@given(st.lists(st.none() | sources, max_size=8))
def test_update_chunks_an_id_always_means_its_text(versions: list[Document | None]) -> None:
    chunks: tuple[Chunk, ...] = ()
    text_by_id: dict[str, str] = {}
    old = None
    for day, new in enumerate(versions):
        chunks, old = update_chunks(chunks, old, new, AT + timedelta(days=day)), new
        text_by_id |= {chunk.chunk_id: chunk.text for chunk in chunks}
        assert {chunk.chunk_id: chunk.text for chunk in chunks} == text_by_id
        live_ids = {chunk.chunk_id for chunk in chunks if chunk.removed_at is None}
        assert live_ids == {chunk.chunk_id for chunk in (chunk_document(new) if new else [])}
