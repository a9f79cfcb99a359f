"""The protocol of all vector indexes.

Notes:

* Filters are part of the search: chunks that the user may not read, or that the filter excludes, are left out before
  the nearest are taken. So they cannot appear for any query and k, and cannot displace readable ones.
* A user must hold every entitlement of a chunk to read it. A chunk without entitlements is for everyone.
* Search is exact, and equal scores are ordered by chunk id: hits do not depend on the order of insertion.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from abstain.core.contracts import Chunk
from abstain.core.errors import AbstainError
from abstain.knowledge.retrieval.encoder import Vectors

FILTERS = ("product", "doc_id", "kind")
"""The filters of a search, besides entitlements."""


@dataclass(frozen=True)
class IndexEntry:
    """A chunk as an index stores it.

    Attributes:
        chunk: The chunk.
        product: The product of its document, if there is one.
    """

    chunk: Chunk
    product: str | None = None

    @cached_property
    def digest(self) -> str:
        """Equal for equal entries, which need not be written to an index again."""
        return hashlib.sha256(f"{self.product or ''}\n{self.chunk.to_json_line()}".encode()).hexdigest()

    @property
    def metadata(self) -> dict[str, str | None]:
        """The entry's value for each of `FILTERS`."""
        return {"product": self.product, "doc_id": self.chunk.doc_id, "kind": self.chunk.kind}


class EntryRejected(AbstainError):
    """An index can never hold a value of one of the entries; none of them was written."""


@dataclass(frozen=True)
class SearchHit:
    """A retrieved chunk.

    Attributes:
        chunk: The chunk.
        score: Cosine similarity to the query.
    """

    chunk: Chunk
    score: float


class VectorIndex(Protocol):
    """Entries with unit-length vectors, by chunk id."""

    def digests(self) -> Mapping[str, str]:
        """Return the `IndexEntry.digest` of every entry, by chunk id."""

    def upsert(self, entries: Sequence[IndexEntry], vectors: Vectors) -> None:
        """Add entries, or replace existing ones; all or none are written.

        Args:
            entries: The entries.
            vectors: Their vectors, (entries, dimension), float32, in the same order.

        Raises:
            EntryRejected: The index cannot hold one of the entries.
            ValueError: An entry is a tombstone, or the vectors are not finite or not of that shape.
        """

    def remove(self, chunk_ids: Iterable[str]) -> None:
        """Remove the entries with these ids; unknown ids are ignored."""

    def search(
        self, vector: Vectors, k: int, entitlements: Collection[str] = (), where: Mapping[str, str] | None = None
    ) -> list[SearchHit]:
        """Find the nearest entries that a user may read.

        Args:
            vector: The query, (dimension,).
            k: The maximum number of hits.
            entitlements: The user's entitlements.
            where: Filter (see `FILTERS`) -> the value that an entry must have.

        Returns:
            The hits, best first, equal scores by chunk id.

        Raises:
            ValueError: `k` is below 1, a filter is unknown, or `vector` is not finite or not of the index's dimension.
        """

    def close(self) -> None:
        """Release the index's resources; data on a server stays."""


def check_search(k: int, where: Mapping[str, str] | None) -> None:
    """Check the arguments of a search.

    Args:
        k: The maximum number of hits.
        where: The filters.

    Raises:
        ValueError: `k` is below 1, or a filter is unknown.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    if unknown := sorted(set(where or ()) - set(FILTERS)):
        raise ValueError(f"there is no filter '{unknown[0]}': use {', '.join(FILTERS)}")


def check_vectors(vectors: Vectors, shape: tuple[int, ...]) -> None:
    """Check vectors: no order of nearest ones is defined for values that are not finite.

    Args:
        vectors: The vectors.
        shape: The required shape.

    Raises:
        ValueError: The vectors have another shape or are not finite.
    """
    if vectors.shape != shape:
        raise ValueError(f"vectors of the shape {vectors.shape} do not fit: the index needs {shape}")
    if not np.isfinite(vectors).all():
        raise ValueError("a vector holds NaN or infinite values: nothing is near to it, check the encoder")


def check_no_tombstones(entries: Iterable[IndexEntry]) -> None:
    """Raise `ValueError` for a tombstone in `entries`, because an indexed one could be retrieved."""
    for entry in entries:
        if entry.chunk.removed_at is not None:
            raise ValueError(f"{entry.chunk.chunk_id} was removed from its document: it cannot be indexed")


def filter_near_best(hits: Sequence[SearchHit], max_gap: float = math.inf) -> list[SearchHit]:
    """Drop hits that score far below the best one.

    Args:
        hits: Hits, best first.
        max_gap: The maximum difference to the best score.

    Returns:
        The remaining hits.
    """
    return [hit for hit in hits if hit.score >= hits[0].score - max_gap]
