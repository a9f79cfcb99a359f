"""How alike several texts are: by their sentence embeddings, or by BERTScore (Zhang et al. 2019).

Both read the embedded sentence encoder. BERTScore's F1 is of its token embeddings, without weights by frequency.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Literal

import numpy as np

from abstain.knowledge.retrieval.encoder import SentenceEncoder


def mean_similarity(texts: Sequence[str], by: Literal["tokens", "sentence"]) -> float:
    """Return the mean similarity of the text that is most like all of `texts` (Luo et al., eqs. 21 to 23).

    The text itself is included, as in eq. 22. nan if fewer than two texts are not blank.
    """
    texts = [text for text in texts if text.strip()]
    if len(texts) < 2:
        return float("nan")
    if by == "sentence":
        vectors = _unit(_encoder().encode(texts))
        similar = vectors @ vectors.T
    else:
        tokens = [_unit(text_tokens) for text_tokens in _encoder().encode_tokens(texts)]
        similar = np.array([[bert_score(candidate, reference) for reference in tokens] for candidate in tokens])
    return float(similar.mean(1).max())


def bert_score(candidate: np.ndarray, reference: np.ndarray) -> float:
    """Return the F1 of cosine similarities of two texts' token embeddings, (tokens, d), each of unit length."""
    similarity = candidate @ reference.T
    precision, recall = float(similarity.max(1).mean()), float(similarity.max(0).mean())
    return 2 * precision * recall / (precision + recall)


def _unit(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))


@cache
def _encoder() -> SentenceEncoder:
    return SentenceEncoder()
