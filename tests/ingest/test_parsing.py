import json
import math
import operator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abstain.core.contracts import Document, ImportedInteraction, Review, Row, Thumb
from abstain.ingest.parsing import ParsedRow, make_document_row, parse_line, parse_object, reparse
from abstain.knowledge.documents.reader import parse_document
from tests.factories import NOW, alone, feedback, interaction, markdown, review, row, thumb, verdict


def parse(line: Any) -> ParsedRow:
    return parse_line(line if isinstance(line, bytes) else json.dumps(line).encode(), "a.jsonl", 7)


def test_parse_line_detects_the_contract_by_its_fields() -> None:
    joined = parse(row(thumb=thumb(), review=verdict()))
    assert (joined.source, joined.line, joined.reasons) == ("a.jsonl", 7, ())
    assert list(joined.iter_contents()) == [interaction(), feedback(), review()]
    found = parse({"interaction_id": "i-1", **thumb(comment='he asked: "question"', user="question")})
    assert found.thumb.user == "question"


WHOLE, TWICE = json.dumps(row()), "this key comes twice in one object"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"interaction_id": "i', "line: invalid JSON: "),
        (b'{"interaction_id": "\xff"}', "line: not valid UTF-8 (byte 21 is 0xff)"),
        (b"[1, 2]", "row: "),
        (b"[" * 5000, "line: invalid JSON: "),
        (row(question=7), "question: input should be a valid string"),
        (row(model=None), "model: this field is missing"),
        (row(anwser="None."), "anwser: unknown field, did you mean 'answer'?"),
        (row(**{"z" * 90: 1}), "a key of 90 characters: unknown field"),
        (row(zzz=1), "zzz: unknown field, known fields: interaction_id, asked_at"),
        (row(asked_at="0001-01-01T00:00:00+14:00"), "line: a timestamp lies outside the years 1 to 9999"),
        (row(contexts=[{"chunk_id": "a#1", "txt": "x", "text": "y"}]), "contexts.0.txt: unknown field"),
        (row(given_at="2026-09-01T12:00:00Z"), "given_at: unknown field, known fields: interaction_id, asked_at"),
        (alone(thumb("sideways")), "thumb: input should be 'up' or 'down'"),
        (alone(verdict(correct=1)), "correct: input should be a valid boolean"),
        ({"interaction_id": "i-1", "reviewer": "sme"}, "reviewed_at: this field is missing"),
        (alone(verdict(given_at="x")), "given_at: unknown field, known fields: interaction_id, rev"),
        ({}, "interaction_id: this field is missing"),
        (WHOLE[:-1].encode() + b', "answer": "Ten."}', f"answer: {TWICE}"),
        (json.dumps(row(thumb=thumb()))[:-2].encode() + b', "thumb": "down"}}', f"thumb: {TWICE}"),
        (WHOLE.replace("[]", '[{"chunk_id": "a#1", "text": "x", "text": "y"}]').encode(), f"text: {TWICE}"),
        (json.dumps(alone(verdict(True)))[:-1].encode() + b', "correct": false}', f"correct: {TWICE}"),
    ],
)
def test_parse_line_reasons_name_the_field(line: Any, reason: str) -> None:
    found = parse(line)
    assert list(found.iter_contents()) == []
    reasons = list(map(str, found.reasons))
    assert any(one.startswith(reason) for one in reasons) and "\n" not in "".join(reasons), reasons


@pytest.mark.parametrize(
    ("fields", "dropped"),
    [
        ({"token_log_probs": [-0.1, None]}, ("token_log_probs",)),
        ({"token_log_probs": [-0.1, -math.inf], "product": math.nan}, ("token_log_probs",)),
        ({"writer_scores": {"p": math.nan, "q": math.inf, "r": None}}, tuple(f"writer_scores.{n}" for n in "pqr")),
        ({"thumb": math.nan}, ()),
    ],
)
def test_parse_line_drops_optional_numbers_that_are_none(fields: dict[str, Any], dropped: tuple[str, ...]) -> None:
    found = parse({**row(), **fields})
    assert (found.reasons, found.interaction, found.dropped) == ((), interaction(), dropped)
    assert parse({**row(writer_scores={"p": math.nan, "q": 0.5})}).interaction.writer_scores == {"q": 0.5}


