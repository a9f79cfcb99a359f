"""The text of whatever a model, framework or gateway calls an answer, and reasoning that is no part of it."""

from types import SimpleNamespace
from typing import Any, get_args

import pytest

from abstain.core.message_text import Role, extract_text, remove_reasoning
from abstain.core.text import ReasoningMarker, is_refusal, replace_control_characters

MARKERS = get_args(ReasoningMarker)


def block(text: str, kind: str = "text") -> dict[str, str]:
    return {"type": kind, kind if kind == "thinking" else "text": text}


@pytest.mark.parametrize(
    ("value", "role", "text"),
    [
        (" Yes.\n", "assistant", "Yes."),
        ([block("It is "), block("5"), block(".")], "assistant", "It is 5."),
        ([block("Look."), "What is it?"], "user", "Look.\nWhat is it?"),
        ([block("5 or 6", "thinking"), block("5", "output_text")], "assistant", "5"),
        ({"role": "assistant", "content": [block("Yes.")]}, "assistant", "Yes."),
        ({"role": "assistant", "content": None, "refusal": "I can't."}, "assistant", "I can't."),
        ({"role": "model", "parts": [{"text": "Yes."}]}, "assistant", "Yes."),
        (SimpleNamespace(type="ai", content=[block("Yes.")]), "assistant", "Yes."),
        ({"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]}, "user", "Why?"),
        ([SimpleNamespace(type="human", content="Q"), SimpleNamespace(type="ai", content="So.")], "assistant", "So."),
        (SimpleNamespace(page_content="A chunk."), "user", "A chunk."),
        (SimpleNamespace(node=None, text="A chunk.", get_content=lambda: "x"), "user", "A chunk."),
        *((value, "user", None) for value in (None, "", " ", [], {}, 5, {"title": "a"}, [None], [{"role": "tool"}])),
        ([{"role": "user", "content": "Why?"}], "assistant", None),
    ],
)
def test_extract_text_of_every_form(value: Any, role: Role, text: str | None) -> None:
    assert extract_text(value, role) == text


def test_extract_text_of_a_deep_list_ends() -> None:
    value: Any = "a"
    for _ in range(10_000):
        value = [value]
    assert extract_text(value) is None
    assert extract_text([block(str(number)) for number in range(500)], "assistant") == "".join(map(str, range(500)))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>\nIs it 5?\n</think>\n\nIt is 5.", "It is 5."),
        ("Is it 5?\n</think>\nIt is 5.", "It is 5."),
        ("<Reasoning>a</REASONING>It is 5.", "It is 5."),
        ("<think>```\na</think>It <thinking>b</thinking>is 5.", "It is 5."),
        ('<details type="reasoning" done="1">\n<summary>T</summary><details>a</details>\n</details>\nYes.', "Yes."),
        ("<details id='1' type='tool_calls'>{}</details>It is 5.", "It is 5."),
        ("<|channel|>analysis<|message|>5?<|end|><|start|>assistant<|channel|>final<|message|>5.<|return|>", "5."),
        ("<|channel|>commentary to=functions.f <|message|>{}<|call|>It is 5.", "It is 5."),
        ("<think>only this</think>", ""),
        *((text, text) for text in ("It is 5 < 6. ", "Write `<think>`.", " ```xml\n<think>\n```\nIs it?", "</p>")),
        ("<details><summary>More</summary>It is 5.</details>",) * 2,
    ],
)
def test_remove_reasoning_leaves_the_answer(text: str, answer: str) -> None:
    assert remove_reasoning(text, MARKERS) == answer
    assert remove_reasoning(text, ()) == text


@pytest.mark.parametrize("text", ["<think>5.", "Yes. <details type=reasoning>It", "<|channel|>analysis<|message|>5."])
def test_remove_reasoning_without_an_end_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="does not end"):
        remove_reasoning(text, MARKERS)


ATTACKS = ("\x1b]52;c;ZXZpbA==\x1b\\", "\x9b2J", "a\rb", "\x1b]0;t\x07", "\x00", "\x7f", "\u202egnp.exe")


@pytest.mark.parametrize("attack", ATTACKS)
def test_replace_control_characters_removes_attacks(attack: str) -> None:
    shown = replace_control_characters(f"before {attack} after")
    assert not set(shown) & set("\x00\x07\r\x1b\x7f\x9b\u202e")
    assert shown.startswith("before ") and shown.endswith(" after")


def test_replace_control_characters_keeps_ordinary_text() -> None:
    text = "Was kostet's?\n\tÀ peu près 5 €, 手数料, رسوم, 👍🏽"
    assert replace_control_characters(text) == text
    assert replace_control_characters("one\r\ntwo\rthree") == "one\ntwo\nthree"


BEGINNINGS = ("[Unanswerable", "I don't know")


def test_is_refusal_ignores_case_spaces_quotes() -> None:
    """A bracket means itself: as a regular expression, "[Unanswerable" would be none, and "[Una]" one letter."""
    for answer in ("[Unanswerable given the paragraph]", "I don't know it.", "I DON\u2019T\nknow.", "  i don't  know"):
        assert is_refusal(answer, BEGINNINGS), answer
    for answer in ("Unanswerable", "U", "The fee? I don't know.", "I know.", ""):
        for beginnings in (BEGINNINGS, (), ("[Una]",)):
            assert not is_refusal(answer, beginnings), answer
