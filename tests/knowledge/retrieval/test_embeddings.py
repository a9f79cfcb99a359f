import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from abstain.core.errors import AbstainError
from abstain.knowledge.retrieval import embeddings as module
from abstain.knowledge.retrieval.embeddings import Embeddings, normalize_rows
from abstain.knowledge.retrieval.encoder import SentenceEncoder, find_encoder_folder
from tests.knowledge.builders import BagOfWords
from tests.llm.perturbation.builders import TEXTS, masked_model
from tests.tolerance import assert_near


def make_cache(folder: Path) -> tuple[Embeddings, BagOfWords]:
    encoder = BagOfWords()
    return Embeddings(encoder, folder), encoder


def test_embed_gives_unit_vectors_in_order_of_texts(tmp_path: Path) -> None:
    texts = ["fee fee", "limit", "fee card", "nothing", "limit"]
    vectors = make_cache(tmp_path / "new" / "folder")[0].embed(texts)
    assert vectors.dtype == np.float32
    assert_near(vectors, normalize_rows(BagOfWords().encode(texts)))
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 1, 0, 1])
    assert_near(Embeddings(BagOfWords()).embed(texts), vectors)


def test_embed_encodes_a_text_once(tmp_path: Path) -> None:
    first, encoder = make_cache(tmp_path)
    first.embed(["fee", "limit", "fee"])
    assert sorted(encoder.encoded) == ["fee", "limit"]
    first.embed(["limit", "fee"])
    assert len(encoder.encoded) == 2
    again, encoder = make_cache(tmp_path)
    assert again.embed(["limit", "card", "fee"]).tolist() == [[0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [1, 0, 0, 0, 0]]
    assert (encoder.encoded, encoder.calls) == (["card"], 1)
    assert again.embed([]).shape == (0, 0)
    assert encoder.calls == 1


def test_embed_of_another_encoder_has_its_own_file(tmp_path: Path) -> None:
    make_cache(tmp_path)[0].embed(["fee"])
    encoder = BagOfWords()
    encoder.identity = "another"
    other = Embeddings(encoder, tmp_path)
    other.embed(["fee"])
    assert encoder.encoded == ["fee"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["another.sqlite", "bagofwords.sqlite"]


def test_embed_question_is_not_stored(tmp_path: Path) -> None:
    cache, encoder = make_cache(tmp_path)
    assert cache.embed_question("fee fee").tolist() == [1, 0, 0, 0, 0]
    cache.embed_question("fee fee")
    assert encoder.calls == 2
    assert list(tmp_path.iterdir()) == []


def test_embed_stopped_run_keeps_finished_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_TEXTS", 2)
    texts = [f"{'fee ' * n}card" for n in range(7)]
    cache, encoder = make_cache(tmp_path)
    told = []

    def stop(done: int, total: int) -> None:
        told.append((done, total))
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.embed(texts, stop)
    assert told == [(2, 7), (4, 7)]
    again, encoder = make_cache(tmp_path)
    again.embed(texts)
    assert sorted(encoder.encoded) == sorted(texts[:3])  # long ones went first


def test_embed_several_writers_and_many_texts_are_stored(tmp_path: Path) -> None:
    texts = [[f"fee {number} {n}" for n in range(325)] for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda part: [make_cache(tmp_path)[0].embed(part[n::8]) for n in range(8)], texts))
    cache, encoder = make_cache(tmp_path)
    assert cache.embed([text for part in texts for text in part]).shape == (1300, 5)
    assert encoder.encoded == []


def test_embed_damaged_file_or_no_folder_raises_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "bagofwords.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(AbstainError, match=r"bagofwords.sqlite: .* delete it, and they will be computed again$"):
        make_cache(tmp_path)[0].embed(["fee"])
    (tmp_path / "file").write_text("")
    with pytest.raises(AbstainError, match=r"file: cannot keep embeddings there: "):
        make_cache(tmp_path / "file")[0].embed(["fee"])


def test_find_encoder_folder_without_the_package_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("abstain.knowledge.retrieval.encoder.EMBEDDED_ENCODER", "no_such_encoder")
    with pytest.raises(AbstainError, match=r"not installed: pip install no-such-encoder$"):
        find_encoder_folder()


def test_encoder_identity_is_of_its_files_not_their_folder(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "1_Pooling").mkdir(parents=True)
        (tmp_path / name / "model.safetensors").write_bytes(b"weights")
        (tmp_path / name / "1_Pooling" / "config.json").write_text("{}")
        (tmp_path / name / "README.md").write_text(name)
    one, other = (SentenceEncoder(tmp_path / name).identity for name in ("a", "b"))
    assert one == other and len(one) == 16
    shutil.move(tmp_path / "b" / "1_Pooling", tmp_path / "b" / "2_Pooling")
    assert SentenceEncoder(tmp_path / "b").identity != one
    (tmp_path / "a" / "model.safetensors").write_bytes(b"others")
    assert SentenceEncoder(tmp_path / "a").identity != one


@pytest.mark.heavy
def test_encoder_pickled_weights_are_not_loaded(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(find_encoder_folder(), tmp_path / "pickled"))
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    assert SentenceEncoder(folder).dimension == 384
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    with pytest.raises(OSError, match=r"no file named model\.safetensors"):
        SentenceEncoder(folder).encode(["What is the fee?"])


@pytest.mark.heavy
def test_encoder_averages_the_states_of_a_plain_bert(tmp_path: Path) -> None:
    loaded = masked_model()
    loaded.model.bert.save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    inputs = loaded.tokenizer(TEXTS[0], return_tensors="pt")
    expected = loaded.model.bert(**inputs).last_hidden_state.mean(dim=1)
    assert_near(SentenceEncoder(tmp_path).encode([TEXTS[0]]), expected.numpy())