def test_parse_object_is_reparsed_from_its_raw_text() -> None:
    good = parse_object(row(thumb=thumb()), "db/interactions", 3)
    bad = parse_object({**row(), "answer": "caf\udce9"}, "db/interactions", 4)
    half = parse_object({**row(), "answer": "\ud800"}, "a", 1)
    assert good.interaction == interaction() and b"caf\xe9" in bad.raw
    for found in (good, bad, half):
        assert reparse(found.raw, found.source, found.line) == found
    assert all(str(found.reasons[0]).startswith("line: not valid UTF-8 (byte ") for found in (bad, half))


@pytest.mark.parametrize("name", ["deep/fees.md", "FEES.HTM", "fees.pdf"])
def test_reparse_detects_a_document_by_its_source(name: str) -> None:
    found = make_document_row(parse_document(markdown().encode(), "fees.md"), name)
    assert found.document.doc_id == "fees" and reparse(found.raw, found.source, 1) == found


def test_make_document_row_rejected_is_still_a_document() -> None:
    found = make_document_row(parse_document(markdown(doc_id="../fees").encode(), "a.md"), "bad.md")
    assert found.is_document and found.document is None and found.reasons[0].field == "doc_id"


moments = st.datetimes(timezones=st.timezones()).map(lambda at: at.isoformat())
words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).map(str.strip).filter(bool)
optional = st.none() | words
thumbs = st.fixed_dictionaries(
    {"given_at": moments, "thumb": st.sampled_from(["up", "down"])}, optional={"user": optional, "comment": optional}
)
reviews = st.fixed_dictionaries(
    {"reviewed_at": moments, "reviewer": words} | dict.fromkeys(("complete", "correct", "truthful"), st.booleans()),
    optional={"ideal_answer": optional, "inclusion_probability": st.none() | st.floats(0, 1, exclude_min=True)},
)
contexts = st.lists(st.fixed_dictionaries({"chunk_id": words, "text": words}), max_size=2)
interactions = st.fixed_dictionaries(
    dict.fromkeys(("interaction_id", "question", "answer", "model"), words)
    | {"asked_at": moments, "contexts": contexts},
    optional={"product": optional, "group": optional, "thumb": st.none() | thumbs, "review": st.none() | reviews},
)
with_key = st.fixed_dictionaries({"interaction_id": words})
thumb_rows, review_rows = (st.builds(operator.or_, with_key, feedback) for feedback in (thumbs, reviews))
objects = st.one_of(
    st.tuples(st.just(contract), rows)
    for contract, rows in ((ImportedInteraction, interactions), (Thumb, thumb_rows), (Review, review_rows))
)


@pytest.mark.heavy
@settings(max_examples=150)
@given(objects, st.booleans())
def test_parse_line_printed_row_is_the_row_read(one: tuple[type[Row], dict[str, Any]], escaped: bool) -> None:
    contract, fields = one
    try:
        expected = contract.model_validate_json(json.dumps(fields), strict=True)
    except (ValueError, OverflowError):  # a moment before the first UTC timestamp, or after the last
        assert parse_object(fields, "a", 1).reasons
        return
    found = parse_line(json.dumps(fields, ensure_ascii=escaped).encode(), "a", 1)
    parts = expected.to_rows() if contract is ImportedInteraction else (expected,)
    assert list(found.iter_contents()) == [part for part in parts if part is not None]
    for part in found.iter_contents():
        (again,) = parse_line(part.to_json_line().encode(), "a", 1).iter_contents()
        assert again == part and again.to_json_line() == part.to_json_line() and hash(again) == hash(part)
        assert type(part).model_validate_json(part.to_json_line(), strict=True) == part


loose = st.dictionaries(
    st.sampled_from([*row(), *thumb(), *verdict(), "thumb", "review"]) | st.text(),
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
).map(lambda fields: json.dumps(fields).encode())


@pytest.mark.heavy
@given(st.binary() | loose)
def test_parse_line_any_bytes_have_contents_or_reasons(line: bytes) -> None:
    found = parse_line(line, "a", 1)
    assert bool(found.reasons) != bool(list(found.iter_contents()))
    assert found.raw == line


@pytest.mark.parametrize("name", ["title", "product", "entitlements"])
@pytest.mark.parametrize("control", ["\0", "\x1b", "\x9b"])
def test_make_document_row_rejects_control_characters(name: str, control: str) -> None:
    value = ["a" + control + "b"] if name == "entitlements" else f"a{control}b"
    fields = {"doc_id": "a", "title": "A", "updated_at": NOW, "body": "x", name: value}
    found = make_document_row(Document.model_validate(fields), "a.md")
    assert found.document is None and str(found.reasons[0]).startswith(f"{name}: ") and "U+00" in str(found.reasons[0])
