"""Familiarity, its ablations and its baselines of a batch of instructions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from abstain.config.settings import Settings
from abstain.llm.familiarity.familiarity import Familiarity, FamiliarityConfig, SelfFamiliarity
from abstain.llm.features.feature_store import FeatureStore, OnProgress
from studies.self_familiarity.baselines import FamiliarityBaselines, Instruction
from studies.self_familiarity.concept7 import ConceptInstruction
from studies.self_familiarity.declared import ConceptSource, FamiliarityDeclaration

SELF_FAMILIARITY = "Self-Familiarity"
ABLATIONS: Mapping[str, dict[str, Any]] = {
    "without grouping": {"grouping": False},
    "without filtering": {"filtering": False},
    "without ranking": {"ranking": False},
    "minimum only": {"aggregation": "minimum"},
    "most infrequent only": {"aggregation": "rarest"},
}
OF_EXTRACTION = ("without grouping", "without filtering")
"""Ablations of the extraction of concepts: there is none if the data have the concepts."""


@dataclass(frozen=True)
class FamiliarityMeter:
    """The study's base model, and how it is asked."""

    declared: FamiliarityDeclaration
    settings: Settings

    def measure_familiarity(
        self, instructions: Sequence[ConceptInstruction], source: ConceptSource, progress: OnProgress
    ) -> dict[str, Any]:
        """Return the `scores` of Self-Familiarity and its ablations, (instructions,), None without a score."""
        scores = {SELF_FAMILIARITY: self._get_scores(FamiliarityConfig(), instructions, source, progress)}
        for name, changes in ABLATIONS.items():
            if source == "extracted" or name not in OF_EXTRACTION:
                config = replace(FamiliarityConfig(), **changes)
                scores[name] = self._get_scores(config, instructions, source, progress)
        return {"scores": scores}

    def measure_baselines(
        self, instructions: Sequence[ConceptInstruction], source: ConceptSource, progress: OnProgress
    ) -> dict[str, Any]:
        """Return the `scores` of the baselines, (instructions,), nan without a score."""
        familiarities = self._score(FamiliarityConfig(), instructions, source, progress)
        scores = self.baselines.score(
            [
                Instruction(
                    instruction.text, tuple(guess.concept for guess in familiarity.concepts), instruction.domain
                )
                for instruction, familiarity in zip(instructions, familiarities, strict=True)
            ],
            progress,
        )
        return {"scores": {name: values.tolist() for name, values in scores.items()}}

    @property
    def baselines(self) -> FamiliarityBaselines:
        """The baselines by the base model."""
        lengths = self.declared.baselines
        return FamiliarityBaselines(
            FeatureStore(self.declared.model, self.settings),
            self._make_method(FamiliarityConfig()).guesser.template,
            lengths.reply_tokens,
            lengths.samples,
            lengths.sample_tokens,
        )

    def _get_scores(
        self,
        config: FamiliarityConfig,
        instructions: Sequence[ConceptInstruction],
        source: ConceptSource,
        progress: OnProgress,
    ) -> list[float | None]:
        return [familiarity.score for familiarity in self._score(config, instructions, source, progress)]

    def _score(
        self,
        config: FamiliarityConfig,
        instructions: Sequence[ConceptInstruction],
        source: ConceptSource,
        progress: OnProgress,
    ) -> list[Familiarity]:
        method = self._make_method(config)
        if source == "extracted":
            return method.score([instruction.text for instruction in instructions], progress)
        return method.score_concepts([instruction.concepts for instruction in instructions], progress)

    def _make_method(self, config: FamiliarityConfig) -> SelfFamiliarity:
        lengths = self.declared.familiarity.model_dump()
        return SelfFamiliarity(self.declared.model, self.declared.layout, self.settings, replace(config, **lengths))
