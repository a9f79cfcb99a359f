from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock, call

import pytest

from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.contracts import Chunk
from abstain.core.errors import AbstainError
from abstain.knowledge.retrieval import retriever as module
from abstain.knowledge.retrieval.embeddings import Embeddings
from abstain.knowledge.retrieval.encoder import Vectors
from abstain.knowledge.retrieval.faiss_index import FaissIndex
from abstain.knowledge.retrieval.index import EntryRejected, IndexEntry
from abstain.knowledge.retrieval.retriever import Retriever, SyncResult, open_index, sync_index
from tests.knowledge.builders import BagOfWords, chunk
from tests.postgres import database

CHUNKS = (chunk("a#1", "fee"), chunk("a#2", "fee card"), chunk("b#1", "loan", "staff"))
DEAD = chunk("a#3", "fee fee", removed_at="2026-09-01T00:00:00Z")


def make_retriever(folder: Path | None = None) -> tuple[Retriever, BagOfWords]:
    encoder = BagOfWords()
    return Retriever(FaissIndex(), Embeddings(encoder, folder)), encoder


def find(retriever: Retriever, question: str, *held: str, **options: object) -> list[str]:
    return [hit.chunk.chunk_id for hit in retriever.search(question, 9, held, **options)]


def test_sync_tombstone_is_never_found() -> None:
    retriever, encoder = make_retriever()
    assert retriever.sync([*CHUNKS, DEAD]) == SyncResult(written=3, removed=0, n_entries=3)
    assert find(retriever, "fee") == ["a#1", "a#2"]
    assert DEAD.text not in encoder.encoded
    killed = CHUNKS[0].model_copy(update={"removed_at": DEAD.removed_at})
    assert retriever.sync([killed, *CHUNKS[1:], DEAD]) == SyncResult(written=0, removed=1, n_entries=2)
    assert find(retriever, "fee") == ["a#2"]
    assert retriever.sync([*CHUNKS, DEAD.model_copy(update={"removed_at": None})]) == SyncResult(2, 0, 4)
    assert find(retriever, "fee") == ["a#1", "a#3", "a#2"]
    assert retriever.sync([]) == SyncResult(0, 4, 0)
    assert find(retriever, "fee") == []


def test_sync_writes_changes_and_encodes_new_texts_only(tmp_path: Path) -> None:
    retriever, encoder = make_retriever(tmp_path)
    retriever.sync(CHUNKS)
    assert (len(encoder.encoded), encoder.calls) == (3, 1)
    assert retriever.sync(CHUNKS) == SyncResult(0, 0, 3)
    assert encoder.calls == 1
    closed = CHUNKS[0].model_copy(update={"entitlements": ("staff",)})
    assert retriever.sync([closed, *CHUNKS[1:], chunk("c#1", "rate")], {"b": "loans"}) == SyncResult(3, 0, 4)
    assert encoder.encoded[3:] == ["rate"]
    assert find(retriever, "fee") == ["a#2", "c#1"]
    assert find(retriever, "fee", "staff", where={"product": "loans"}) == ["b#1"]
    # Another process, the same folder: everything is told to its index, nothing is encoded again.
    again, encoder = make_retriever(tmp_path)
    assert again.sync([closed, *CHUNKS[1:]]) == SyncResult(3, 0, 3)
    assert encoder.calls == 0


def test_sync_sends_chunks_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_CHUNKS", 2)
    retriever, _ = make_retriever()
    told: list[tuple[int, int]] = []
    many: list[Chunk] = [chunk(f"a#{n}", f"fee {n}") for n in range(5)]
    retriever.sync(many, on_progress=lambda done, total: told.append((done, total)))
    assert told == [(2, 5), (4, 5), (5, 5)]
    assert find(retriever, "fee") == [one.chunk_id for one in many]


def test_sync_withdraws_rights_before_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    retriever, encoder = make_retriever()
    retriever.sync(CHUNKS)
    closed = CHUNKS[0].model_copy(update={"entitlements": ("staff",)})

    encode = Mock(side_effect=[encoder.encode([CHUNKS[0].text]), InterruptedError])
    monkeypatch.setattr(encoder, "encode", encode)
    with pytest.raises(InterruptedError):
        retriever.sync([chunk("0#new", "rate"), closed, CHUNKS[1]])
    assert encode.call_args_list == [call([CHUNKS[0].text]), call(["rate"])]
    monkeypatch.undo()
    assert find(retriever, "fee") == ["a#2"]


class Picky(FaissIndex):
    """Refuses every entry whose product has a NUL, with all that come with it, as a database does."""

    def upsert(self, entries: Sequence[IndexEntry], vectors: Vectors) -> None:
        if any("\0" in (entry.product or "") for entry in entries):
            raise EntryRejected(Code.INVALID_ROW, "no NUL")
        super().upsert(entries, vectors)


def test_sync_rejected_entry_holds_up_no_revocation() -> None:
    retriever = Retriever(Picky(), Embeddings(BagOfWords()))
    retriever.sync(CHUNKS)
    closed = [one.model_copy(update={"entitlements": ("staff",)}) for one in CHUNKS[:2]]
    new, bad = chunk("c#1", "fee rate"), chunk("b#1", "loan", "gold")
    for _ in range(2):
        with pytest.raises(AbstainError, match="^b#1: "):
            retriever.sync([*closed, bad, new], {"b": "p\0q"})
        assert find(retriever, "fee") == ["c#1"], "the right to a#1 and a#2 was withdrawn"
        assert find(retriever, "fee", "staff", "gold") == ["a#1", "a#2", "c#1"], "b#1 is found under no right"


def test_sync_index_without_a_shared_index_does_nothing(tmp_path: Path) -> None:
    assert sync_index(CHUNKS, {}, Settings(home=tmp_path, index=None)) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_sync_index_forgets_withdrawn_chunks(postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = BagOfWords()
    monkeypatch.setattr(module, "SentenceEncoder", lambda device: encoder)
    with database(postgres) as url:
        settings = Settings(home=tmp_path, index=url)

        def find_fee() -> list[str]:
            with closing(open_index(url, encoder)) as index:
                return find(Retriever(index, Embeddings(encoder)), "fee")

        assert sync_index(CHUNKS, {"a": "cards"}, settings) == SyncResult(3, 0, 3)
        assert find_fee() == ["a#1", "a#2"]
        closed = CHUNKS[0].model_copy(update={"entitlements": ("staff",)})
        dead = CHUNKS[1].model_copy(update={"removed_at": DEAD.removed_at})
        assert sync_index([closed, dead, CHUNKS[2]], {"a": "cards"}, settings) == SyncResult(1, 1, 2)
        assert find_fee() == []


def test_search_max_gap_ignores_unreadable_hits() -> None:
    retriever, _ = make_retriever()
    retriever.sync(CHUNKS)
    assert find(retriever, "fee", "staff") == ["a#1", "a#2", "b#1"]
    assert find(retriever, "fee", "staff", max_gap=0.5) == ["a#1", "a#2"]
    assert find(retriever, "loan", max_gap=0.5) == ["a#1", "a#2"]  # what may not be read does not raise the bar
