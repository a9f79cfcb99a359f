"""Show or abstain: what a RAG service asks. Needs the promoted ONNX file and the base model, nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from abstain.contracts import Interaction
from abstain.errors import AbstainError
from abstain.features.extract import FeatureSource
from abstain.llm.layout import load_layout
from abstain.llm.loading import pin, resolve
from abstain.models.onnx_probe import OnnxProbe
from abstain.params import LLMParams
from abstain.settings import Settings


@dataclass(frozen=True)
class Verdict:
    """What to do with one answer, and why: shown when `confidence >= threshold`."""

    interaction_id: str
    decision: Literal["show", "abstain"]
    confidence: float
    threshold: float
    version: str


@dataclass(frozen=True)
class Scorer:
    """A released probe and where its features come from, both read from the ONNX file's metadata."""

    probe: OnnxProbe
    source: FeatureSource

    @classmethod
    def open(cls, file: Path, settings: Settings) -> Scorer:
        """Open a released ONNX file.

        Raises `AbstainError` where it carries no metadata, and where the base model or the prompt layout here
        is not the one it was trained on.
        """
        probe = OnnxProbe(file)
        try:
            meta = probe.metadata
            llm = LLMParams.model_validate({key: meta[key] for key in ("model", "layout", "layer", "site")})
            trained_on = meta["model_revision"]
            version, _, layout_digest = meta["version"], float(meta["threshold"]), meta["layout_digest"]
        except (KeyError, ValueError):
            raise AbstainError(f"{file} carries no complete probe metadata: export it with this project") from None
        llm = llm.model_copy(update={"model": pin(llm.model, trained_on)})
        here = resolve(llm.model, settings).revision
        if here != trained_on:
            raise AbstainError(
                f"probe {version} was trained on {llm.model}@{trained_on}, but this machine has @{here}: "
                "fetch that revision, or retrain"
            )
        if load_layout(llm.layout).digest != layout_digest:
            raise AbstainError(f"prompt layout {llm.layout} has changed since probe {version} was trained: restore it")
        return cls(probe, FeatureSource(llm, settings))

    def score(self, interactions: Sequence[Interaction]) -> list[Verdict]:
        """One verdict an interaction, in order."""
        rows = [states.float() for states in self.source.states(interactions)]
        threshold, version = float(self.probe.metadata["threshold"]), self.probe.metadata["version"]
        return [
            Verdict(
                interaction.interaction_id,
                "show" if confidence >= threshold else "abstain",
                float(confidence),
                threshold,
                version,
            )
            for interaction, confidence in zip(interactions, self.probe.confidence(rows), strict=True)
        ]
