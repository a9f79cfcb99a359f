"""The base model of a study's file, and what its results depend on."""

from __future__ import annotations

from typing import Any

from abstain.config.params import LLMParams
from abstain.config.settings import Settings
from abstain.llm.engine.device import choose_device, choose_dtype
from abstain.llm.engine.engine import ENGINE_VERSION
from abstain.llm.engine.loading import find_model
from abstain.llm.engine.tokenization import load_model_layout


def make_llm_params(model: str, layout: str) -> LLMParams:
    """Return a base model that reads and writes whole texts; a study that reads states names layer and site itself."""
    return LLMParams(model=model, layout=layout, layer=1, site="residual", too_long="refuse", includes_eos=True)


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
