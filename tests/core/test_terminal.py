"""Foreign text on a terminal."""

from __future__ import annotations

import pytest

from abstain.core.codes import Code
from abstain.core.errors import AbstainError, parse_coded
from abstain.core.terminal import visible

ATTACKS = (
    "\x1b[2J",
    "\x1b]52;c;ZXZpbA==\x1b\\",
    "\x9b2J",
    "a\rb",
    "\x07",
    "\x00",
    "\x7f",
    "\u202egnp.exe",
    "\x1b]0;t\x07",
)


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_character_controls_the_terminal(attack: str) -> None:
    shown = visible(f"before {attack} after")
    assert not set(shown) & set("\x00\x07\r\x1b\x7f\x9b\u202e")
    assert shown.startswith("before ") and shown.endswith(" after")


def test_text_of_any_language_its_lines_and_tabs_stay() -> None:
    text = "Was kostet's?\n\tÀ peu près 5 €, 手数料, رسوم, 👍🏽"
    assert visible(text) == text
    assert visible("one\r\ntwo\rthree") == "one\ntwo\nthree"


def test_the_line_of_an_error_controls_nothing() -> None:
    error = AbstainError(Code.INVALID_ROW, "field '\x1b[2J' is unknown: remove it")
    assert error.coded == "A103: field '\ufffd[2J' is unknown: remove it"
    assert parse_coded(f"error {error.coded}") is not None
