"""Retrieval from a question to the chunks that its user may read: encoder, cached embeddings and index together.

`sync` updates an index by difference: only new or changed chunks are sent to it, and only unknown texts are encoded. An
index in this process is filled anew from cached embeddings, one on a server persists: chunks that were removed or have
more entitlements now are removed first, before anything new is encoded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.contracts import Chunk
from abstain.core.errors import AbstainError
from abstain.knowledge.retrieval.embeddings import Embeddings
from abstain.knowledge.retrieval.encoder import Encoder, SentenceEncoder
from abstain.knowledge.retrieval.index import EntryRejected, IndexEntry, SearchHit, VectorIndex, filter_near_best

AT_ONCE = 4096
"""Chunks that are sent to an index together."""


@dataclass(frozen=True)
class SyncResult:
    """The number of chunks `written` to an index and `removed` from it, and the number that it holds."""

    written: int
    removed: int
    n_entries: int


class Retriever:
    """Finds chunks by embedding similarity in `index`."""

    def __init__(self, index: VectorIndex, embeddings: Embeddings) -> None:
        self.index = index
        self.embeddings = embeddings

    def sync(
        self,
        chunks: Iterable[Chunk],
        products: Mapping[str, str | None] | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> SyncResult:
        """Make the index hold `chunks`, all there are, without the tombstones among them, and nothing else.

        `products`: the product of each document, for the filter. `progress` is called with the number of chunks
        sent and their total. An entry that the index refuses is left out of it, under its former rights, too.

        Raises:
            AbstainError: the index refused entries, the first of which is named; all others are as they should be.
        """
        products = products or {}
        entries = {
            chunk.chunk_id: IndexEntry(chunk, products.get(chunk.doc_id))
            for chunk in chunks
            if chunk.removed_at is None
        }
        known = self.index.digests()
        gone = [key for key in known if key not in entries]
        if gone:
            self.index.remove(gone)
        changed = [entry for key, entry in entries.items() if key in known and known[key] != entry.digest]
        new = [entry for key, entry in entries.items() if key not in known]
        done, total = 0, len(changed) + len(new)
        refused: list[str] = []
        for todo in (changed, new):  # separate: revoked entitlements take effect before new texts are encoded
            for some in (todo[at : at + AT_ONCE] for at in range(0, len(todo), AT_ONCE)):
                refused += self._upsert(some)
                done += len(some)
                progress(done, total)
        if refused:
            self.index.remove(key for key in refused if key in known)
            more = f" and {len(refused) - 1:,} more" if len(refused) > 1 else ""
            raise AbstainError(
                Code.INVALID_ROW,
                f"{refused[0]}{more}: the vector index refuses this chunk, so nobody finds it: correct its document",
            )
        return SyncResult(total, len(gone), len(entries))

    def _upsert(self, entries: Sequence[IndexEntry]) -> list[str]:
        """Send `entries`; return the ids of those that the index refuses. One of them holds up no other."""
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
        """The at most `k` chunks nearest to `question` that a holder of `entitlements` may read and `where` fits.

        Best first. A hit whose score is more than `max_gap` below the best one is dropped: it costs tokens, and a small
        base model is easily misled by it. `where`: see `index.FILTERS`. ValueError where `k` < 1.
        """
        vector = self.embeddings.embed_question(question)
        return filter_near_best(self.index.search(vector, k, entitlements, where), max_gap)


@contextmanager
def open_retriever(settings: Settings) -> Iterator[Retriever]:
    """A retriever over the index that `settings` name, with the embedded encoder; `sync` fills it."""
    encoder = SentenceEncoder(device=settings.device)
    url = settings.index.get_secret_value() if settings.index else None
    with closing(open_index(url, encoder)) as index:
        yield Retriever(index, Embeddings(encoder, settings.embeddings))


def sync_index(chunks: Iterable[Chunk], products: Mapping[str, str | None], settings: Settings) -> SyncResult | None:
    """Make the shared index hold `chunks`, as `Retriever.sync` does; None where there is none (`ABSTAIN_INDEX`).

    Raises `AbstainError` where its server fails.
    """
    if settings.index is None:
        return None
    with open_retriever(settings) as retriever:
        return retriever.sync(chunks, products)


def open_index(url: str | None, encoder: Encoder) -> VectorIndex:
    """The index at `url`, a PostgreSQL database; without one, faiss in this process."""
    if url is None:
        from abstain.knowledge.retrieval.faiss_index import FaissIndex

        return FaissIndex()
    if url.partition("://")[0] not in ("postgresql", "postgres"):
        raise AbstainError(
            Code.BAD_SETTING, "ABSTAIN_INDEX is no URL of a PostgreSQL database: write postgresql://USER@HOST/DATABASE"
        )
    from abstain.knowledge.retrieval.pgvector_index import PgVectorIndex

    return PgVectorIndex(url, encoder)
