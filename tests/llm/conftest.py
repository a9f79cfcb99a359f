from pathlib import Path

import pytest
import torch

from abstain.config.params import LLMParams
from abstain.config.settings import Settings
from abstain.llm.engine.loading import LoadedModel, find_model, load_model
from tests.conftest import MODELS
from tests.llm.builders import make_params, save_tiny_model

torch.set_num_threads(1)  # tiny models: more threads only wait for each other


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """An empty feature cache."""
    return Settings(home=tmp_path / "home", device="cpu", dtype="float32")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny Llama, which tests must not change."""
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny-bank")


@pytest.fixture
def tiny_params(tiny_folder: Path) -> LLMParams:
    return make_params(tiny_folder)


@pytest.fixture(scope="session")
def real_settings() -> Settings:
    """The caches of this machine, wherever the tests run."""
    return Settings(home=MODELS.parent)


@pytest.fixture(scope="session")
def embedded(real_settings: Settings) -> LoadedModel:
    """SmolLM2-135M-Instruct in float32 on the CPU."""
    return load_model(find_model("smollm2-135m-instruct", real_settings), torch.device("cpu"), torch.float32)
