import threading
from pathlib import Path

import numpy as np
import pytest

from abstain.core.errors import AbstainError
from abstain.knowledge.retrieval import embeddings as module
from abstain.knowledge.retrieval.embeddings import Embeddings, normalize_rows
from tests.knowledge.builders import BagOfWords
from tests.tolerance import assert_near


def kept(folder: Path) -> tuple[Embeddings, BagOfWords]:
    encoder = BagOfWords()
    return Embeddings(encoder, folder), encoder


def test_vectors_come_in_the_order_of_the_texts_and_of_length_one(tmp_path: Path) -> None:
    texts = ["fee fee", "limit", "fee card", "nothing", "limit"]
    vectors = kept(tmp_path / "new" / "folder")[0].embed(texts)
    assert vectors.dtype == np.float32
    assert_near(vectors, normalize_rows(BagOfWords().encode(texts)))
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 1, 0, 1])
    assert_near(Embeddings(BagOfWords()).embed(texts), vectors)


def test_a_text_is_encoded_once_for_ever(tmp_path: Path) -> None:
    first, encoder = kept(tmp_path)
    first.embed(["fee", "limit", "fee"])
    assert sorted(encoder.encoded) == ["fee", "limit"]
    first.embed(["limit", "fee"])
    assert len(encoder.encoded) == 2
    again, encoder = kept(tmp_path)
    assert again.embed(["limit", "card", "fee"]).tolist() == [[0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [1, 0, 0, 0, 0]]
    assert (encoder.encoded, encoder.calls) == (["card"], 1)
    assert again.embed([]).shape == (0, 0)
    assert encoder.calls == 1


def test_another_encoder_has_its_own(tmp_path: Path) -> None:
    kept(tmp_path)[0].embed(["fee"])
    other, encoder = kept(tmp_path)
    encoder.identity = "another"
    other = Embeddings(encoder, tmp_path)
    other.embed(["fee"])
    assert encoder.encoded == ["fee"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["another.sqlite", "bagofwords.sqlite"]


def test_a_question_that_is_asked_once_is_not_kept(tmp_path: Path) -> None:
    cache, encoder = kept(tmp_path)
    assert cache.embed_question("fee fee").tolist() == [1, 0, 0, 0, 0]
    cache.embed_question("fee fee")
    assert encoder.calls == 2
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_stopped_keeps_the_blocks_that_it_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK_TEXTS", 2)
    texts = [f"{'fee ' * n}card" for n in range(7)]
    cache, encoder = kept(tmp_path)
    told = []

    def stop(done: int, total: int) -> None:
        told.append((done, total))
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.embed(texts, stop)
    assert told == [(2, 7), (4, 7)]
    again, encoder = kept(tmp_path)
    again.embed(texts)
    assert sorted(encoder.encoded) == sorted(texts[:3])  # long ones went first


def test_several_writers_wait_for_each_other(tmp_path: Path) -> None:
    failed: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for n in range(8):
                kept(tmp_path)[0].embed([f"fee {number} {n}", f"card {n}"])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    cache, encoder = kept(tmp_path)
    cache.embed([f"fee {number} {n}" for number in range(4) for n in range(8)])
    assert encoder.encoded == []


def test_more_texts_than_one_statement_takes(tmp_path: Path) -> None:
    texts = [f"fee {n}" for n in range(1300)]
    kept(tmp_path)[0].embed(texts)
    cache, encoder = kept(tmp_path)
    assert cache.embed(texts).shape == (1300, 5)
    assert encoder.encoded == []


def test_a_damaged_file_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "bagofwords.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(AbstainError, match=r"bagofwords.sqlite: .* delete it, and they will be computed again$"):
        kept(tmp_path)[0].embed(["fee"])


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AbstainError, match=r"file: cannot keep embeddings there: "):
        kept(tmp_path / "file")[0].embed(["fee"])
