from datetime import UTC, datetime, timedelta
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.core.contracts import Chunk, Document
from abstain.knowledge.documents import versioning
from abstain.knowledge.documents.chunks import chunk_document
from abstain.knowledge.documents.versioning import update_chunks
from tests.knowledge.builders import document

AT = datetime(2026, 9, 1, tzinfo=UTC)
LATER = AT + timedelta(days=1)
FIRST = document("# A\n\none\n\n# B\n\ntwo")
SECOND = document("# A\n\none\n\n# B\n\nTWO", updated_at="2026-09-01T00:00:00Z", entitlements=("staff",))
CHUNKS = update_chunks([], None, FIRST, AT)


def list_texts(chunks: tuple[Chunk, ...]) -> list[tuple[str, bool]]:
    """The text of each chunk, and whether it is still there."""
    return [(chunk.text.partition("\n")[2], chunk.removed_at is None) for chunk in chunks]


def test_update_chunks_new_document_is_added() -> None:
    assert tuple(chunk_document(FIRST)) == CHUNKS


def test_update_chunks_unchanged_document_is_not_cut_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = Mock(side_effect=chunk_document)
    monkeypatch.setattr(versioning, "chunk_document", cut)
    assert update_chunks(CHUNKS, FIRST, FIRST.model_copy(), LATER) == CHUNKS
    cut.assert_not_called()
    assert update_chunks([], FIRST, FIRST, LATER) == CHUNKS, "its chunks were lost"


def test_update_chunks_vanished_text_becomes_a_tombstone() -> None:
    second = update_chunks(CHUNKS, FIRST, SECOND, LATER)
    assert list_texts(second) == [("one", True), ("TWO", True), ("two", False)]
    assert second[2] == CHUNKS[1].model_copy(update={"removed_at": LATER})
    assert [chunk.entitlements for chunk in second] == [("staff",), ("staff",), ()]
    assert (second[0].chunk_id, second[0].updated_at) == (CHUNKS[0].chunk_id, SECOND.updated_at)


def test_update_chunks_returning_text_is_the_same_chunk() -> None:
    third = update_chunks(update_chunks(CHUNKS, FIRST, SECOND, LATER), SECOND, FIRST, LATER)
    assert list_texts(third) == [("one", True), ("two", True), ("TWO", False)]
    assert third[:2] == CHUNKS


def test_update_chunks_removed_document_is_all_tombstones() -> None:
    second = update_chunks(CHUNKS, FIRST, SECOND, AT)
    gone = update_chunks(second, SECOND, None, LATER)
    assert [chunk.removed_at for chunk in gone] == [LATER, LATER, AT]
    assert update_chunks(gone, None, None, LATER + timedelta(days=1)) == gone
    assert list_texts(update_chunks(gone, None, SECOND, LATER)) == list_texts(second)


sources = st.lists(st.sampled_from("abcde"), min_size=1, max_size=4).map(
    lambda parts: document("\n\n".join(f"# {part}\n\n{part}" for part in parts))
)


@pytest.mark.heavy
@given(st.lists(st.none() | sources, max_size=8))
def test_update_chunks_an_id_always_means_its_text(versions: list[Document | None]) -> None:
    chunks: tuple[Chunk, ...] = ()
    text_by_id: dict[str, str] = {}
    old = None
    for day, new in enumerate(versions):
        chunks, old = update_chunks(chunks, old, new, AT + timedelta(days=day)), new
        text_by_id |= {chunk.chunk_id: chunk.text for chunk in chunks}
        assert {chunk.chunk_id: chunk.text for chunk in chunks} == text_by_id
        live_ids = {chunk.chunk_id for chunk in chunks if chunk.removed_at is None}
        assert live_ids == {chunk.chunk_id for chunk in (chunk_document(new) if new else [])}
