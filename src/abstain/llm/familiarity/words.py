"""How common the words of a concept are in English: ranks of the `wordfreq` list (extra `familiarity`).

Notes:

* The paper takes ranks from Wiktionary's list. `wordfreq` has the like, from more sources, as a package.
* A word with a capital is in no such list: it is a name, whatever the word means in lower case. So "Second Amendment"
  and "Big Mac" are rare, though everybody uses each of their words.
"""

from __future__ import annotations

import re
from functools import cache

from abstain.core.codes import Code
from abstain.core.errors import AbstainError

DICTIONARY_WORDS = 100_000
"""The rank of a word that is unknown or capitalised; the paper's list has as many."""
COMMON_WORDS = 10_000
"""Concepts made only of so many most frequent words are not guessed."""
H = 100.0
"""The divisor of a rank in eq. 6."""
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")


def words_of(text: str) -> list[str]:
    """The words of `text` in order; a hyphen parts two words, an apostrophe does not."""
    return _WORD.findall(text)


def is_common(concept: str) -> bool:
    """Whether each of its words is among the `COMMON_WORDS` most frequent. Raises `AbstainError` without `wordfreq`."""
    return all(rank(word) <= COMMON_WORDS for word in words_of(concept))


def log_frequency(concept: str) -> float:
    """log f of eq. 6: the sum of -p / H over its words, at most 0. f itself is 0 in floating point from p = 75,000."""
    return -sum(rank(word) for word in words_of(concept)) / H


def rank(word: str) -> int:
    """p of eq. 6, from 1. Raises `AbstainError` without `wordfreq`."""
    return _ranks().get(word.replace("’", "'"), DICTIONARY_WORDS)


@cache
def _ranks() -> dict[str, int]:
    try:
        from wordfreq import top_n_list
    except ModuleNotFoundError:
        raise AbstainError(
            Code.NO_PACKAGE,
            "word frequencies need wordfreq, which is not installed: pip install 'abstain[familiarity]'",
        ) from None
    return {word: at for at, word in enumerate(top_n_list("en", DICTIONARY_WORDS), 1)}
