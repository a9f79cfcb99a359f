import json
from contextlib import nullcontext
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from abstain.core import contracts
from abstain.core.contracts import Chunk, Context, ImportedInteraction, Interaction, Review, Thumb, list_sources
from tests import factories
from tests.factories import CHUNK, DOCUMENT, feedback, review

AT = "2026-09-01T12:00:00Z"
VALID: dict[type[BaseModel], dict[str, Any]] = {
    type(row): {name: value for name, value in json.loads(row.to_json_line()).items() if value is not None}
    for row in (factories.interaction(contexts=factories.cited("fees#2")), feedback(days=0), review(), DOCUMENT, CHUNK)
}


def interaction(**changes: Any) -> Interaction:
    return Interaction.model_validate({**VALID[Interaction], **changes})


def test_to_json_line_ignores_key_order_only() -> None:
    own = VALID[Interaction]
    line = interaction().to_json_line()
    assert Interaction.model_validate(dict(reversed(own.items()))).to_json_line() == line
    assert interaction(asked_at="2026-09-01T17:30:00+05:30").to_json_line() == line, "in UTC"
    others = {"answer": "None", "model": "m@2", "product": "gold", "asked_at": "2026-09-01T12:00:01Z", "contexts": []}
    assert len({line, *(interaction(**{key: value}).to_json_line() for key, value in others.items())}) == 6
    one = interaction(writer_scores={"a": 1, "b": -0.0}, token_log_probs=[-1, -0.0])
    assert one.to_json_line() == interaction(writer_scores={"b": 0, "a": 1.0}, token_log_probs=[-1.0, 0]).to_json_line()


def test_to_json_line_bytes_are_fixed() -> None:
    assert Thumb.model_validate({**VALID[Thumb], "comment": "naïve\n"}).to_json_line() == (
        '{"interaction_id":"i-1","given_at":"2026-09-01T12:00:00Z","thumb":"up","user":null,"comment":"naïve"}'
    )


@pytest.mark.parametrize("contract", VALID)
def test_contract_unknown_field_blank_text_or_no_zone_raises(contract: type[BaseModel]) -> None:
    contract.model_validate(VALID[contract])
    with pytest.raises(ValidationError) as caught:
        contract.model_validate({**VALID[contract], "surprise": 1})
    assert [(e["loc"], e["type"]) for e in caught.value.errors()] == [(("surprise",), "extra_forbidden")]
    for name, value in VALID[contract].items():
        if name.endswith("_at"):
            with pytest.raises(ValidationError, match="timestamp without a time zone: write it in UTC"):
                contract.model_validate({**VALID[contract], name: "2026-09-01T12:00:00"})
        elif isinstance(value, str) and name not in ("thumb", "kind"):
            with pytest.raises(ValidationError, match=name):
                contract.model_validate({**VALID[contract], name: " \n"})


@pytest.mark.parametrize("value", ["20260901", "1756728000", " 1.5 ", "-3", 1756728000, 1.5, True])
def test_timestamp_number_raises(value: Any) -> None:
    line = json.dumps({**json.loads(interaction().to_json_line()), "asked_at": value})
    with pytest.raises(ValidationError, match="timestamp.*write it in UTC, as in 2026-01-31T12:00:00Z"):
        Interaction.model_validate_json(line, strict=True)


ADDED = {
    "writer_scores": {"judge": 7.0, "log_prob": -0.5},
    "token_log_probs": [-0.25, 0.0],
    "display": "shown",
    "propensity": 0.5,
}


def test_to_json_line_omits_absent_optional_fields() -> None:
    plain = interaction().to_json_line()
    assert not set(json.loads(plain)) & ADDED.keys()
    nothing = interaction(writer_scores={}, token_log_probs=[], display=None, propensity=None)
    assert nothing.to_json_line() == plain and nothing == interaction()
    full = interaction(**ADDED)
    assert json.loads(full.to_json_line()) == json.loads(plain) | ADDED
    assert Interaction.model_validate_json(full.to_json_line(), strict=True) == full
    imported = ImportedInteraction.model_validate({**VALID[Interaction], **ADDED})
    assert imported.to_rows()[0] == full


