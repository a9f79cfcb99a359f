import pytest

from abstain.core.codes import Code
from abstain.core.errors import AbstainError, parse_error_line
from abstain.core.text import is_refusal, replace_control_characters

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


def test_message_with_code_has_no_control_characters() -> None:
    error = AbstainError(Code.INVALID_ROW, "field '\x1b[2J' is unknown: remove it")
    assert error.message_with_code == "A103: field '\ufffd[2J' is unknown: remove it"
    assert parse_error_line(f"error {error.message_with_code}") is not None


BEGINNINGS = ("[Unanswerable", "I don't know")


@pytest.mark.parametrize(
    "answer", ["[Unanswerable given the paragraph below]", "I don't know it.", "I DON\u2019T\nknow.", "  i don't  know"]
)
def test_is_refusal_ignores_case_spaces_quotes(answer: str) -> None:
    assert is_refusal(answer, BEGINNINGS)


@pytest.mark.parametrize("answer", ["Unanswerable", "U", "The fee? I don't know.", "I know.", ""])
def test_is_refusal_other_answers_are_false(answer: str) -> None:
    """A bracket means itself: as a regular expression, "[Unanswerable" would be none, and "[Una]" one letter."""
    assert not is_refusal(answer, BEGINNINGS)
    assert not is_refusal(answer, ())
    assert not is_refusal(answer, ("[Una]",))
