from pathlib import Path

import pytest
import torch

from studies.self_familiarity import baselines as familiarity_baselines
from tests.llm.builders import save_speaking_model

torch.set_num_threads(1)  # tiny models: more threads only wait for each other


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny Llama, which tests must not change."""
    return save_speaking_model(tmp_path_factory.mktemp("studies") / "tiny", max_position_embeddings=2048)


@pytest.fixture
def short_similarity(monkeypatch: pytest.MonkeyPatch) -> None:
    """The similarity of samples by their number, without an encoder."""
    monkeypatch.setattr(familiarity_baselines, "mean_similarity", lambda texts, by: float(len(set(texts))))
