"""Where a request's parts are found, and what is said of a path that leads elsewhere."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from abstain.config.serve_settings import GatewayPaths, KgatewayPaths, load_serve_settings
from abstain.core.contracts import Context
from abstain.core.errors import AbstainError
from abstain.serving.gateways.core import GatewayFieldParser, GatewayFields

NOTHING = GatewayFields(**dict.fromkeys(field.name for field in fields(GatewayFields)))


def found(request: dict[str, Any], **paths: str) -> GatewayFields:
    return GatewayFieldParser("made-up", GatewayPaths(**paths)).parse(request)


def test_without_paths_nothing_is_found() -> None:
    assert found({"question": "Why?", "contexts": ["a"]}) == NOTHING


@pytest.mark.parametrize(
    ("given", "contexts"),
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
def test_contexts_are_texts_or_objects_with_one(given: Any, contexts: tuple[Any, ...] | None) -> None:
    assert found({"metadata": {"chunks": given}}, contexts="metadata.chunks").contexts == contexts


@pytest.mark.parametrize("given", [[1], [{"title": "a"}], [["a"]], 3, [""], {"text": ""}])
def test_contexts_of_another_kind_are_refused(given: Any) -> None:
    with pytest.raises(AbstainError, match="contexts"):
        found({"chunks": given}, contexts="chunks")


def test_entitlements_that_are_no_texts_are_refused() -> None:
    assert found({"groups": "staff"}, entitlements="groups").entitlements == ("staff",)
    with pytest.raises(AbstainError, match="entitlements"):
        found({"groups": [{"name": "staff"}]}, entitlements="groups")


def test_a_message_may_be_a_list_of_parts() -> None:
    parts = [{"type": "text", "text": "Look at this."}, {"type": "image_url", "image_url": {"url": "data:"}}]
    messages = [{"role": "user", "content": "Before."}, {"role": "user", "content": parts}]
    assert GatewayFieldParser("made-up", KgatewayPaths()).parse({"messages": messages}).question == "Look at this."


def test_a_path_that_is_no_expression_is_named_with_its_variable() -> None:
    with pytest.raises(AbstainError, match=r"ABSTAIN_SERVE_LITELLM__CONTEXTS.*JMESPath"):
        GatewayFieldParser("litellm", GatewayPaths(contexts="metadata["))


def test_a_path_is_set_by_a_variable_and_the_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABSTAIN_SERVE_LITELLM__CONTEXTS", "structured_messages[?role=='tool'].content")
    paths = load_serve_settings().litellm
    assert paths.contexts == "structured_messages[?role=='tool'].content"
    assert paths.call_id == "litellm_call_id"


def test_an_unknown_path_is_named_with_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABSTAIN_SERVE_PORTKEY__CHUNKS", "metadata")
    with pytest.raises(AbstainError, match="ABSTAIN_SERVE_PORTKEY__CHUNKS"):
        load_serve_settings()
