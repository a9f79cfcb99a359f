import hashlib
import re
from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from abstain.core.errors import AbstainError
from abstain.knowledge.documents import chunks as module
from abstain.knowledge.documents.chunks import DEFAULT_BUDGET, chunk_document
from abstain.knowledge.documents.reader import parse_document
from abstain.knowledge.documents.tokens import make_token_counter
from tests.knowledge.builders import document


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


def test_chunk_document_cuts_between_sentences() -> None:
    sentences = [f"This is sentence number {n}." for n in range(6)]
    found = chunks(" ".join(sentences), budget=70)
    assert [text for _, text in found] == [" ".join(sentences[n : n + 2]) for n in (0, 2, 4)]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("one two three four five six", ["one two", "three four", "five six"]),  # a long sentence between words
        ("one two. three four. five", ["one two.", "three", "four. five"]),
        ("one. two three four five", ["one. two", "three four", "five"]),
        ("abcdefghijklmnopqrstuvwxy", ["abcdefghij", "klmnopqrst", "uvwxy"]),  # at last a word that is none
        ("~~~\na b c\nd e f g h i\n```\n~~~", ["~~~\na b c", "d e f g h", "i\n```\n~~~"]),  # code: between lines
    ],
)
def test_chunk_document_cuts_between_words_or_lines(body: str, expected: list[str]) -> None:
    found = chunk_document(document(body, title="T"), budget=12, count_tokens=len)
    assert [chunk.text.removeprefix("T\n") for chunk in found] == expected


def test_chunk_document_long_path_leaves_half_the_budget() -> None:
    body = "# " + "Fees and other charges " * 3 + "\n\none two three four five six seven eight"
    assert [text for _, text in chunks(body, 10, lambda text: len(text.split()))] == [
        "one two three four five",
        "six seven eight",
    ]


def test_chunk_document_long_heading_is_text() -> None:
    large = "word " * 50
    assert chunks(f"a\n\n## {large}\n\nb") == [("text", f"a\n\n{large.strip()}\n\nb")]


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
    size = make_token_counter()
    body = " ".join(f"Antidisestablishmentarianism costs {n} euros." for n in range(200))
    found = chunk_document(document(body))
    assert all(DEFAULT_BUDGET - 20 < size(chunk.text) <= DEFAULT_BUDGET for chunk in found[:-1])


def test_chunk_document_carriage_return_loses_nothing() -> None:
    text = "---\ndoc_id: gold\ntitle: Gold\nupdated_at: 2026-08-01T00:00:00Z\n---\none\r\rtwo\n\n- x\n- y\n"
    found = " ".join(chunk.text for chunk in chunk_document(parse_document(text, "gold.md")))
    assert [word for word in ("one", "two", "- x", "- y") if found.count(word) != 1] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        "".join(f"w{n} " for n in range(40_000)),
        "".join(f"This is sentence {n}. " for n in range(12_000)),
        "".join(chr(0x4E00 + n % 20_000) for n in range(80_000)),
        "".join(f"{n:x}" for n in range(50_000)),
    ],
    ids=["no sentence ends", "sentences", "no spaces", "no word"],
)
def test_chunk_document_huge_paragraph_stays_in_budget(body: str) -> None:
    size = make_token_counter()
    found = chunk_document(document(body))
    assert max(size(chunk.text) for chunk in found) <= DEFAULT_BUDGET + 1
    assert max(len(chunk.text) for chunk in found) < 8 * DEFAULT_BUDGET
    kept = "".join(chunk.text.partition("\n")[2] for chunk in found)
    assert re.sub(r"\s", "", kept) == re.sub(r"\s", "", body)


atom = st.lists(st.text(st.sampled_from("abcdefghij"), min_size=1, max_size=12), max_size=6).map(" ".join)
blocks = st.tuples(st.sampled_from(["text", "table", "list"]), st.lists(atom, min_size=1, max_size=6))
parts = st.lists(st.tuples(st.integers(1, 6), atom, st.lists(blocks, min_size=1, max_size=3)), min_size=1, max_size=5)


def make_body(parts: list[tuple[int, str, list[tuple[str, list[str]]]]]) -> tuple[str, list[str], list[str], list[str]]:
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
def test_chunk_document_keeps_every_word_in_budget(
    parts: list[tuple[int, str, list[tuple[str, list[str]]]]], budget: int
) -> None:
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
