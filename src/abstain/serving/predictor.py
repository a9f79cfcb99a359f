"""The predictor of a RAG service: show or abstain. It needs only the promoted ONNX file and the base model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor

from abstain.config.params import LLMParams
from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.contracts import Interaction, Question
from abstain.core.errors import AbstainError
from abstain.core.phases import phase
from abstain.learning.estimators.onnx_probe import OnnxProbe
from abstain.learning.metrics.calibration import Calibrator, calibrator_from_dict
from abstain.llm.engine.loading import pin, resolve
from abstain.llm.engine.prompts import load_layout
from abstain.llm.features.extraction import FeatureSource, UnreadableRow
from abstain.release.bundle_format import current_metadata

NO_CONTEXT = "no context was given, and the probe was trained to judge answers by theirs"


@dataclass(frozen=True)
class Decision:
    """The decision about one answer, and the reason: shown when `confidence >= threshold`, and only then.

    `confidence` is the probe's own score; `probability` the calibrated probability that the answer is correct, with the
    bounds `probability_low` and `probability_high` where the calibrator has any (Venn-Abers). `guarantee` is the
    guarantee of `threshold` when `version` was made, or why it went live without one. An answer that the base model
    cannot read has no confidence and is not shown; nor is one without any context where the probe was trained with
    some: its decision is `unavailable`. `reason` is the reason for either.
    """

    interaction_id: str
    decision: Literal["show", "abstain", "unavailable"]
    confidence: float | None
    threshold: float
    version: str
    guarantee: str
    probability: float | None = None
    probability_low: float | None = None
    probability_high: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Predictor:
    """A released probe and where its features come from, both read from the ONNX file's metadata."""

    probe: OnnxProbe
    source: FeatureSource
    calibrator: Calibrator
    guarantee: str

    @classmethod
    def open(cls, file: Path, settings: Settings) -> Predictor:
        """Open a released ONNX file.

        Raises `AbstainError` where it carries no metadata, and where the base model or the prompt layout here
        is not the one it was trained on.
        """
        probe = OnnxProbe(file)
        try:
            meta = current_metadata(probe.metadata)
            llm = LLMParams.model_validate({key: meta[key] for key in ("model", "layout", "layer", "site", "too_long")})
            trained_on = meta["model_revision"]
            version, _, layout_digest = meta["version"], float(meta["threshold"]), meta["layout_digest"]
            calibrator = calibrator_from_dict(json.loads(meta.get("calibration", '{"method": "none"}')))
            guarantee = json.loads(meta.get("guarantee", '{"message": "nothing was guaranteed"}'))["message"]
        except (KeyError, TypeError, ValueError):
            raise AbstainError(
                Code.BAD_ARTIFACT, f"{file} carries no complete probe metadata: export it with this project"
            ) from None
        llm = llm.model_copy(update={"model": pin(llm.model, trained_on)})
        here = resolve(llm.model, settings).revision
        if here != trained_on:
            raise AbstainError(
                Code.OTHER_VERSION,
                f"probe {version} was trained on {llm.model}@{trained_on}, but this machine has @{here}: "
                "fetch that revision, or retrain",
            )
        if load_layout(llm.layout).digest != layout_digest:
            raise AbstainError(
                Code.OTHER_VERSION,
                f"prompt layout {llm.layout} has changed since probe {version} was trained: restore it",
            )
        return cls(probe, FeatureSource(llm, settings), calibrator, guarantee)

    def judge(self, requests: Sequence[Interaction], *, no_context: bool = False) -> list[Decision]:
        """One decision per request of a service, in order: `unavailable` for an answer without any context, unless
        `no_context` is set."""
        fit = [request for request in requests if no_context or not self.lacks_context(request)]
        verdicts = iter(self.score(fit))
        return [
            next(verdicts) if no_context or not self.lacks_context(request) else self.unavailable(request)
            for request in requests
        ]

    def score(self, interactions: Sequence[Interaction]) -> list[Decision]:
        """One decision per interaction, in order; a question without context is scored without."""
        found = self.source.states(interactions)
        with phase("decision"):
            return self._decide_all(interactions, found)

    def _decide_all(
        self, interactions: Sequence[Interaction], found: Sequence[Tensor | UnreadableRow]
    ) -> list[Decision]:
        confidences = iter(self.probe.confidence([row.float() for row in found if isinstance(row, Tensor)]))
        return [
            self.refuse(interaction.interaction_id, Code.TOO_LONG, row.reason)
            if isinstance(row, UnreadableRow)
            else self.decide(interaction.interaction_id, float(next(confidences)))
            for interaction, row in zip(interactions, found, strict=True)
        ]

    @property
    def threshold(self) -> float:
        return float(self.probe.metadata["threshold"])

    def decide(self, interaction_id: str, confidence: float) -> Decision:
        """Show or abstain, at the released threshold."""
        verdict = Decision(
            interaction_id,
            "show" if confidence >= self.threshold else "abstain",
            confidence,
            self.threshold,
            self.probe.metadata["version"],
            self.guarantee,
            probability=float(self.calibrator.apply(np.array([confidence]))[0]),
        )
        if (bounds := self.calibrator.interval(np.array([confidence]))) is None:
            return verdict
        low, high = (float(bound[0]) for bound in bounds)
        return replace(verdict, probability_low=low, probability_high=high)

    def lacks_context(self, asked: Interaction | Question) -> bool:
        """Whether nothing was retrieved for `asked`, and the prompt layout has a place for it."""
        return not asked.contexts and load_layout(self.source.params.layout).takes_contexts

    def unavailable(self, asked: Interaction | Question) -> Decision:
        """No decision, because nothing was retrieved for `asked`."""
        return replace(self.refuse(asked.interaction_id, Code.NOTHING_TO_SCORE, NO_CONTEXT), decision="unavailable")

    def refuse(self, interaction_id: str, code: Code, reason: str) -> Decision:
        """Abstain without a confidence, for `reason`, a cause of the kind `code`."""
        version, coded = self.probe.metadata["version"], f"{code}: {reason}"
        return Decision(interaction_id, "abstain", None, self.threshold, version, self.guarantee, reason=coded)
