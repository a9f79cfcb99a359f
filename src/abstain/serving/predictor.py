"""The predictor of a RAG service: show or abstain. It needs only the promoted ONNX files and the base model."""

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
from abstain.learning.metrics.calibration import Calibrator, calibrator_from_dict
from abstain.llm.engine.loading import find_model
from abstain.llm.engine.prompts import load_layout
from abstain.llm.features.extraction import FeatureSource, UnreadableInteraction
from abstain.llm.features.feature_store import OnProgress
from abstain.llm.features.shard_job import JobStats
from abstain.llm.signals.base import FeatureBatch
from abstain.llm.signals.compute_features import FeatureReader, OnComputed, compute_missing
from abstain.serving.decision import Decision
from abstain.serving.live_scorer import LiveScorer


@dataclass(frozen=True)
class Predictor:
    """A released scorer and where its features come from.

    `source`: of the probe's states, for answers that the base model writes here; `reader`: of all that `scorer` reads.
    """

    scorer: LiveScorer
    source: FeatureSource
    reader: FeatureReader
    calibrator: Calibrator
    guarantee: str
    has_guarantee: bool

    @classmethod
    def open(cls, file: Path, settings: Settings, keep: OnComputed | None = None) -> Predictor:
        """Open a release by its probe's ONNX file; `keep` is given what is computed for its decisions.

        Raises `AbstainError` where it carries no metadata, where another file of the release is missing or changed, and
        where the base model or the prompt layout here is not the one it was trained on.
        """
        scorer = LiveScorer.open(file)
        meta, llm = scorer.metadata, scorer.llm
        try:
            trained_on, version, _ = meta["model_revision"], meta["version"], float(meta["threshold"])
            layout_digest = meta["layout_digest"]
            calibrator = calibrator_from_dict(json.loads(meta["calibration"]))
            guarantee = json.loads(meta["guarantee"])
            message, guaranteed = guarantee["message"], bool(guarantee["guaranteed"])
        except (KeyError, TypeError, ValueError):
            raise AbstainError(
                Code.BAD_ARTIFACT, f"{file} carries no complete metadata: export it with this project"
            ) from None
        here = find_model(llm.model, settings).revision
        if here != trained_on:
            raise AbstainError(
                Code.VERSION_MISMATCH,
                f"version {version} was trained on {llm.model}@{trained_on}, but this machine has @{here}: "
                "fetch that revision, or retrain",
            )
        if load_layout(llm.layout).digest != layout_digest:
            raise AbstainError(
                Code.VERSION_MISMATCH,
                f"prompt layout {llm.layout} has changed since version {version} was trained: restore it",
            )
        reader = FeatureReader(tuple(FeatureSource(llm, settings, one) for one in scorer.requires), keep)
        return cls(scorer, FeatureSource(llm, settings), reader, calibrator, message, guaranteed)

    def decide_interactions(self, interactions: Sequence[Interaction]) -> list[Decision]:
        """Each answer's confidence beside the threshold, in order; one without any context is scored without.

        Whether a service may show an answer is decided by `Gate`.
        """
        read = self.reader.read(interactions)
        return self.score_answers(read.batch, read.unreadable, read.forward_tokens)

    def score_answers(
        self, answers: FeatureBatch, unreadable: Sequence[UnreadableInteraction | None], forward_tokens: Sequence[float]
    ) -> list[Decision]:
        """What `score` gives, of answers that were read.

        Args:
            unreadable: why the base model cannot read an answer, None where it can.
            forward_tokens: what it read for each.
        """
        decisions = []
        confidences = self.scorer.score(answers)
        for row, why, tokens, confidence in zip(
            answers.interactions, unreadable, forward_tokens, confidences, strict=True
        ):
            if why:
                decision = self.make_abstain_decision(row.interaction_id, Code.TOO_LONG, why.reason)
            elif np.isnan(confidence):
                reason = f"the scorer {self.scorer.name} has no score for this answer"
                decision = self.make_abstain_decision(row.interaction_id, Code.NOTHING_TO_SCORE, reason)
            else:
                decision = self.apply_threshold(row.interaction_id, float(confidence))
            decisions.append(replace(decision, forward_tokens=tokens))
        return decisions

    def compute_missing(
        self, interactions: Sequence[Interaction], progress: OnProgress = lambda done, total: None
    ) -> JobStats:
        """Compute and cache what the scorer reads of `interactions`, where it is missing."""
        return compute_missing(
            self.source.params, self.source.settings, [(interactions, self.scorer.requires)], progress
        )

    @property
    def threshold(self) -> float:
        return float(self.scorer.metadata["threshold"])

    def apply_threshold(self, interaction_id: str, confidence: float) -> Decision:
        """Show or abstain, at the released threshold."""
        show = confidence >= self.threshold
        verdict = Decision(
            interaction_id,
            "show" if show else "abstain",
            confidence,
            self.threshold,
            self.scorer.metadata["version"],
            self.guarantee,
            probability=float(self.calibrator.apply(np.array([confidence]))[0]),
            signals=self.scorer.component_names,
            show=show,
        )
        if (bounds := self.calibrator.interval(np.array([confidence]))) is None:
            return verdict
        low, high = (float(bound[0]) for bound in bounds)
        return replace(verdict, probability_low=low, probability_high=high)

    def make_abstain_decision(self, interaction_id: str, code: Code, reason: str) -> Decision:
        """Abstain without a confidence, for `reason`, a cause of the kind `code`."""
        version, coded = self.scorer.metadata["version"], f"{code}: {reason}"
        return Decision(interaction_id, "abstain", None, self.threshold, version, self.guarantee, reason=coded)
