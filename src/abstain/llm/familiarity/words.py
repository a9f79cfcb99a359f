"""How common the words of a concept are in English: ranks of the `wordfreq` list (extra `familiarity`).

Notes:

* Luo et al. take ranks from Wiktionary's list. `wordfreq` has a similar list, from more sources, as a package.
* A word with a capital is in no such list: it is a name, whatever the word means in lower case. So "Second Amendment"
  and "Big Mac" are rare, though everybody uses each of their words.
"""

from __future__ import annotations

import re
from functools import cache

from abstain.core.codes import Code
from abstain.core.errors import AbstainError

DICTIONARY_WORDS = 100_000
"""The rank of a word that is unknown or capitalized, which is the length of the list; the paper's list is as long."""
COMMON_WORDS = 10_000
"""Concepts that consist only of the most frequent words, up to this rank, are not guessed."""
H = 100.0
"""H of eq. 6: the divisor of a rank."""
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")


def split_words(text: str) -> list[str]:
    """Split a text into words; a hyphen separates two words, an apostrophe does not.

    Args:
        text: The text.

    Returns:
        The words, in order.
    """
    return _WORD.findall(text)


def is_common(concept: str) -> bool:
    """Return whether each word of a concept is among the `COMMON_WORDS` most frequent.

    Args:
        concept: The concept.

    Returns:
        Whether all words are common.

    Raises:
        AbstainError: The package `wordfreq` is not installed.
    """
    return all(get_rank(word) <= COMMON_WORDS for word in split_words(concept))


def compute_log_frequency(concept: str) -> float:
    """Compute log f of eq. 6: the sum of -p / H over the words of a concept, at most 0.

    f itself is 0 in floating point from p = 75,000.

    Args:
        concept: The concept.

    Returns:
        The log of its frequency score.

    Raises:
        AbstainError: The package `wordfreq` is not installed.
    """
    return -sum(get_rank(word) for word in split_words(concept)) / H


def get_rank(word: str) -> int:
    """Return the rank p of a word in eq. 6, from 1.

    Args:
        word: The word.

    Returns:
        The rank; `DICTIONARY_WORDS` if the word is not in the list.

    Raises:
        AbstainError: The package `wordfreq` is not installed.
    """
    return _load_ranks().get(word.replace("’", "'"), DICTIONARY_WORDS)


@cache
def _load_ranks() -> dict[str, int]:
    try:
        from wordfreq import top_n_list
    except ModuleNotFoundError:
        raise AbstainError(
            Code.NO_PACKAGE,
            "word frequencies need wordfreq, which is not installed: pip install 'abstain[familiarity]'",
        ) from None
    return {word: rank for rank, word in enumerate(top_n_list("en", DICTIONARY_WORDS), 1)}
