"""The profile of a batch: additive counts of its interactions' lengths and languages, stored with the batch. Pure.

Notes:

* Lengths are counted in half octaves of characters, languages by ISO 639 code: one kind of table for both.
* Languages are detected (py3langid) in at most `MAX_LANGUAGE_SAMPLES` questions and as many answers of a batch, those
  whose interactions have the smallest digests: a sample independent of the order. Short texts often have no certain
  language (`und`).
* Only counts are kept. They identify no person once the texts are deleted.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from functools import lru_cache
from typing import Any

from pydantic import Field

from abstain.core.contracts import Interaction, Row
from abstain.data.store.record_keys import Record

MAX_LANGUAGE_SAMPLES = 1_000
"""Maximum number of questions, and of answers, of a batch whose language is detected."""

LANGUAGE_SAMPLE_CHARS = 500
"""Characters of a text from which its language is detected."""

MIN_LANGUAGE_PROBABILITY = 0.5
"""Less likely languages are `und`."""

LENGTHS = ("question length", "answer length", "context length")
LANGUAGES = ("question language", "answer language")
MEASURES = (*LENGTHS, *LANGUAGES)


class Profile(Row):
    """Counts of a batch's interactions by measure and class; the class of a length is its lower bound.

    Attributes:
        rows: Number of interactions.
        counts: Measure -> class -> number of interactions.
    """

    rows: int = 0
    counts: dict[str, dict[str, int]] = Field(default_factory=dict)

    def get_counts(self, measure: str) -> dict[str, int]:
        """Return the counts of one measure; empty if it was not taken."""
        return self.counts.get(measure, {})

    def __add__(self, other: Profile) -> Profile:
        added = {
            name: Counter(self.get_counts(name)) + Counter(other.get_counts(name))
            for name in {**self.counts, **other.counts}
        }
        return Profile(rows=self.rows + other.rows, counts={name: dict(counts) for name, counts in added.items()})


class Profiler:
    """Builder of a profile: takes interactions one by one, and keeps counts and a sample of texts."""

    def __init__(self) -> None:
        self._rows = 0
        self._lengths: dict[str, Counter[str]] = {name: Counter() for name in LENGTHS}
        self._sample: list[tuple[int, str, str]] = []

    def add(self, record: Record) -> None:
        """Count an interaction."""
        row = record.row
        assert isinstance(row, Interaction)
        self._rows += 1
        texts = (len(row.question), len(row.answer), sum(len(context.text) for context in row.contexts))
        for name, length in zip(LENGTHS, texts, strict=True):
            self._lengths[name][get_length_bin(length)] += 1
        # A heap of the smallest digests, the largest of them first.
        entry = (
            -int.from_bytes(record.identity, "big"),
            row.question[:LANGUAGE_SAMPLE_CHARS],
            row.answer[:LANGUAGE_SAMPLE_CHARS],
        )
        if len(self._sample) < MAX_LANGUAGE_SAMPLES:
            heapq.heappush(self._sample, entry)
        else:
            heapq.heappushpop(self._sample, entry)

    def build_profile(self) -> Profile:
        """Return the profile of the interactions so far."""
        counts: dict[str, Counter[str]] = dict(self._lengths)
        for name, position in zip(LANGUAGES, (1, 2), strict=True):
            counts[name] = Counter(detect_language(str(entry[position])) for entry in self._sample)
        return Profile(
            rows=self._rows, counts={name: dict(sorted(class_counts.items())) for name, class_counts in counts.items()}
        )


def get_length_bin(length: int) -> str:
    """Return the lower bound of the half octave that contains `length`."""
    return "0" if length < 1 else str(math.ceil(2 ** (math.floor(2 * math.log2(length)) / 2)))


def detect_language(text: str) -> str:
    """Return the ISO 639 code of the likeliest language of `text`; `und` if none is likely."""
    code: str = _load_identifier().classify(text)[0]
    return code


@lru_cache(maxsize=1)
def _load_identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # type: ignore[import-untyped]

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True, min_confidence=MIN_LANGUAGE_PROBABILITY)
