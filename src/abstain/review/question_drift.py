"""Drift of single questions: their distance from the probe's training questions, by sentence embeddings.

The distance is the mean cosine distance to the k nearest training questions (as in out-of-distribution detection by
deep nearest neighbours, Sun et al. 2022). The nearest ones, and not the mean of all: a question of a rare but trained
topic is not new.
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
MAX_COMPARED = 2000
"""Largest number of questions on either side: an embedding takes milliseconds, and a sample of them is enough."""
BATCH_SIZE = 1024


class QuestionEncoder(Protocol):
    """An encoder of n texts into a matrix (n, d)."""

    def encode(self, texts: Sequence[str], /) -> NDArray[np.float32]: ...


def measure_question_drift(
    store: DataStore,
    interaction_ids: Collection[str],
    training_ids: Collection[str],
    encoder: QuestionEncoder,
    seed: int,
) -> pd.Series:
    """Measure the distances of questions from the training questions.

    Both sides are sampled down to `MAX_COMPARED` by separate random numbers (docs/decisions/052).

    Args:
        store: The data store.
        interaction_ids: Interactions to measure.
        training_ids: Interactions of the training split.
        encoder: Sentence encoder.
        seed: Seed of the sampling.

    Returns:
        Distances in [0, 2] by interaction id; nan as in `compute_nearest_distances`.
    """
    samples = [
        nsmallest(MAX_COMPARED, ids, key=lambda key: hash_to_unit_interval(seed, f"review drift/{key}"))
        for ids in (interaction_ids, training_ids)
    ]
    questions = {row.interaction_id: row.question for row in stream_interactions(store, set().union(*samples))}
    compared_ids, reference_ids = ([key for key in ids if key in questions] for ids in samples)
    values = compute_nearest_distances(
        [questions[key] for key in compared_ids], [questions[key] for key in reference_ids], encoder
    )
    return pd.Series(values, index=compared_ids, dtype=float)


def compute_nearest_distances(
    questions: Sequence[str], training_questions: Sequence[str], encoder: QuestionEncoder
) -> np.ndarray:
    """Compute the mean cosine distance of each question to its `NEIGHBOURS` nearest training questions.

    Memory: `BATCH_SIZE` x training questions similarities.

    Args:
        questions: (questions,) texts.
        training_questions: Texts to compare with.
        encoder: Sentence encoder.

    Returns:
        (questions,) in [0, 2]. A question that repeats an earlier one in the same words is nan: to review one of them
        is enough. All are nan without training questions.
    """
    distances = np.full(len(questions), np.nan)
    index_by_text = {text: index for index, text in reversed(list(enumerate(questions)))}
    if not index_by_text or not training_questions:
        return distances
    reference_vectors = _normalize(encoder.encode(list(training_questions)))
    question_vectors = _normalize(encoder.encode(list(index_by_text)))
    n_neighbours = min(NEIGHBOURS, len(reference_vectors))
    for start in range(0, len(question_vectors), BATCH_SIZE):
        similarity = question_vectors[start : start + BATCH_SIZE] @ reference_vectors.T
        nearest = np.partition(similarity, len(reference_vectors) - n_neighbours, axis=1)[
            :, len(reference_vectors) - n_neighbours :
        ]
        distances[list(index_by_text.values())[start : start + BATCH_SIZE]] = 1 - nearest.mean(axis=1)
    return distances


def _normalize(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))
