from __future__ import annotations

import math
import sys

import pytest

from abstain.core.errors import AbstainError
from abstain.llm.familiarity import words
from abstain.llm.familiarity.words import DICTIONARY_WORDS, H, compute_log_frequency, get_rank, is_common, split_words

pytest.importorskip("wordfreq", reason="the extra `familiarity` is not installed")


def test_the_most_frequent_word_has_rank_one_and_a_name_that_of_no_word() -> None:
    assert get_rank("the") == 1
    assert 1 < get_rank("year") < get_rank("photosynthesis") < DICTIONARY_WORDS
    assert {get_rank(word) for word in ("Year", "THE", "beyfortus", "免费")} == {DICTIONARY_WORDS}


def test_a_concept_is_common_if_all_its_words_are() -> None:
    assert is_common("next year") and is_common("don’t")
    assert not is_common("the Big Mac") and not is_common("glissando of the year")


def test_a_hyphen_parts_words_and_an_apostrophe_does_not() -> None:
    assert split_words("the debt-ceiling crisis, Alzheimer's_disease 2023") == [
        "the", "debt", "ceiling", "crisis", "Alzheimer's", "disease", "2023",
    ]  # fmt: skip


def test_the_frequency_score_is_the_product_over_the_words() -> None:
    """Eq. 6, where it is not yet 0."""
    f = math.exp(-get_rank("water") / H) * math.exp(-get_rank("cycle") / H)
    assert math.exp(compute_log_frequency("water cycle")) == pytest.approx(f)
    assert compute_log_frequency("Water Cycle") == pytest.approx(-2 * DICTIONARY_WORDS / H)


def test_a_missing_word_list_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wordfreq", None)
    words._load_ranks.cache_clear()
    with pytest.raises(AbstainError, match=r"wordfreq, which is not installed: pip install 'abstain\[familiarity\]'"):
        is_common("year")
