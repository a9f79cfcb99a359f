"""Update the chunks of a document for a new version of it, or for its removal.

Notes:

* An unchanged document is not cut again.
* Chunks are never deleted: a removed chunk becomes a tombstone, which retrieval does not find but old interactions
  still name; if its text comes back, it is the same chunk again, because the id depends on the content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from abstain.core.contracts import Chunk, Document
from abstain.knowledge.documents.chunks import chunk_document


@dataclass(frozen=True)
class ChunkUpdate:
    """All chunks of one document, tombstones last; `added`, `removed`: ids that can be found now, or no longer.

    `rechunked` is false where nothing was cut.
    """

    chunks: tuple[Chunk, ...]
    rechunked: bool
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def update_chunks(
    existing: Iterable[Chunk],
    old: Document | None,
    new: Document | None,
    at: datetime,
    chunk: Callable[[Document], list[Chunk]] = chunk_document,
) -> ChunkUpdate:
    """The chunks of a document that was `old` and is `new` from `at` on; None: there was, or is, no such document.

    `existing`: its chunks so far, tombstones included. Entitlements and dates of chunks that stay are the new
    document's. Raises `AbstainError` as `chunk` does.
    """
    before = {one.chunk_id: one for one in existing}
    alive = [key for key, one in before.items() if one.removed_at is None]
    if new is not None and new == old and alive:
        return ChunkUpdate(tuple(before.values()), rechunked=False)
    now = {one.chunk_id: one for one in chunk(new)} if new is not None else {}
    gone = [
        one if one.removed_at is not None else one.model_copy(update={"removed_at": at})
        for key, one in before.items()
        if key not in now
    ]
    return ChunkUpdate(
        (*now.values(), *gone),
        rechunked=new is not None,
        added=tuple(key for key in now if key not in alive),
        removed=tuple(key for key in alive if key not in now),
    )
