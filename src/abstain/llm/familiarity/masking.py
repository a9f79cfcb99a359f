"""Masking a concept in its own explanation (eq. 3), so that the concept cannot be copied from it."""

from __future__ import annotations

import re

from abstain.llm.familiarity.words import split_words

MASK = "..."
_FUNCTION_WORDS = (
    "a an and are as at be been but by de for from had has have he her his in into is it its la le nor not of on or "
    "our she so than that the their them then there these they this those to v van von vs was we were which who will "
    "with you your"
)
_NOT_MASKED = frozenset(_FUNCTION_WORDS.split())
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
"""Scripts that put no space between words: Thai, Lao, Khmer, Japanese and Chinese."""
_SHORTEST_STEM = 3


def mask_concept(explanation: str, concept: str) -> str:
    """Replace every word of a concept in an explanation, in any case and inflection, by the mask.

    Function words are not masked, unless the concept has no others. In scripts without spaces the concept is masked as
    a whole.

    Args:
        explanation: The explanation.
        concept: The concept.

    Returns:
        The masked explanation.
    """
    if _UNSPACED.search(concept):
        explanation = re.sub(re.escape(concept), MASK, explanation, flags=re.IGNORECASE)
    content = [word for word in split_words(concept) if word.casefold() not in _NOT_MASKED]
    stems = {_stem(word) for word in content or split_words(concept)}
    for word in sorted(set(split_words(explanation)), key=len, reverse=True):
        if _stem(word) in stems:
            explanation = re.sub(rf"(?<![^\W_]){re.escape(word)}(?![^\W_])", MASK, explanation)
    return explanation


def has_content_word(explanation: str) -> bool:
    """Return whether a masked explanation has a word left from which the concept could be guessed.

    Args:
        explanation: The masked explanation.

    Returns:
        Whether it has a word that is neither masked nor a function word.
    """
    return any(word.casefold() not in _NOT_MASKED for word in split_words(explanation))


def _stem(word: str) -> str:
    """Return `word` without the ending of a plural, a possessive or a verb's form: equal for the forms of one word.

    The stem need not be a word. Derived words keep their ending: "photosynthetic" is no form of "photosynthesis".
    """
    word = re.sub(r"['’]s?$", "", word.casefold().replace("’", "'"))
    for ending, replacement in (("ies", "y"), ("ied", "y"), ("ing", ""), ("ed", ""), ("is", ""), ("s", "")):
        shortened = word.removesuffix(ending) + replacement
        if word.endswith(ending) and not word.endswith("ss") and len(shortened) >= _SHORTEST_STEM:
            word = shortened
            break
    word = word.removesuffix("e")
    return word[:-1] if len(word) > _SHORTEST_STEM and word[-1:] == word[-2:-1] else word
