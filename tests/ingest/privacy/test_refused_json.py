"""Where the text of a refused row is changed; that what is changed is right is tested elsewhere."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.ingest.privacy.refused_json import Rules, redact_json


def hide(text: str) -> str:
    return text.replace("secret", "<X>").replace("4111", "<X>")


def name(text: str) -> str:
    return f"u-{len(text)}"


RULES = Rules(text=hide, user=name, reviewer=None, contexts=False)
OTHER_RULES = Rules(text=hide, user=None, reviewer=name, contexts=True)
NO_RULES = Rules(text=lambda text: text, user=None, reviewer=None, contexts=False)
ROW: dict[str, Any] = {
    "interaction_id": "secret-1",
    "asked_at": "2026-11-02T09:30:00Z",
    "question": "secret?",
    "answer": "The secret, \u201csecret\u201d.",
    "contexts": [{"chunk_id": "secret#1", "text": "the secret fee"}],
    "model": "secret@1",
    "product": "secret",
    "group": "secret",
    "thumb": {"given_at": "2026-11-02T09:31:00Z", "thumb": "up", "user": "ann", "comment": "secret"},
    "review": {"reviewer": "secret", "ideal_answer": "secret", "inclusion_probability": 0.4111, "correct": True},
}


def redacted(fields: dict[str, Any], rules: Rules = RULES) -> Any:
    kept = redact_json(json.dumps(fields).encode(), rules)
    assert kept is not None
    return json.loads(kept)


def test_refused_json_typed_text_is_redacted_and_users_are_named() -> None:
    expected = ROW | {"question": "<X>?", "answer": "The <X>, \u201c<X>\u201d."}
    expected["thumb"] = ROW["thumb"] | {"user": "u-3", "comment": "<X>"}
    expected["review"] = ROW["review"] | {"ideal_answer": "<X>"}
    assert redacted(ROW) == expected
    expected["contexts"] = [{"chunk_id": "secret#1", "text": "the <X> fee"}]
    expected["thumb"]["user"], expected["review"]["reviewer"] = "ann", "u-6"
    assert redacted(ROW, OTHER_RULES) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"user": 17}, {"user": "u-2"}),
        ({"user": {"id": 17, "name": "ann"}}, {"user": {"id": "u-2", "name": "u-3"}}),
        ({"user": None, "given_at": "secret"}, {"user": None, "given_at": "<X>"}),
        ({"user_id": "ann", "User": "ann", "usr": "a"}, {"user_id": "u-3", "User": "u-3", "usr": "u-1"}),
        ({"coment": "a secret"}, {"coment": "a <X>"}),
        ({"secret": {"secret": ["secret"]}}, {"<X>": {"<X>": ["<X>"]}}),
        ({"contexts": [{"text": "secret", "note": "secret"}]}, {"contexts": [{"text": "secret", "note": "<X>"}]}),
        ({"contexts": [{"text": ["secret"]}]}, {"contexts": [{"text": ["<X>"]}]}),
        ({"contexts": ["secret"], "text": "secret"}, {"contexts": ["<X>"], "text": "<X>"}),
        ({"thumb": "secret", "group": ["secret"]}, {"thumb": "<X>", "group": ["<X>"]}),
        ({"writer": {"secret": 0.4111, "b": "secret"}}, {"writer": {"secret": 0.4111, "b": "<X>"}}),
        ({"writer": {"a": {"secret": 4111}}}, {"writer": {"a": {"<X>": "<X>"}}}),
        ({"token_log_probs": [-0.4111, "secret"]}, {"token_log_probs": [-0.4111, "<X>"]}),
        ({"decision": "shown", "propensity": 0.4111}, {"decision": "shown", "propensity": 0.4111}),
        ({"comment": 4111, "n": [4111, 41, -4111]}, {"comment": "<X>", "n": ["<X>", 41, "-<X>"]}),
    ],
)
def test_refused_json_every_place_is_looked_at(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert redacted(fields) == expected


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"1,secret,2026-11-02",
        b'"secret"',
        b'["secret"]',
        b'{"question": "cut short, secret',
        b'{"question": "secret"} {"user": "ann"}',
        b'{"user": "ann", "user": "secret"}',
        b"{\"thumb\": \"{'user': 'ann'}\"}",
        b'{"contexts": " [secret"}',
        b'{"question": "secret \xff"}',
        b'{"question": "secret \\udc80"}',
        '{"question": "secret"}'.encode("utf-16"),
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    ],
)
def test_refused_json_text_that_is_no_object_is_not_kept(raw: bytes) -> None:
    assert redact_json(raw, RULES) is None
    assert redact_json(raw, NO_RULES) is None


KEYS = st.text().map("_{}".format)  # none of the contracts' fields, which have rules of their own
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.just("a secret"),
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner),
    max_leaves=10,
)
OBJECTS = st.dictionaries(KEYS | st.just("a secret"), VALUES)


def hidden(value: Any) -> Any:
    """`hide` applied to all text, and to all numbers."""
    if isinstance(value, list):
        return [hidden(item) for item in value]
    if isinstance(value, dict):
        return {hide(key): hidden(item) for key, item in value.items()}
    if value is None or isinstance(value, bool):
        return value
    text = value if isinstance(value, str) else json.dumps(value)
    return value if hide(text) == text else hide(text)


@pytest.mark.heavy
@given(OBJECTS)
def test_refused_json_all_text_is_redacted_and_nothing_else_changed(fields: dict[str, Any]) -> None:
    if any(isinstance(value, str) and value.lstrip().startswith(("[", "{")) for value in fields.values()):
        assert redact_json(json.dumps(fields).encode(), NO_RULES) is None, "it may be JSON, with a user in it"
    else:
        assert redacted(fields, OTHER_RULES) == hidden(fields)
        assert redacted(fields, NO_RULES) == fields


def test_refused_json_nothing_of_a_row_stays_in_memory() -> None:
    def redact_rows(start: int) -> None:
        for number in range(start, start + 200):
            redacted({f"{number} {'x' * 5000}": 1}, NO_RULES)

    redact_rows(0)
    tracemalloc.start()
    redact_rows(1000)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 200_000, "a megabyte of field names was read"


@given(st.binary() | st.text().map(str.encode))
def test_refused_json_any_bytes_are_an_object_or_not_kept(raw: bytes) -> None:
    kept = redact_json(raw, RULES)
    assert kept is None or isinstance(json.loads(kept), dict)
