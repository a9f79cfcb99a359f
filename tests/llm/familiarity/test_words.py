import math
import sys

import pytest

from abstain.core.errors import AbstainError
from abstain.llm.familiarity import words
from abstain.llm.familiarity.words import DICTIONARY_WORDS, H, compute_log_frequency, get_rank, is_common, split_words

pytest.importorskip("wordfreq", reason="the extra `familiarity` is not installed")


def test_get_rank_of_frequent_and_unknown_words() -> None:
    assert get_rank("the") == 1
    assert 1 < get_rank("year") < get_rank("photosynthesis") < DICTIONARY_WORDS
    assert {get_rank(word) for word in ("Year", "THE", "beyfortus", "免费")} == {DICTIONARY_WORDS}


def test_is_common_if_all_words_are() -> None:
    assert is_common("next year") and is_common("don’t")
    assert not is_common("the Big Mac") and not is_common("glissando of the year")


def test_split_words_at_hyphens_not_apostrophes() -> None:
    words = ["the", "debt", "ceiling", "crisis", "Alzheimer's", "disease", "2023"]
    assert split_words("the debt-ceiling crisis, Alzheimer's_disease 2023") == words


def test_log_frequency_is_a_sum_over_words() -> None:
    """Eq. 6, where it is not yet 0."""
    f = math.exp(-get_rank("water") / H) * math.exp(-get_rank("cycle") / H)
    assert math.exp(compute_log_frequency("water cycle")) == pytest.approx(f)
    assert compute_log_frequency("Water Cycle") == pytest.approx(-2 * DICTIONARY_WORDS / H)


def test_is_common_missing_word_list_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wordfreq", None)
    words._load_ranks.cache_clear()
    with pytest.raises(AbstainError, match=r"wordfreq, which is not installed: pip install 'abstain\[familiarity\]'"):
        is_common("year")
