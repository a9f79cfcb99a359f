"""Near-duplicates: questions, and long answers, that are equal except for names and numbers. Pure.

Notes:

* Texts are masked first: lower-case words without punctuation, in which a run of names and numbers is one `MASK`. A
  name is a capitalised word that does not begin a sentence, or the product's name. In a language that capitalises all
  nouns (German) these are also masked, so more questions are similar.
* Texts of at least `MIN_LONG_TEXT_WORDS` words are near-duplicates from a Jaccard similarity of `MIN_SIMILARITY` of
  their word pairs on: about one replaced word in twenty. In a shorter text one word changes the meaning, so the masked
  forms must be equal.
* Short generic texts have no near-duplicates: questions of fewer than `MIN_QUESTION_WORDS` words besides the masks
  ("And how much?"), and answers of fewer than `MIN_LONG_TEXT_WORDS` ("It is 5 EUR."), which many different questions
  share.
* A text that is similar to an earlier one gets its number and keeps it whatever comes later, so near-duplicates found
  in the first batches stay the same as data grows.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from typing import Any

import pandas as pd

from abstain.core.contracts import Interaction

DUPLICATE_COLUMNS = ("question_duplicate", "answer_duplicate")
MASK = "_"
MIN_QUESTION_WORDS = 4
MIN_LONG_TEXT_WORDS = 20
MIN_SIMILARITY = 0.8

_PERMUTATIONS, _BANDS = 128, (21, 6)
"""Of 21 bands of 6 hash values, one is equal in 99.8 % of the pairs of similarity 0.8."""
_TOKEN = re.compile(r"[^\W_]+(?:['’.,:/-]+[^\W_]+)*|[.!?:\n]")
_SENTENCE_ENDS = frozenset(".!?:\n")
_DIGIT = re.compile(r"\d")
_PRONOUN_I = re.compile(r"I(?:['’]\w+)?")


def mask_names_and_numbers(text: str, product: str | None = None) -> str:
    """Return a text as lower-case words, with each run of names and numbers replaced by one `MASK`.

    The name of the `product` is masked in any spelling.
    """
    text = unicodedata.normalize("NFKC", text)
    if product and (pattern := _compile_product_pattern(product)):
        text = pattern.sub(" 0 ", text)
    words: list[str] = []
    is_sentence_start = True
    for token in _TOKEN.findall(text):
        if token in _SENTENCE_ENDS:
            is_sentence_start = True
            continue
        is_name = token[0].isupper() and not is_sentence_start and not _PRONOUN_I.fullmatch(token)
        word = MASK if is_name or _DIGIT.search(token) else token.casefold()
        if word != MASK or words[-1:] != [MASK]:
            words.append(word)
        is_sentence_start = False
    return " ".join(words)


def find_near_duplicates(batches: Iterable[Iterable[Interaction]]) -> pd.DataFrame:
    """Number the texts of interactions so that near-duplicates have equal numbers.

    Args:
        batches: Interactions by batch, in order of arrival; the order within a batch makes no difference.

    Returns:
        `question_duplicate` and `answer_duplicate` (Int64) by interaction_id; null for a text that is too short.
    """
    questions, answers = _DuplicateIndex(MIN_QUESTION_WORDS), _DuplicateIndex(MIN_LONG_TEXT_WORDS)
    numbers_by_id: dict[str, tuple[int | None, int | None]] = {}
    for batch in batches:
        masked_rows = sorted(
            (
                row.asked_at,
                row.interaction_id,
                mask_names_and_numbers(row.question, row.product),
                mask_names_and_numbers(row.answer, row.product),
            )
            for row in batch
        )
        for _, interaction_id, question, answer in masked_rows:
            numbers_by_id[interaction_id] = questions.assign_number(question), answers.assign_number(answer)
    columns = {
        name: pd.array([pair[index] for pair in numbers_by_id.values()], "Int64")
        for index, name in enumerate(DUPLICATE_COLUMNS)
    }
    return pd.DataFrame(columns, pd.Index(numbers_by_id.keys(), dtype="str", name="interaction_id"))


class _DuplicateIndex:
    """Numbers of masked texts: a text gets the number of the most similar earlier one, or a new number."""

    def __init__(self, min_words: int) -> None:
        self._min_words = min_words
        self._numbers: dict[bytes, int] = {}
        self._sketches: dict[int, Any] = {}
        self._index: Any = None

    def assign_number(self, masked: str) -> int | None:
        """Return the number of `masked`; None if it has fewer than the minimum of words."""
        words = masked.split()
        n_words = len(words) - words.count(MASK)
        if n_words < self._min_words:
            return None
        key = hashlib.blake2b(masked.encode(), digest_size=16).digest()
        if key not in self._numbers:
            new_number = len(self._numbers)
            self._numbers[key] = self._find_similar(words, new_number) if n_words >= MIN_LONG_TEXT_WORDS else new_number
        return self._numbers[key]

    def _find_similar(self, words: list[str], new: int) -> int:
        """Return the number of the indexed text that is most similar to these words.

        If none is similar enough, the words are indexed under `new`, which is returned.
        """
        import datasketch  # imports scipy.integrate, which takes longer than most projects' texts

        if self._index is None:
            self._index = datasketch.MinHashLSH(num_perm=_PERMUTATIONS, params=_BANDS)
        sketch = _empty_sketch().copy()
        sketch.update_batch([" ".join(pair).encode() for pair in pairwise(words)])
        by_similarity = {number: self._sketches[number].jaccard(sketch) for number in self._index.query(sketch)}
        best = min(by_similarity, key=lambda number: (-by_similarity[number], number), default=new)
        if by_similarity.get(best, 0.0) >= MIN_SIMILARITY:
            return best
        self._index.insert(new, sketch)
        self._sketches[new] = sketch
        return new


@lru_cache(maxsize=1)
def _empty_sketch() -> Any:
    import datasketch

    return datasketch.MinHash(num_perm=_PERMUTATIONS, seed=1)


@lru_cache(maxsize=4096)
def _compile_product_pattern(name: str) -> re.Pattern[str] | None:
    """Return a pattern of the words of a product's name, with any separators between them."""
    words = re.findall(r"[^\W_]+", unicodedata.normalize("NFKC", name))
    return re.compile(r"\b" + r"[\W_]+".join(map(re.escape, words)) + r"\b", re.IGNORECASE) if words else None
