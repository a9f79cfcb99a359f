"""Where the parts of gateways' requests and responses are found."""

from dataclasses import fields
from typing import Any

import pytest
from pydantic import ValidationError

from abstain.config.serve_settings import GatewayPaths, KgatewayPaths, load_serve_settings
from abstain.core.contracts import Context
from abstain.core.errors import AbstainError
from abstain.serving.gateways.core import GatewayFieldParser, GatewayFields
from abstain.serving.service.schemas import GateRequest

NOTHING = GatewayFields(**dict.fromkeys(field.name for field in fields(GatewayFields)))


def parse(request: dict[str, Any], **paths: str) -> GatewayFields:
    return GatewayFieldParser("made-up", GatewayPaths(**paths)).parse(request)


@pytest.mark.parametrize(
    ("value", "contexts"),
    [
        (["a", "b"], ("a", "b")),
        ("a", ("a",)),
        ([{"chunk_id": "c1", "text": "a"}], (Context(chunk_id="c1", text="a"),)),
        ([{"id": "c1", "page_content": "a"}, {"content": "b"}], (Context(chunk_id="c1", text="a"), "b")),
        ([{"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], ("a\nb",)),
        ([], None),
        (None, None),
    ],
)
def test_parse_contexts_of_texts_and_objects(value: Any, contexts: tuple[Any, ...] | None) -> None:
    fields = parse({"metadata": {"chunks": value}}, contexts="metadata.chunks")
    assert GateRequest(contexts=fields.contexts).contexts == contexts


def test_parse_field_without_text_is_an_error() -> None:
    assert parse({"groups": "staff"}, entitlements="groups").entitlements == ("staff",)
    for value in ([1], [{"title": "a"}], [[2]], 3, [""], {"text": ""}):
        with pytest.raises(ValidationError, match="contexts"):
            GateRequest(contexts=parse({"key": value}, contexts="key").contexts)
    with pytest.raises(AbstainError, match="entitlements"):
        parse({"key": [{"name": "staff"}]}, entitlements="key")
    assert parse({"question": "Why?", "contexts": ["a"]}) == NOTHING, "without a path nothing is looked for"


def test_parse_question_of_message_parts() -> None:
    parts = [{"type": "text", "text": "Look at this."}, {"type": "image_url", "image_url": {"url": "data:"}}]
    messages = [{"role": "user", "content": "Before."}, {"role": "user", "content": parts}]
    assert GatewayFieldParser("made-up", KgatewayPaths()).parse({"messages": messages}).question == "Look at this."


def test_settings_variable_changes_one_path_or_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABSTAIN_SERVE_LITELLM__CONTEXTS", "structured_messages[?role=='tool'].content")
    paths = load_serve_settings().litellm
    assert (paths.contexts, paths.call_id) == ("structured_messages[?role=='tool'].content", "litellm_call_id")
    monkeypatch.setenv("ABSTAIN_SERVE_PORTKEY__CHUNKS", "metadata")
    with pytest.raises(AbstainError, match="ABSTAIN_SERVE_PORTKEY__CHUNKS"):
        load_serve_settings()
    with pytest.raises(AbstainError, match=r"ABSTAIN_SERVE_LITELLM__CONTEXTS.*JMESPath"):
        GatewayFieldParser("litellm", GatewayPaths(contexts="metadata["))
