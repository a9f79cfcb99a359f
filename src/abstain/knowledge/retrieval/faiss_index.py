"""The embedded vector index: faiss in this process, exact, meant for up to some 100,000 chunks.

Notes:

* Before every search the entitlements become a bitmap over the vectors, and faiss scores only the selected ones. Chunks
  share few different entitlements, so the bitmap costs far less than the search.
* Of several equal scores at the edge of the k nearest, faiss returns arbitrary ones; then all of that score are
  fetched, and the first by chunk id are taken.
* faiss returns -1 for no result, which Python would read as the index of the last entry, whose entitlements were not
  checked. So vectors without a nearest one are rejected, and ids below 0 are no hits.
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
    """A `VectorIndex` in memory, for one thread at a time."""

    def __init__(self) -> None:
        self._entries: list[IndexEntry] = []
        self._index: Any = None
        self._build_filters()

    def digests(self) -> Mapping[str, str]:
        """See `VectorIndex.digests`."""
        return {entry.chunk.chunk_id: entry.digest for entry in self._entries}

    def upsert(self, entries: Sequence[IndexEntry], vectors: Vectors) -> None:
        """See `VectorIndex.upsert`."""
        import faiss

        check_no_tombstones(entries)
        if not entries:
            return
        check_vectors(vectors, (len(entries), self._index.d if self._index is not None else vectors.shape[-1]))
        index_by_id = {entry.chunk.chunk_id: index for index, entry in enumerate(entries)}
        self._remove_entries(index_by_id)
        if self._index is None:
            self._index = faiss.IndexFlatIP(vectors.shape[1])
        indices = sorted(index_by_id.values())
        self._index.add(np.ascontiguousarray(vectors[indices]))
        self._entries += [entries[index] for index in indices]
        self._build_filters()

    def remove(self, chunk_ids: Iterable[str]) -> None:
        """See `VectorIndex.remove`."""
        self._remove_entries(set(chunk_ids))
        self._build_filters()

    def search(
        self, vector: Vectors, k: int, entitlements: Collection[str] = (), where: Mapping[str, str] | None = None
    ) -> list[SearchHit]:
        """See `VectorIndex.search`."""
        import faiss

        check_search(k, where)
        check_vectors(vector, (self._index.d if self._index is not None else vector.size,))
        is_readable = self._select_readable(frozenset(entitlements), where or {})
        n_readable = int(is_readable.sum())
        if not n_readable:
            return []
        bits = np.packbits(is_readable, bitorder="little")  # lives as long as the selector that points to it
        parameters = faiss.SearchParameters(sel=faiss.IDSelectorBitmap(bits))
        query = np.ascontiguousarray(vector[None])
        # One more than requested: an equal one that just misses shows that the choice at the edge is arbitrary.
        (scores,), (indices,) = self._index.search(query, min(k + 1, n_readable), params=parameters)
        if k < n_readable and scores[k - 1] == scores[k]:
            below = float(np.nextafter(scores[k], np.float32(-np.inf)))
            _, scores, indices = self._index.range_search(query, below, params=parameters)
        pairs = zip(indices, scores, strict=True)
        hits = [SearchHit(self._entries[index].chunk, float(score)) for index, score in pairs if index >= 0]
        return sorted(hits, key=lambda hit: (-hit.score, hit.chunk.chunk_id))[:k]

    def close(self) -> None:
        """Do nothing: the index holds no resources."""

    def _select_readable(self, entitlements: frozenset[str], where: Mapping[str, str]) -> NDArray[np.bool_]:
        is_readable = self._entitlements.select(entitlements.issuperset)
        for name, required in where.items():
            is_readable &= self._facets[name].select(lambda value, required=required: value == required)  # type: ignore[misc]
        return is_readable

    def _remove_entries(self, chunk_ids: Collection[str]) -> None:
        removed = [index for index, entry in enumerate(self._entries) if entry.chunk.chunk_id in chunk_ids]
        if removed:
            self._index.remove_ids(np.array(removed, dtype=np.int64))  # the rest keep their order
            self._entries = [entry for entry in self._entries if entry.chunk.chunk_id not in chunk_ids]

    def _build_filters(self) -> None:
        self._entitlements = _Facet([frozenset(entry.chunk.entitlements) for entry in self._entries])
        columns = [entry.metadata for entry in self._entries]
        self._facets = {name: _Facet([column[name] for column in columns]) for name in FILTERS}


class _Facet:
    """One property of every entry, encoded by its few distinct values."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = list(dict.fromkeys(values))
        code_by_value = {value: code for code, value in enumerate(self._values)}
        self._codes = np.array([code_by_value[value] for value in values], dtype=np.int32)

    def select(self, predicate: Callable[[Any], bool]) -> NDArray[np.bool_]:
        """Return for every entry, (entries,), whether its value satisfies `predicate`."""
        return np.array([predicate(value) for value in self._values], dtype=bool)[self._codes]
