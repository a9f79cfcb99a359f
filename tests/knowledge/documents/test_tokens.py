from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.core.errors import AbstainError
from abstain.knowledge.documents.tokens import make_token_counter

COUNT = make_token_counter()


def test_token_counter_counts_without_special_tokens() -> None:
    assert [COUNT(text) for text in ("", "the fee", "unaffable", "the fee, really")] == [0, 2, 3, 4]


def test_token_counter_cuts_nothing_off() -> None:
    assert COUNT("fee " * 5000) == 5000


def test_token_counter_unknown_word_counts_by_length() -> None:
    assert COUNT("x" * 400) == 1 + 100
    assert COUNT("the " + "x" * 400 + " fee") == 3 + 100


@given(st.lists(st.text(max_size=8), max_size=6), st.sampled_from([" ", "\n", "\n\n"]))
def test_token_counter_is_additive(parts: list[str], joint: str) -> None:
    assert COUNT(joint.join(parts)) == sum(map(COUNT, parts))


def test_make_token_counter_without_a_tokenizer_raises(tmp_path: Path) -> None:
    with pytest.raises(
        AbstainError, match=r"tokenizer\.json is not there: chunks are measured by the encoder's tokenizer$"
    ):
        make_token_counter(tmp_path)
