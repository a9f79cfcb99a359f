from __future__ import annotations

import pytest

from abstain.core.refusals import is_refusal

BEGINNINGS = ("[Unanswerable", "I don't know")


@pytest.mark.parametrize(
    "answer",
    [
        "[Unanswerable given the paragraph below]",
        "I don't know what the fee is.",
        "I DON\u2019T\nknow.",
        "  i don't  know",
    ],
)
def test_a_refusal_begins_with_one_of_the_texts_however_it_is_typed(answer: str) -> None:
    assert is_refusal(answer, BEGINNINGS)


@pytest.mark.parametrize("answer", ["Unanswerable", "U", "The fee? I don't know.", "I know.", ""])
def test_other_answers_are_none(answer: str) -> None:
    """A bracket means itself: as a regular expression, "[Unanswerable" would be none, and "[Una]" one letter."""
    assert not is_refusal(answer, BEGINNINGS)
    assert not is_refusal(answer, ())
    assert not is_refusal(answer, ("[Una]",))
