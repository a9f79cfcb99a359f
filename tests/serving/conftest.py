from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from abstain.config.serve_settings import OnUnavailable
from abstain.config.settings import Settings
from abstain.serving.gate import Gate
from abstain.serving.predictor import Predictor
from tests.llm.builders import save_tiny_model
from tests.serving.builders import GUARANTEE, release

Open = Callable[..., Predictor]
OpenGate = Callable[..., Gate]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny-bank")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", device="cpu", dtype="float32")


@pytest.fixture
def opened(model: Path, settings: Settings, tmp_path: Path) -> Open:
    """Open a release of `model` with these changes of its metadata; None leaves a key out."""
    return lambda **changes: Predictor.open(release(tmp_path / "bundle", model, settings, **changes), settings)


@pytest.fixture
def scorer(opened: Open) -> Predictor:
    return opened()


@pytest.fixture
def open_gate(model: Path, settings: Settings, tmp_path: Path) -> OpenGate:
    """The same as a gate; with a guarantee, unless changed."""

    def open_(on_unavailable: OnUnavailable = "abstain", **changes: str | None) -> Gate:
        file = release(tmp_path / "bundle", model, settings, **{"guarantee": GUARANTEE, **changes})
        return Gate.open(file.parent, settings, on_unavailable)

    return open_


@pytest.fixture
def gate(open_gate: OpenGate) -> Gate:
    return open_gate()
