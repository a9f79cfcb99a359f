"""Update the chunks of a document for a new version of it, or for its removal.

Notes:

* An unchanged document is not cut again.
* Chunks are never deleted: a removed chunk becomes a tombstone, which retrieval does not return but old interactions
  still name. If its text comes back, it is the same chunk again, because the id depends on the content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from abstain.core.contracts import Chunk, Document
from abstain.knowledge.documents.chunks import chunk_document


@dataclass(frozen=True)
class ChunkUpdate:
    """The chunks of one document after an update.

    Attributes:
        chunks: All chunks, tombstones last.
        rechunked: Whether the document was cut.
        added: Ids of chunks that can be retrieved from now on.
        removed: Ids of chunks that can no longer be retrieved.
    """

    chunks: tuple[Chunk, ...]
    rechunked: bool
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def update_chunks(
    existing: Iterable[Chunk],
    old: Document | None,
    new: Document | None,
    updated_at: datetime,
    make_chunks: Callable[[Document], list[Chunk]] = chunk_document,
) -> ChunkUpdate:
    """Update the chunks of a document.

    Args:
        existing: Its chunks so far, including tombstones.
        old: The document so far; None if there was none.
        new: The document from now on; None if it is removed. Chunks that stay get its entitlements and dates.
        updated_at: Time of the update.
        make_chunks: Cuts a document into chunks.

    Returns:
        All chunks, and the ids of added and removed ones.

    Raises:
        AbstainError: `make_chunks` cannot cut the document.
    """
    existing_by_id = {chunk.chunk_id: chunk for chunk in existing}
    live_ids = [chunk_id for chunk_id, chunk in existing_by_id.items() if chunk.removed_at is None]
    if new is not None and new == old and live_ids:
        return ChunkUpdate(tuple(existing_by_id.values()), rechunked=False)
    current_by_id = {chunk.chunk_id: chunk for chunk in make_chunks(new)} if new is not None else {}
    tombstones = [
        chunk if chunk.removed_at is not None else chunk.model_copy(update={"removed_at": updated_at})
        for chunk_id, chunk in existing_by_id.items()
        if chunk_id not in current_by_id
    ]
    return ChunkUpdate(
        (*current_by_id.values(), *tombstones),
        rechunked=new is not None,
        added=tuple(chunk_id for chunk_id in current_by_id if chunk_id not in live_ids),
        removed=tuple(chunk_id for chunk_id in live_ids if chunk_id not in current_by_id),
    )
