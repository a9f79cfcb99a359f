"""The predictor of a RAG service, which needs only the ONNX files of a bundle and the base model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.core.text import ReasoningMarker
from abstain.learning.metrics.calibration import Calibrator, calibrator_from_dict
from abstain.learning.thresholds.guarantee import Guarantee
from abstain.llm.engine.loading import find_model
from abstain.llm.engine.tokenization import load_model_layout
from abstain.llm.features.extraction import FeatureSource, UnreadableInteraction
from abstain.llm.features.feature_store import OnProgress
from abstain.llm.features.shard_job import JobStats
from abstain.llm.signals.base import FeatureBatch
from abstain.llm.signals.compute_features import FeatureReader, OnComputed, compute_missing
from abstain.serving.decision import Decision, DecisionReason
from abstain.serving.live_scorer import LiveScorer


@dataclass(frozen=True)
class Predictor:
    """The scorer of a version with its features and its threshold.

    Attributes:
        scorer: The live scorer.
        source: Source of the probe's states, for answers that the base model writes here.
        reader: Reader of all features that the scorer requires.
        calibrator: Maps a confidence to the probability that the answer is correct.
        guarantee: The guarantee of the version, or why there is none.
        reasoning: How models mark their reasoning, which is no part of an answer.
        refusals: Answers that are shown whatever their confidence.
    """

    scorer: LiveScorer
    source: FeatureSource
    reader: FeatureReader
    calibrator: Calibrator
    guarantee: Guarantee
    reasoning: tuple[ReasoningMarker, ...]
    refusals: tuple[str, ...]

    @classmethod
    def open(cls, file: Path, settings: Settings, on_computed: OnComputed | None = None) -> Predictor:
        """Open the predictor of a bundle.

        Args:
            file: ONNX file of the bundle's probe.
            settings: Settings with the place of the base model.
            on_computed: Called with each feature that is computed for a decision.

        Returns:
            The predictor.

        Raises:
            AbstainError: The file has no complete metadata, another file of the bundle is missing or was changed, or
                the base model or the prompt layout on this machine is not the one of the training.
        """
        scorer = LiveScorer.open(file, settings)
        metadata, llm = scorer.metadata, scorer.llm
        try:
            trained_revision, version, _ = metadata["model_revision"], metadata["version"], float(metadata["threshold"])
            layout_digest = metadata["layout_digest"]
            calibrator = calibrator_from_dict(json.loads(metadata["calibration"]))
            guarantee = Guarantee.model_validate_json(metadata["guarantee"])
            answers = json.loads(metadata["answers"])
            reasoning, refusals = tuple(answers["reasoning"]), tuple(answers["refusals"])
        except (KeyError, TypeError, ValueError):
            raise AbstainError(
                Code.BAD_ARTIFACT, f"{file} carries no complete metadata: export it with this project"
            ) from None
        ref = find_model(llm.model, settings)
        if ref.revision != trained_revision:
            raise AbstainError(
                Code.VERSION_MISMATCH,
                f"version {version} was trained on {llm.model}@{trained_revision}, but this machine has "
                f"@{ref.revision}: fetch that revision, or retrain",
            )
        if load_model_layout(ref, llm.layout).digest != layout_digest:
            raise AbstainError(
                Code.VERSION_MISMATCH,
                f"prompt layout {llm.layout} has changed since version {version} was trained: restore it",
            )
        reader = FeatureReader(tuple(FeatureSource(llm, settings, request) for request in scorer.requires), on_computed)
        return cls(scorer, FeatureSource(llm, settings), reader, calibrator, guarantee, reasoning, refusals)

    def decide_interactions(self, interactions: Sequence[Interaction]) -> list[Decision]:
        """Compare each answer's confidence with the threshold; an answer without any context is scored without it.

        `Gate` decides whether a service may show an answer.

        Args:
            interactions: The answers.

        Returns:
            One decision per answer, in order.
        """
        result = self.reader.read(interactions)
        return self.score_answers(result.batch, result.unreadable, result.forward_tokens)

    def score_answers(
        self, batch: FeatureBatch, unreadable: Sequence[UnreadableInteraction | None], forward_tokens: Sequence[float]
    ) -> list[Decision]:
        """Decide about answers whose features are already computed.

        Args:
            batch: The answers and their features.
            unreadable: Why the base model cannot read each answer; None if it can.
            forward_tokens: Number of tokens that the base model read for the features of each answer.

        Returns:
            One decision per answer, in order.
        """
        decisions = []
        confidences = self.scorer.score(batch)
        for interaction, failure, n_tokens, confidence in zip(
            batch.interactions, unreadable, forward_tokens, confidences, strict=True
        ):
            if failure:
                reason = DecisionReason(Code.TOO_LONG, failure.reason)
                decision = self.make_abstain_decision(interaction.interaction_id, reason)
            elif np.isnan(confidence):
                message = f"the scorer {self.scorer.name} has no score for this answer"
                reason = DecisionReason(Code.NOTHING_TO_SCORE, message)
                decision = self.make_abstain_decision(interaction.interaction_id, reason)
            else:
                decision = self.apply_threshold(interaction.interaction_id, float(confidence))
            if not failure:
                n_tokens += sum(scorer.estimate_forward_tokens([interaction]) for scorer in self.scorer.running)
            decisions.append(replace(decision, forward_tokens=n_tokens))
        return decisions

    def compute_missing(
        self, interactions: Sequence[Interaction], on_progress: OnProgress = lambda done, total: None
    ) -> JobStats:
        """Compute and cache the features of answers that are not cached yet.

        Args:
            interactions: The answers.
            on_progress: Called with the number of finished and of all features.

        Returns:
            Statistics of the job.
        """
        return compute_missing(
            self.source.params, self.source.settings, [(interactions, self.scorer.requires)], on_progress
        )

    @property
    def threshold(self) -> float:
        """Threshold of the version."""
        return float(self.scorer.metadata["threshold"])

    def apply_threshold(self, interaction_id: str, confidence: float) -> Decision:
        """Decide by the threshold of the version.

        Args:
            interaction_id: Id of the answer.
            confidence: Its confidence.

        Returns:
            "show" or "abstain", with the calibrated probability.
        """
        show = confidence >= self.threshold
        decision = Decision(
            interaction_id,
            "show" if show else "abstain",
            confidence,
            self.threshold,
            self.scorer.metadata["version"],
            self.guarantee.summarize(),
            probability=float(self.calibrator.apply(np.array([confidence]))[0]),
            components=tuple(self.scorer.components),
            show=show,
        )
        if (bounds := self.calibrator.compute_interval(np.array([confidence]))) is None:
            return decision
        low, high = (float(bound[0]) for bound in bounds)
        return replace(decision, probability_low=low, probability_high=high)

    def make_abstain_decision(self, interaction_id: str, reason: DecisionReason | None) -> Decision:
        """Return the decision to abstain without a confidence.

        Args:
            interaction_id: Id of the answer.
            reason: Why there is no confidence; None if the caller adds it.

        Returns:
            The decision.
        """
        version, guarantee = self.scorer.metadata["version"], self.guarantee.summarize()
        return Decision(interaction_id, "abstain", None, self.threshold, version, guarantee, reason=reason)