def test_list_sources_names_heading_and_page() -> None:
    """Of a chunk of the knowledge base, but only to whom has its text: an id is easily guessed or leaked."""
    chunk = CHUNK.model_copy(update={"section_path": ("Card", "Fees\n[2] x", "Abroad"), "page": 3})
    assert Chunk.model_validate_json(CHUNK.to_json_line()) == CHUNK != chunk
    assert Chunk.model_validate_json(chunk.to_json_line()) == chunk
    chunks, cited = {chunk.chunk_id: chunk}, Context(chunk_id=chunk.chunk_id, text=chunk.text)
    location = "Card › Fees [2] x › Abroad, page 3"
    unknown = [Context(chunk_id="a#1", text="Loan > Rates\nx"), Context(chunk_id="b#1", text="y")]
    assert list_sources([cited, *unknown], chunks) == (location, "Loan", "b")
    stolen = cited.model_copy(update={"text": "x"})
    assert list_sources([stolen], chunks) == ("fees",)
    assert contracts.locate_contexts([stolen, *unknown], chunks) == {chunk.chunk_id: location}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("writer_scores", {"a": value}) for value in (float("nan"), float("inf"), "0.5", True)),
        ("writer_scores", {" ": 1}),
        *(("token_log_probs", value) for value in ([-1, 0.01], [float("-inf")])),
        ("display", "hidden"),
        *(("propensity", value) for value in (0, 1.01)),
    ],
)
def test_interaction_impossible_score_raises(field: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=field):
        interaction(**{field: value})


def test_to_rows_splits_imported_interaction() -> None:
    thumb = {"thumb": "down", "given_at": AT, "user": "u", "comment": "wrong card"}
    review = {k: v for k, v in VALID[Review].items() if k != "interaction_id"} | {"ideal_answer": "12 EUR."}
    row = ImportedInteraction.model_validate({**VALID[Interaction], "thumb": thumb, "review": review})
    parts = interaction(), Thumb(interaction_id="i-1", **thumb), Review(interaction_id="i-1", **review)
    assert row.to_rows() == parts and type(row.to_rows()[0]) is Interaction
    only = ImportedInteraction.model_validate({**VALID[Interaction], "review": review})
    assert only.to_rows() == (parts[0], None, parts[2])
    with pytest.raises(ValidationError, match=r"thumb.interaction_id\n\s+Extra inputs"):
        ImportedInteraction.model_validate({**VALID[Interaction], "thumb": thumb | {"interaction_id": "i-2"}})


@pytest.mark.parametrize(
    ("changes", "group"),
    [
        ({}, "fees"),
        ({"group": "customers"}, "customers"),
        ({"contexts": []}, "i-1"),
        ({"contexts": [{"chunk_id": "z#b#3", "text": "t"}, {"chunk_id": "a#1", "text": "t"}]}, "z#b"),
        ({"contexts": [{"chunk_id": "plain", "text": "t"}]}, "plain"),
        ({"contexts": [{"chunk_id": "#1", "text": "t"}]}, "#1"),
    ],
)
def test_split_group_prefers_group_then_document(changes: dict[str, Any], group: str) -> None:
    assert interaction(**changes).split_group == group


@pytest.mark.parametrize(
    ("probability", "is_valid"),
    [(-0.1, False), (0, False), (1e-320, False), (9e-7, False), (1e-6, True), (1, True), (1.1, False)],
)
def test_review_inclusion_probability_bounds(probability: float, is_valid: bool) -> None:
    with nullcontext() if is_valid else pytest.raises(ValidationError, match="inclusion_probability"):
        review(inclusion_probability=probability)
