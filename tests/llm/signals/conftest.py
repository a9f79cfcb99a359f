from pathlib import Path

import pytest

from abstain.config.params import LLMParams
from abstain.config.settings import Settings
from tests.llm.builders import make_params


@pytest.fixture(scope="session")
def embedded_params() -> LLMParams:
    return make_params("smollm2-135m-instruct", layout="rag-chatml-v1", layer=16)


@pytest.fixture(scope="session")
def float32_settings(real_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """An empty feature cache, and the embedded model in float32."""
    home: Path = tmp_path_factory.mktemp("float32")
    real_settings.models.mkdir(parents=True, exist_ok=True)
    (home / "models").symlink_to(real_settings.models)
    return Settings(home=home, device="cpu", dtype="float32")
