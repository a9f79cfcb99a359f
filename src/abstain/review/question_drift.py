"""Drift of single questions: their distance from the probe's training questions, from sentence embeddings.

The mean cosine distance to the k nearest training questions (as in out-of-distribution detection by deep nearest
neighbours, Sun et al. 2022). Nearest, and not the mean of all: a question of a rare but trained topic is not new.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from heapq import nsmallest
from typing import Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abstain.data.store.dataset import DataStore
from abstain.data.store.splits import hash_to_unit_interval
from abstain.review.candidates import stream_interactions

NEIGHBOURS = 5
COMPARED = 2000
"""The most questions on either side: an embedding takes milliseconds, and a sample of them is enough."""
AT_ONCE = 1024


class QuestionEncoder(Protocol):
    """Turns n texts into an (n, d) matrix."""

    def encode(self, texts: Sequence[str], /) -> NDArray[np.float32]: ...


def measure_question_drift(
    store: DataStore, asked: Collection[str], trained_on: Collection[str], encoder: QuestionEncoder, seed: int
) -> pd.Series:
    """`compute_nearest_distances` of the questions of `asked` from those of `trained_on`, both ids, by interaction; at most `COMPARED`.

    If there are more, those compared are sampled by separate random numbers (docs/decisions/052).
    """
    drawn = [
        nsmallest(COMPARED, ids, key=lambda key: hash_to_unit_interval(seed, f"review drift/{key}"))
        for ids in (asked, trained_on)
    ]
    questions = {row.interaction_id: row.question for row in stream_interactions(store, set().union(*drawn))}
    compared, known = ([key for key in ids if key in questions] for ids in drawn)
    values = compute_nearest_distances([questions[key] for key in compared], [questions[key] for key in known], encoder)
    return pd.Series(values, index=compared, dtype=float)


def compute_nearest_distances(
    questions: Sequence[str], trained_on: Sequence[str], encoder: QuestionEncoder
) -> np.ndarray:
    """Mean cosine distance of each question to its nearest `NEIGHBOURS` of `trained_on`, in [0, 2]; (questions,).

    A question that repeats an earlier one in the same words is nan: reviewing one of them is enough. All are nan where
    nothing was trained on. Memory: `AT_ONCE` x trained_on similarities.
    """
    found = np.full(len(questions), np.nan)
    first = {text: at for at, text in reversed(list(enumerate(questions)))}
    if not first or not trained_on:
        return found
    known = _unit(encoder.encode(list(trained_on)))
    asked = _unit(encoder.encode(list(first)))
    count = min(NEIGHBOURS, len(known))
    for start in range(0, len(asked), AT_ONCE):
        similarity = asked[start : start + AT_ONCE] @ known.T
        nearest = np.partition(similarity, len(known) - count, axis=1)[:, len(known) - count :]
        found[list(first.values())[start : start + AT_ONCE]] = 1 - nearest.mean(axis=1)
    return found


def _unit(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))
