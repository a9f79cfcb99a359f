"""Near-duplicates (twins): questions, and long answers, that are equal but for names and numbers. Pure.

Notes:

* Texts are masked first: lower-case words without punctuation, in which a run of names and numbers is one `MASK`. A
  name is a capitalised word not at a sentence's start, or the product's name. In a language that capitalises all nouns
  (German) these are masked, too, so that more questions are alike.
* Texts of at least `LONG` words are twins from a Jaccard similarity of `SIMILARITY` of their word pairs on: about one
  replaced word in twenty. In a shorter text one word changes the meaning, so their masked forms have to be equal.
* Short generic texts have no twins: questions of fewer than `MIN_QUESTION_WORDS` words besides the masks ("And how
  much?"), answers of fewer than `LONG` ("It is 5 EUR."), which many different questions share.
* A text that is like an earlier one gets its number, and keeps it whatever comes later, so that twins found in the
  first batches stay the same as data grows.
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

TWINS = ("question_twin", "answer_twin")
MASK = "_"
MIN_QUESTION_WORDS = 4
LONG = 20
SIMILARITY = 0.8

_PERMUTATIONS, _BANDS = 128, (21, 6)
"""Of 21 bands of 6 hash values, one is equal in 99.8 % of the pairs of similarity 0.8."""
_TOKEN = re.compile(r"[^\W_]+(?:['’.,:/-]+[^\W_]+)*|[.!?:\n]")
_ENDS = frozenset(".!?:\n")
_DIGIT = re.compile(r"\d")
_I = re.compile(r"I(?:['’]\w+)?")


def mask_names_and_numbers(text: str, product: str | None = None) -> str:
    """`text` as lower-case words, each run of names and numbers replaced by one `MASK`.

    Args:
        text: a question or an answer.
        product: the product's name, which is masked however it is written.
    """
    text = unicodedata.normalize("NFKC", text)
    if product and (pattern := _product(product)):
        text = pattern.sub(" 0 ", text)
    words: list[str] = []
    starts = True
    for token in _TOKEN.findall(text):
        if token in _ENDS:
            starts = True
            continue
        is_name = token[0].isupper() and not starts and not _I.fullmatch(token)
        word = MASK if is_name or _DIGIT.search(token) else token.casefold()
        if word != MASK or words[-1:] != [MASK]:
            words.append(word)
        starts = False
    return " ".join(words)


def find_near_duplicates(batches: Iterable[Iterable[Interaction]]) -> pd.DataFrame:
    """The twins of each interaction.

    Args:
        batches: the interactions by batch, in the order of arrival; the order within a batch makes no difference.

    Returns `question_twin` and `answer_twin` (Int64) by interaction_id: twins have equal numbers, a text that can have
    no twin has none.
    """
    questions, answers = _DuplicateIndex(MIN_QUESTION_WORDS), _DuplicateIndex(LONG)
    found: dict[str, tuple[int | None, int | None]] = {}
    for batch in batches:
        masked = sorted(
            (
                row.asked_at,
                row.interaction_id,
                mask_names_and_numbers(row.question, row.product),
                mask_names_and_numbers(row.answer, row.product),
            )
            for row in batch
        )
        for _, key, question, answer in masked:
            found[key] = questions.number(question), answers.number(answer)
    columns = {name: pd.array([pair[at] for pair in found.values()], "Int64") for at, name in enumerate(TWINS)}
    return pd.DataFrame(columns, pd.Index(found.keys(), dtype="str", name="interaction_id"))


class _DuplicateIndex:
    """Numbers masked texts: a text gets the number of the earlier one that is most like it, or a new one."""

    def __init__(self, min_words: int) -> None:
        self._min_words = min_words
        self._numbers: dict[bytes, int] = {}
        self._sketches: dict[int, Any] = {}
        self._index: Any = None

    def number(self, masked: str) -> int | None:
        """The number of `masked`; None if it has fewer than the minimum of words."""
        words = masked.split()
        known = len(words) - words.count(MASK)
        if known < self._min_words:
            return None
        key = hashlib.blake2b(masked.encode(), digest_size=16).digest()
        if key not in self._numbers:
            new = len(self._numbers)
            self._numbers[key] = self._similar(words, new) if known >= LONG else new
        return self._numbers[key]

    def _similar(self, words: list[str], new: int) -> int:
        """The number of the indexed text that is most like these words, or `new`, under which they are indexed."""
        import datasketch  # imports scipy.integrate, which takes longer than most projects' texts

        if self._index is None:
            self._index = datasketch.MinHashLSH(num_perm=_PERMUTATIONS, params=_BANDS)
        sketch = _empty_sketch().copy()
        sketch.update_batch([" ".join(pair).encode() for pair in pairwise(words)])
        by_similarity = {number: self._sketches[number].jaccard(sketch) for number in self._index.query(sketch)}
        best = min(by_similarity, key=lambda number: (-by_similarity[number], number), default=new)
        if by_similarity.get(best, 0.0) >= SIMILARITY:
            return best
        self._index.insert(new, sketch)
        self._sketches[new] = sketch
        return new


@lru_cache(maxsize=1)
def _empty_sketch() -> Any:
    import datasketch

    return datasketch.MinHash(num_perm=_PERMUTATIONS, seed=1)


@lru_cache(maxsize=4096)
def _product(name: str) -> re.Pattern[str] | None:
    """Finds the words of a product's name, whatever stands between them."""
    words = re.findall(r"[^\W_]+", unicodedata.normalize("NFKC", name))
    return re.compile(r"\b" + r"[\W_]+".join(map(re.escape, words)) + r"\b", re.IGNORECASE) if words else None
