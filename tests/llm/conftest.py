"""The embedded base model, loaded once for the slow tests."""

import os
from pathlib import Path

import pytest
import torch

from abstain.config.settings import Settings
from abstain.llm.engine.loading import LoadedModel, load, resolve

torch.set_num_threads(1)  # tiny models: more threads only wait for each other

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def real_settings() -> Settings:
    """The caches of this machine, wherever the tests run."""
    return Settings(home=Path(os.environ.get("ABSTAIN_HOME") or REPOSITORY / ".abstain"))


@pytest.fixture(scope="session")
def embedded(real_settings: Settings) -> LoadedModel:
    """SmolLM2-135M-Instruct in float32 on the CPU."""
    return load(resolve("smollm2-135m-instruct", real_settings), torch.device("cpu"), torch.float32)
