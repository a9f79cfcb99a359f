"""The embedded vector index: faiss in this process, exact, meant for up to some 100,000 chunks.

Notes:

* Before every search the entitlements become a bitmap over the vectors, and faiss scores only the selected ones. Chunks
  share few different entitlements, so the bitmap costs far less than the search.
* faiss keeps any of several equal scores at the edge of the k nearest; then all of that score are fetched, and the
  first by chunk id are taken.
* faiss returns -1 for no result, which Python would read as the index of the last entry, whose entitlements were not
  checked. So vectors without a nearest one are refused, and ids below 0 are no hits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abstain.knowledge.retrieval.encoder import Vectors
from abstain.knowledge.retrieval.index import (
    FILTERS,
    IndexEntry,
    SearchHit,
    check_no_tombstones,
    check_search,
    check_vectors,
)


class FaissIndex:
    """A `VectorIndex` in memory. One thread at a time."""

    def __init__(self) -> None:
        self._entries: list[IndexEntry] = []
        self._index: Any = None
        self._tell_apart()

    def digests(self) -> Mapping[str, str]:
        return {entry.chunk.chunk_id: entry.digest for entry in self._entries}

    def upsert(self, entries: Sequence[IndexEntry], vectors: Vectors) -> None:
        import faiss

        check_no_tombstones(entries)
        if not entries:
            return
        check_vectors(vectors, (len(entries), self._index.d if self._index is not None else vectors.shape[-1]))
        last = {entry.chunk.chunk_id: at for at, entry in enumerate(entries)}
        self._drop(last)
        if self._index is None:
            self._index = faiss.IndexFlatIP(vectors.shape[1])
        kept = sorted(last.values())
        self._index.add(np.ascontiguousarray(vectors[kept]))
        self._entries += [entries[at] for at in kept]
        self._tell_apart()

    def remove(self, chunk_ids: Iterable[str]) -> None:
        self._drop(set(chunk_ids))
        self._tell_apart()

    def search(
        self, vector: Vectors, k: int, entitlements: Collection[str] = (), where: Mapping[str, str] | None = None
    ) -> list[SearchHit]:
        import faiss

        check_search(k, where)
        check_vectors(vector, (self._index.d if self._index is not None else vector.size,))
        allowed = self._allowed(frozenset(entitlements), where or {})
        readable = int(allowed.sum())
        if not readable:
            return []
        bits = np.packbits(allowed, bitorder="little")  # lives as long as the selector that points to it
        chosen = faiss.SearchParameters(sel=faiss.IDSelectorBitmap(bits))
        query = np.ascontiguousarray(vector[None])
        # One more than requested: an equal one that just misses shows that the choice at the edge is arbitrary.
        (scores,), (found,) = self._index.search(query, min(k + 1, readable), params=chosen)
        if k < readable and scores[k - 1] == scores[k]:
            below = float(np.nextafter(scores[k], np.float32(-np.inf)))
            _, scores, found = self._index.range_search(query, below, params=chosen)
        pairs = zip(found, scores, strict=True)
        hits = [SearchHit(self._entries[at].chunk, float(score)) for at, score in pairs if at >= 0]
        return sorted(hits, key=lambda hit: (-hit.score, hit.chunk.chunk_id))[:k]

    def close(self) -> None:
        """Nothing was started."""

    def _allowed(self, held: frozenset[str], where: Mapping[str, str]) -> NDArray[np.bool_]:
        allowed = self._rights.select(held.issuperset)
        for name, wanted in where.items():
            allowed &= self._facets[name].select(lambda value, wanted=wanted: value == wanted)  # type: ignore[misc]
        return allowed

    def _drop(self, chunk_ids: Collection[str]) -> None:
        gone = [at for at, entry in enumerate(self._entries) if entry.chunk.chunk_id in chunk_ids]
        if gone:
            self._index.remove_ids(np.array(gone, dtype=np.int64))  # the rest keep their order
            self._entries = [entry for entry in self._entries if entry.chunk.chunk_id not in chunk_ids]

    def _tell_apart(self) -> None:
        self._rights = _Facet([frozenset(entry.chunk.entitlements) for entry in self._entries])
        columns = [entry.metadata for entry in self._entries]
        self._facets = {name: _Facet([column[name] for column in columns]) for name in FILTERS}


class _Facet:
    """One property of every entry, encoded by its few distinct values."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = list(dict.fromkeys(values))
        number = {value: at for at, value in enumerate(self._values)}
        self._codes = np.array([number[value] for value in values], dtype=np.int32)

    def select(self, fits: Callable[[Any], bool]) -> NDArray[np.bool_]:
        """For every entry whether its value `fits`."""
        return np.array([fits(value) for value in self._values], dtype=bool)[self._codes]
