import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from abstain.core.errors import AbstainError
from abstain.knowledge.retrieval.embeddings import Embeddings
from abstain.knowledge.retrieval.encoder import SentenceEncoder, find_encoder_folder
from abstain.knowledge.retrieval.faiss_index import FaissIndex
from abstain.knowledge.retrieval.retriever import Retriever
from tests.knowledge.builders import chunk


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


@pytest.mark.slow
def test_encoder_finds_the_chunk_of_a_paraphrase() -> None:
    paraphrases = {
        "What do I pay every year for having the card?": "Gold Card > Fees\nThe annual fee is 95 euros.",
        "How much money can I take out of a machine each day?": "Gold Card > Limits\nCash withdrawals: 500 euros a day.",
        "My plastic was stolen, whom do I ring?": "Gold Card > Loss\nReport a lost or stolen card to the hotline.",
        "Am I old enough to get one?": "Gold Card > Who can apply\nApplicants must be at least 18.",
    }
    encoder = SentenceEncoder()
    retriever = Retriever(FaissIndex(), Embeddings(encoder))
    retriever.sync(chunk(f"c#{n}", text) for n, text in enumerate(paraphrases.values()))
    assert [retriever.search(query, 1)[0].chunk.text for query in paraphrases] == list(paraphrases.values())
    vectors = encoder.encode(["one", "two"])
    assert vectors.shape == (2, encoder.dimension) == (2, 384)
    assert vectors.dtype == np.float32
