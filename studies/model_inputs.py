"""What a base model's results depend on, for the inputs of a part."""

from __future__ import annotations

from typing import Any

from abstain.config.settings import Settings
from abstain.llm.engine.device import choose_device, choose_dtype
from abstain.llm.engine.engine import ENGINE_VERSION
from abstain.llm.engine.loading import find_model
from abstain.llm.engine.tokenization import load_model_layout


def describe_base_model(model: str, layout: str, settings: Settings) -> dict[str, Any]:
    """Return model, layout, dtype and engine, as JSON.

    Raises:
        AbstainError: the model or the layout is not found.
    """
    ref = find_model(model, settings)
    return {
        "model": str(ref),
        "layout": load_model_layout(ref, layout).digest,
        "dtype": str(choose_dtype(settings, choose_device(settings))).removeprefix("torch."),
        "engine": ENGINE_VERSION,
    }
