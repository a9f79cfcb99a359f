"""What `redact_raw` does to the text of a row, whatever is changed; that what is changed is right is tested elsewhere."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.ingest.privacy.raw import Rules, redact_raw


def hide(text: str) -> str:
    return text.replace("secret", "<X>")


def name(text: str) -> str:
    return f"u-{len(text)}"


RULES = Rules(text=hide, user=name, reviewer=None, contexts=False)
KEEP_USERS = Rules(text=hide, user=None, reviewer=None, contexts=True)
ROW = {
    "interaction_id": "secret-1",
    "asked_at": "2026-11-02T09:30:00Z",
    "question": "secret?",
    "answer": "The secret, \u201csecret\u201d.",
    "contexts": [{"chunk_id": "secret#1", "text": "the secret fee"}],
    "model": "secret@1",
    "product": "secret",
    "group": "secret",
    "thumb": {"given_at": "2026-11-02T09:31:00Z", "thumb": "up", "user": "ann", "comment": "secret"},
    "review": {"reviewer": "secret", "ideal_answer": "secret", "inclusion_probability": 0.5, "correct": True},
}


def changed(raw: str, rules: Rules = RULES) -> str:
    return redact_raw(raw.encode("utf-8", "surrogateescape"), rules).decode("utf-8", "surrogateescape")


def test_what_people_typed_is_changed_and_users_are_named() -> None:
    expected = json.loads(json.dumps(ROW))
    expected |= {"question": "<X>?", "answer": "The <X>, \u201c<X>\u201d."}
    expected["thumb"] |= {"user": "u-3", "comment": "<X>"}
    expected["review"] |= {"ideal_answer": "<X>"}
    for form in ({}, {"ensure_ascii": False}, {"indent": 2}, {"separators": (",", ":")}):
        assert json.loads(changed(json.dumps(ROW, **form))) == expected  # type: ignore[arg-type]


def test_contexts_and_reviewers_change_where_that_is_wanted_and_users_stay_where_it_is_not() -> None:
    assert json.loads(changed(json.dumps(ROW), KEEP_USERS))["contexts"] == [
        {"chunk_id": "secret#1", "text": "the <X> fee"}
    ]
    assert json.loads(changed(json.dumps(ROW), KEEP_USERS))["thumb"]["user"] == "ann"
    rules = Rules(text=hide, user=None, reviewer=name, contexts=False)
    assert json.loads(changed(json.dumps(ROW), rules))["review"]["reviewer"] == "u-6"


@pytest.mark.parametrize(
    ("raw", "redacted"),
    [
        ('{"user": 17}', '{"user": "u-2"}'),
        ('{"user": {"id": 17, "name": "ann"}}', '{"user": {"id": "u-2", "name": "u-3"}}'),
        ('{"user": null, "given_at": "secret"}', '{"user": null, "given_at": "<X>"}'),
        ('{"user_id": "ann", "User": "ann", "usr": "a"}', '{"user_id": "u-3", "User": "u-3", "usr": "u-1"}'),
        ('{"coment": "a secret"}', '{"coment": "a <X>"}'),
        ('{"secret": {"secret": ["secret"]}}', '{"<X>": {"<X>": ["<X>"]}}'),
        ('{"question": "a", "question": "secret"}', '{"question": "a", "question": "<X>"}'),
        ('{"a": "\\u0073ecret \\ud83d\\ude00"}', '{"a": "<X> \\ud83d\\ude00"}'),
        ('{"a": "secret \\udc80"}', '{"a": "<X> \\udc80"}'),
        ('{"a": "secret \\"secret\\" \\\\"}', '{"a": "<X> \\"<X>\\" \\\\"}'),
        ('{"contexts": [{"text": "secret", "note": "secret"}]}', '{"contexts": [{"text": "secret", "note": "<X>"}]}'),
        ('{"contexts": [{"text": ["secret"]}]}', '{"contexts": [{"text": ["<X>"]}]}'),
        ('{"contexts": ["secret"], "text": "secret"}', '{"contexts": ["<X>"], "text": "<X>"}'),
        ("[1e400, NaN, -0.0, 12345678901234567890]", "[1e400, NaN, -0.0, 12345678901234567890]"),
    ],
)
def test_every_place_is_looked_at(raw: str, redacted: str) -> None:
    assert changed(raw) == redacted


def test_a_secret_that_holds_numbers_is_seen_whole_where_there_is_no_json() -> None:
    rules = Rules(text=lambda text: text.replace("41 11", "<X>"), user=None, reviewer=None, contexts=False)
    assert changed("paid with 41 11, not with 41 12", rules) == "paid with <X>, not with 41 12"
    assert changed('{"comment": 41 11}', rules) == '{"comment": <X>}'


def test_a_number_that_is_a_secret_becomes_text() -> None:
    rules = Rules(text=lambda text: text.replace("4111", "<X>"), user=None, reviewer=None, contexts=False)
    raw = '{"comment": 4111, "n": [4111, 41, -4111], "inclusion_probability": 0.4111}'
    assert changed(raw, rules) == '{"comment": "<X>", "n": ["<X>", 41, "-<X>"], "inclusion_probability": 0.4111}'


@pytest.mark.parametrize(
    ("raw", "redacted"),
    [
        ("a secret, no JSON", "a <X>, no JSON"),
        ("say 1234 secret 5678 \u00e9", "say 1234 <X> 5678 \u00e9"),
        ("1,secret,2026-11-02", "1,<X>,2026-11-02"),
        ("{'question': 'secret'}", "{'question': '<X>'}"),
        ('{"question": "cut short, secret', '{"question": "cut short, <X>'),
        ('{"question": "secret \\', '{"question": "<X> \\'),
        ('{"question": "secret \\u00', '{"question": "<X> \\u00'),
        ('{"thumb": {"user": "ann', '{"thumb": {"user": "u-3'),
        ('{"a": "b"} "secret" {"user": "ann"', '{"a": "b"} "<X>" {"user": "u-3"'),
        ('}]}"secret"', '}]}"<X>"'),
        ('{"a": "wrong \\x escape secret"}', '{"a": "wrong \\x escape <X>"}'),
        ("", ""),
    ],
)
def test_what_is_no_json_is_redacted_as_far_as_it_goes(raw: str, redacted: str) -> None:
    assert changed(raw) == redacted


def test_bytes_that_are_no_utf8_stay() -> None:
    assert (
        redact_raw(b'{"question": "secret \xff\xe9", "user": "ann"}', RULES)
        == b'{"question": "<X> \xff\xe9", "user": "u-3"}'
    )
    assert redact_raw(b"\xff\xfe\x00 secret \x80", KEEP_USERS) == b"\xff\xfe <X> \x80"


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le"])
def test_wide_encodings_hide_nothing(encoding: str) -> None:
    wide = '{"question": "secret"}'.encode(encoding)
    assert redact_raw(wide, RULES) == b'{"question": "<X>"}'
    assert redact_raw("nothing".encode(encoding), RULES) == "nothing".encode(encoding)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(sorted(ROW)), inner),
    max_leaves=20,
)


def expected(value: Any) -> Any:
    """`hide` applied to all text."""
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, list):
        return [expected(one) for one in value]
    return {hide(key): expected(one) for key, one in value.items()} if isinstance(value, dict) else value


@pytest.mark.heavy
@given(JSON, st.booleans())
def test_json_stays_json_with_nothing_else_changed(value: Any, escaped: bool) -> None:
    raw = json.dumps(value, ensure_ascii=escaped)
    rules = Rules(text=lambda text: text, user=None, reviewer=None, contexts=False)
    assert changed(raw, rules) == raw


@pytest.mark.heavy
@given(
    st.recursive(st.text() | st.just("a secret"), lambda i: st.lists(i) | st.dictionaries(st.text(), i), max_leaves=20)
)
def test_text_is_changed_wherever_it_stands(value: Any) -> None:
    assert json.loads(changed(json.dumps(value), KEEP_USERS)) == expected(value)
    assert json.loads(changed(json.dumps(value, ensure_ascii=False), KEEP_USERS)) == expected(value)


@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_come_through(raw: bytes) -> None:
    rules = Rules(text=lambda text: text, user=None, reviewer=None, contexts=False)
    assert redact_raw(raw, rules) == raw
    redact_raw(raw, RULES)


@pytest.mark.slow
@pytest.mark.parametrize("unit", ['"', '\\"', '{"a":', "[", "secret ", "\x00", '"user":"ann",'])
def test_a_line_of_a_megabyte_takes_seconds(unit: str) -> None:
    raw = (unit * (1_000_000 // len(unit))).encode()
    assert b"secret" not in redact_raw(raw, RULES)
