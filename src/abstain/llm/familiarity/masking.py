"""Masking a concept in its own explanation (eq. 3), so that the concept cannot be copied from it."""

from __future__ import annotations

import re

from abstain.llm.familiarity.words import words_of

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
    """`explanation` with every word of `concept`, in any case and inflection, replaced by the mask.

    Function words are not masked, unless the concept has no others. In scripts without spaces the concept is masked
    as a whole.
    """
    if _UNSPACED.search(concept):
        explanation = re.sub(re.escape(concept), MASK, explanation, flags=re.IGNORECASE)
    content = [word for word in words_of(concept) if word.casefold() not in _NOT_MASKED]
    stems = {_stem(word) for word in content or words_of(concept)}
    for word in sorted(set(words_of(explanation)), key=len, reverse=True):
        if _stem(word) in stems:
            explanation = re.sub(rf"(?<![^\W_]){re.escape(word)}(?![^\W_])", MASK, explanation)
    return explanation


def has_content_word(explanation: str) -> bool:
    """Whether a masked explanation has a word left from which the concept could be guessed."""
    return any(word.casefold() not in _NOT_MASKED for word in words_of(explanation))


def _stem(word: str) -> str:
    """`word` without the ending of a plural, a possessive or a verb's form: equal for the forms of one word.

    It need not be a word. Derived words keep theirs: "photosynthetic" is no form of "photosynthesis".
    """
    word = re.sub(r"['’]s?$", "", word.casefold().replace("’", "'"))
    for ending, instead in (("ies", "y"), ("ied", "y"), ("ing", ""), ("ed", ""), ("is", ""), ("s", "")):
        cut = word.removesuffix(ending) + instead
        if word.endswith(ending) and not word.endswith("ss") and len(cut) >= _SHORTEST_STEM:
            word = cut
            break
    word = word.removesuffix("e")
    return word[:-1] if len(word) > _SHORTEST_STEM and word[-1:] == word[-2:-1] else word
