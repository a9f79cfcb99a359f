"""Retrieve the chunks for a question that its user may read, with encoder, cached embeddings and index.

`sync` updates an index by difference: only new or changed chunks are sent to it, and only texts without cached
embedding are encoded. An index in this process is filled anew from cached embeddings, one on a server persists. Chunks
that were removed, or that have more entitlements now, are removed first, before anything new is encoded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.contracts import NOBODY, Chunk
from abstain.core.errors import AbstainError
from abstain.knowledge.retrieval.embeddings import Embeddings
from abstain.knowledge.retrieval.encoder import Encoder, SentenceEncoder
from abstain.knowledge.retrieval.index import EntryRejected, IndexEntry, SearchHit, VectorIndex, filter_near_best

BATCH_CHUNKS = 4096
"""The number of chunks that are sent to an index together."""


@dataclass(frozen=True)
class SyncResult:
    """The numbers of chunks after a synchronization.

    Attributes:
        written: Chunks written to the index.
        removed: Chunks removed from it.
        n_entries: Chunks in it.
    """

    written: int
    removed: int
    n_entries: int


class Retriever:
    """Retrieves chunks by embedding similarity.

    Args:
        index: The vector index.
        embeddings: The embeddings of texts.
    """

    def __init__(self, index: VectorIndex, embeddings: Embeddings) -> None:
        self.index = index
        self.embeddings = embeddings

    def sync(
        self,
        chunks: Iterable[Chunk],
        products: Mapping[str, str | None] | None = None,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> SyncResult:
        """Make the index hold exactly these chunks, without tombstones.

        Args:
            chunks: All chunks.
            products: Document id -> product of the document, for the filter.
            on_progress: Called with the number of chunks sent so far and their total.

        Returns:
            The numbers of written, removed and indexed chunks.

        Raises:
            AbstainError: The index rejected entries, the first of which is named. They are not in the index, not even
                with their former entitlements; all others are as they should be.
        """
        products = products or {}
        entries = {
            chunk.chunk_id: IndexEntry(chunk, products.get(chunk.doc_id))
            for chunk in chunks
            if chunk.removed_at is None
        }
        digests = self.index.digests()
        removed_ids = [chunk_id for chunk_id in digests if chunk_id not in entries]
        if removed_ids:
            self.index.remove(removed_ids)
        changed = [
            entry for chunk_id, entry in entries.items() if chunk_id in digests and digests[chunk_id] != entry.digest
        ]
        new = [entry for chunk_id, entry in entries.items() if chunk_id not in digests]
        done, total = 0, len(changed) + len(new)
        rejected_ids: list[str] = []
        for group in (changed, new):  # separate: revoked entitlements take effect before new texts are encoded
            for batch in (group[start : start + BATCH_CHUNKS] for start in range(0, len(group), BATCH_CHUNKS)):
                rejected_ids += self._upsert(batch)
                done += len(batch)
                on_progress(done, total)
        if rejected_ids:
            self.index.remove(chunk_id for chunk_id in rejected_ids if chunk_id in digests)
            suffix = f" and {len(rejected_ids) - 1:,} more" if len(rejected_ids) > 1 else ""
            raise AbstainError(
                Code.INVALID_ROW,
                f"{rejected_ids[0]}{suffix}: the vector index refuses this chunk, "
                "so nobody finds it: correct its document",
            )
        return SyncResult(total, len(removed_ids), len(entries))

    def _upsert(self, entries: Sequence[IndexEntry]) -> list[str]:
        """Send `entries`, and return the ids of those that the index rejects; these do not prevent the others."""
        try:
            self.index.upsert(entries, self.embeddings.embed([entry.chunk.text for entry in entries]))
        except EntryRejected:
            if len(entries) == 1:
                return [entries[0].chunk.chunk_id]
            half = len(entries) // 2
            return [*self._upsert(entries[:half]), *self._upsert(entries[half:])]
        return []

    def search(
        self,
        question: str,
        k: int,
        entitlements: Collection[str] = (),
        max_gap: float = math.inf,
        where: Mapping[str, str] | None = None,
    ) -> list[SearchHit]:
        """Find the chunks nearest to a question that a user may read.

        Args:
            question: The question.
            k: The maximum number of hits.
            entitlements: The user's entitlements; `NOBODY`, which no user can hold, is dropped.
            max_gap: Drop hits whose score is more than this below the best one: they cost tokens, and easily mislead a
                small base model.
            where: Filter (see `index.FILTERS`) -> the value that a chunk must have.

        Returns:
            The hits, best first.

        Raises:
            ValueError: `k` is below 1, or a filter is unknown.
        """
        held = [entitlement for entitlement in entitlements if entitlement != NOBODY]
        hits = self.index.search(self.embeddings.embed_question(question), k, held, where)
        return filter_near_best(hits, max_gap)


@contextmanager
def open_retriever(settings: Settings) -> Iterator[Retriever]:
    """Open a retriever over the index of `settings`, with the embedded encoder; `sync` fills it.

    Args:
        settings: Settings that name the index, the device and the cache folder.

    Yields:
        The retriever; its index is closed afterwards.
    """
    encoder = SentenceEncoder(device=settings.device)
    url = settings.index.get_secret_value() if settings.index else None
    with closing(open_index(url, encoder)) as index:
        yield Retriever(index, Embeddings(encoder, settings.embeddings))


def sync_index(chunks: Iterable[Chunk], products: Mapping[str, str | None], settings: Settings) -> SyncResult | None:
    """Make the shared index hold exactly these chunks; see `Retriever.sync`.

    Args:
        chunks: All chunks.
        products: Document id -> product of the document.
        settings: Settings that name the index (`ABSTAIN_INDEX`).

    Returns:
        The numbers of chunks; None if there is no shared index.

    Raises:
        AbstainError: The server fails, or the index rejected entries.
    """
    if settings.index is None:
        return None
    with open_retriever(settings) as retriever:
        return retriever.sync(chunks, products)


def open_index(url: str | None, encoder: Encoder) -> VectorIndex:
    """Open a vector index.

    Args:
        url: URL of a PostgreSQL database; None for faiss in this process.
        encoder: The encoder of the embeddings.

    Returns:
        The index.

    Raises:
        AbstainError: `url` is not the URL of a PostgreSQL database, or the server fails.
    """
    if url is None:
        from abstain.knowledge.retrieval.faiss_index import FaissIndex

        return FaissIndex()
    if url.partition("://")[0] not in ("postgresql", "postgres"):
        raise AbstainError(
            Code.BAD_SETTING, "ABSTAIN_INDEX is no URL of a PostgreSQL database: write postgresql://USER@HOST/DATABASE"
        )
    from abstain.knowledge.retrieval.pgvector_index import PgVectorIndex

    return PgVectorIndex(url, encoder)
