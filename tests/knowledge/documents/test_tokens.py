from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.core.errors import AbstainError
from abstain.knowledge.documents.tokens import make_token_counter

COUNT = make_token_counter()


def test_tokens_are_the_encoders_without_its_own_marks() -> None:
    assert [COUNT(text) for text in ("", "the fee", "unaffable", "the fee, really")] == [0, 2, 3, 4]


def test_nothing_is_cut_off() -> None:
    assert COUNT("fee " * 5000) == 5000


def test_a_word_that_the_encoder_gives_up_on_counts_by_its_length() -> None:
    assert COUNT("x" * 400) == 1 + 100
    assert COUNT("the " + "x" * 400 + " fee") == 3 + 100


@given(st.lists(st.text(max_size=8), max_size=6), st.sampled_from([" ", "\n", "\n\n"]))
def test_the_tokens_of_a_whole_are_those_of_its_parts(parts: list[str], joint: str) -> None:
    assert COUNT(joint.join(parts)) == sum(map(COUNT, parts))


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        AbstainError, match=r"tokenizer\.json is not there: chunks are measured by the encoder's tokenizer$"
    ):
        make_token_counter(tmp_path)
