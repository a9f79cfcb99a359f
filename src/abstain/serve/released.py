"""Show or abstain: what a RAG service asks. Needs the promoted ONNX file and the base model, nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from torch import Tensor

from abstain.contracts import Interaction
from abstain.errors import AbstainError
from abstain.features.extract import FeatureSource, Refused
from abstain.llm.layout import load_layout
from abstain.llm.loading import pin, resolve
from abstain.models.onnx_probe import OnnxProbe
from abstain.params import LLMParams
from abstain.settings import Settings


@dataclass(frozen=True)
class Verdict:
    """What to do with one answer, and why: shown when `confidence >= threshold`.

    An answer that the base model cannot read has no confidence, and is not shown; `reason` says why.
    """

    interaction_id: str
    decision: Literal["show", "abstain"]
    confidence: float | None
    threshold: float
    version: str
    reason: str | None = None


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
            llm = LLMParams.model_validate({key: meta[key] for key in ("model", "layout", "layer", "site", "too_long")})
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
        found = self.source.states(interactions)
        confidences = iter(self.probe.confidence([row.float() for row in found if isinstance(row, Tensor)]))
        return [
            self.refuse(interaction.interaction_id, row.reason)
            if isinstance(row, Refused)
            else self.decide(interaction.interaction_id, float(next(confidences)))
            for interaction, row in zip(interactions, found, strict=True)
        ]

    def decide(self, interaction_id: str, confidence: float) -> Verdict:
        """Show or abstain, at the released threshold."""
        threshold, version = float(self.probe.metadata["threshold"]), self.probe.metadata["version"]
        decision: Literal["show", "abstain"] = "show" if confidence >= threshold else "abstain"
        return Verdict(interaction_id, decision, confidence, threshold, version)

    def refuse(self, interaction_id: str, reason: str) -> Verdict:
        """Abstain, because the base model cannot read it."""
        return replace(self.decide(interaction_id, -1.0), confidence=None, reason=reason)
