from datetime import UTC, datetime, timedelta
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.core.contracts import Chunk, Document
from abstain.knowledge.documents.chunks import chunk_document
from abstain.knowledge.documents.versioning import ChunkUpdate, update_chunks
from tests.knowledge.builders import document

AT = datetime(2026, 9, 1, tzinfo=UTC)
LATER = AT + timedelta(days=1)


def make_chunker() -> Mock:
    return Mock(side_effect=chunk_document)


def texts(revision: ChunkUpdate) -> list[tuple[str, bool]]:
    """What each chunk says, and whether it is still there."""
    return [(chunk.text.partition("\n")[2], chunk.removed_at is None) for chunk in revision.chunks]


FIRST = document("# A\n\none\n\n# B\n\ntwo")
SECOND = document("# A\n\none\n\n# B\n\nTWO", updated_at="2026-09-01T00:00:00Z", entitlements=("staff",))


def test_update_chunks_new_document_is_added() -> None:
    chunks = tuple(chunk_document(FIRST))
    assert update_chunks([], None, FIRST, AT) == ChunkUpdate(chunks, True, tuple(c.chunk_id for c in chunks), ())


def test_update_chunks_unchanged_document_is_not_cut_again() -> None:
    first = update_chunks([], None, FIRST, AT)
    chunker = make_chunker()
    again = update_chunks(first.chunks, FIRST, FIRST.model_copy(), LATER, chunker)
    assert again == ChunkUpdate(first.chunks, rechunked=False)
    assert chunker.call_count == 0
    # Its chunks got lost: then it is.
    assert update_chunks([], FIRST, FIRST, LATER, chunker).chunks == first.chunks
    assert chunker.call_count == 1


def test_update_chunks_vanished_text_becomes_a_tombstone() -> None:
    first = update_chunks([], None, FIRST, AT)
    second = update_chunks(first.chunks, FIRST, SECOND, LATER)
    assert texts(second) == [("one", True), ("TWO", True), ("two", False)]
    assert second.chunks[2] == first.chunks[1].model_copy(update={"removed_at": LATER})
    assert second.added == (second.chunks[1].chunk_id,)
    assert second.removed == (first.chunks[1].chunk_id,)
    assert [chunk.entitlements for chunk in second.chunks] == [("staff",), ("staff",), ()]
    assert second.chunks[0].chunk_id == first.chunks[0].chunk_id
    assert second.chunks[0].updated_at == SECOND.updated_at


def test_update_chunks_returning_text_is_the_same_chunk() -> None:
    first = update_chunks([], None, FIRST, AT)
    second = update_chunks(first.chunks, FIRST, SECOND, LATER)
    third = update_chunks(second.chunks, SECOND, FIRST, LATER)
    assert texts(third) == [("one", True), ("two", True), ("TWO", False)]
    assert third.chunks[:2] == first.chunks
    assert third.added == (first.chunks[1].chunk_id,)


def test_update_chunks_removed_document_is_all_tombstones() -> None:
    first = update_chunks([], None, FIRST, AT)
    second = update_chunks(first.chunks, FIRST, SECOND, AT)
    chunker = make_chunker()
    gone = update_chunks(second.chunks, SECOND, None, LATER, chunker)
    assert chunker.call_count == 0 and not gone.rechunked
    assert [chunk.removed_at for chunk in gone.chunks] == [LATER, LATER, AT]
    assert (gone.added, len(gone.removed)) == ((), 2)
    assert update_chunks(gone.chunks, None, None, LATER + timedelta(days=1)).chunks == gone.chunks
    back = update_chunks(gone.chunks, None, SECOND, LATER)
    assert back.rechunked and texts(back) == texts(second)


sources = st.lists(st.sampled_from("abcde"), min_size=1, max_size=4).map(
    lambda parts: document("\n\n".join(f"# {part}\n\n{part}" for part in parts))
)


@pytest.mark.heavy
@given(st.lists(st.one_of(st.none(), sources), max_size=8))
def test_update_chunks_an_id_always_means_its_text(versions: list[Document | None]) -> None:
    known: tuple[Chunk, ...] = ()
    ever: dict[str, str] = {}
    old = None
    for day, new in enumerate(versions):
        revision = update_chunks(known, old, new, AT + timedelta(days=day))
        alive = {chunk.chunk_id for chunk in known if chunk.removed_at is None}
        known, old = revision.chunks, new
        ever |= {chunk.chunk_id: chunk.text for chunk in known}
        assert {chunk.chunk_id: chunk.text for chunk in known} == ever
        now = {chunk.chunk_id for chunk in known if chunk.removed_at is None}
        assert now == {chunk.chunk_id for chunk in (chunk_document(new) if new else [])}
        assert (set(revision.added), set(revision.removed)) == (now - alive, alive - now)
