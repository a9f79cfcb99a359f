"""Update the chunks of a document for a new version of it, or for its removal.

Notes:

* An unchanged document is not cut again.
* Chunks are never deleted: a removed chunk becomes a tombstone, which retrieval does not return but old interactions
  still name. If its text comes back, it is the same chunk again, because the id depends on the content.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from abstain.core.contracts import Chunk, Document
from abstain.knowledge.documents.chunks import chunk_document


def update_chunks(
    existing: Iterable[Chunk],
    old: Document | None,
    new: Document | None,
    updated_at: datetime,
) -> tuple[Chunk, ...]:
    """Update the chunks of a document.

    Args:
        existing: Its chunks so far, including tombstones.
        old: The document so far; None if there was none.
        new: The document from now on; None if it is removed. Chunks that stay get its entitlements and dates.
        updated_at: Time of the update.

    Returns:
        All chunks, tombstones last.

    Raises:
        AbstainError: The document cannot be cut into chunks.
    """
    existing_by_id = {chunk.chunk_id: chunk for chunk in existing}
    is_live = any(chunk.removed_at is None for chunk in existing_by_id.values())
    if new is not None and new == old and is_live:
        return tuple(existing_by_id.values())
    current_by_id = {chunk.chunk_id: chunk for chunk in chunk_document(new)} if new is not None else {}
    tombstones = [
        chunk if chunk.removed_at is not None else chunk.model_copy(update={"removed_at": updated_at})
        for chunk_id, chunk in existing_by_id.items()
        if chunk_id not in current_by_id
    ]
    return (*current_by_id.values(), *tombstones)
