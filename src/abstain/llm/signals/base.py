"""The protocol of all scorers: declare feature requests, fit, score.

A scorer never runs the base model: the feature requests of all scorers are computed together
(`features/feature_store.py`).
A score is a confidence from 0 to 1, higher means more likely correct, and nan where the scorer has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.core.labels import Labels
from abstain.llm.features.feature_request import FeatureRequest

Feature = Tensor | None


@dataclass(frozen=True)
class FeatureBatch:
    """Answered questions, and the base model's results for each.

    `results`: feature request -> a result an interaction, in order; None where the base model could not read it.
    `derived`: what several scorers make of these, computed once.
    """

    interactions: Sequence[Interaction]
    features: Mapping[FeatureRequest, Sequence[Feature]]
    derived: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.interactions)

    def take(self, indices: Sequence[int]) -> FeatureBatch:
        """The answers of `indices`, in their order."""
        results = {reading: [found[at] for at in indices] for reading, found in self.features.items()}
        return FeatureBatch([self.interactions[at] for at in indices], results)

    def iter_rows(self, readings: Sequence[FeatureRequest]) -> list[tuple[Interaction, list[Feature]]]:
        """Each interaction with its results of `readings`, in their order."""
        found = [self.features[reading] for reading in readings]
        return [(one, [of[at] for of in found]) for at, one in enumerate(self.interactions)]


class Scorer(Protocol):
    """A confidence scorer: its name on the leaderboard, its feature requests, its fit and its scores."""

    @property
    def name(self) -> str: ...

    @property
    def requires(self) -> tuple[FeatureRequest, ...]: ...

    def fit(self, answers: FeatureBatch, labels: Labels) -> Scorer:
        """The scorer, fitted to training answers; itself where there is nothing to fit.

        Raises `ScorerUnavailable` where these answers lack what it learns from.
        """

    def score(self, answers: FeatureBatch) -> np.ndarray:
        """Confidences, float64 (rows,) in [0, 1]; nan where it has no score."""


@dataclass(frozen=True)
class Signal:
    """A scorer that needs no fit: a function of the base model's results for one answer.

    `score_row` takes the interaction and its results, in the order of `readings`; nan where it has no score.
    """

    name: str
    requires: tuple[FeatureRequest, ...]
    score_row: Callable[[Interaction, Sequence[Tensor]], float]

    def fit(self, answers: FeatureBatch, labels: Labels) -> Signal:
        return self

    def score(self, answers: FeatureBatch) -> np.ndarray:
        values = [
            self.score_row(one, [result for result in found if result is not None])
            if all(result is not None for result in found)
            else float("nan")
            for one, found in answers.iter_rows(self.requires)
        ]
        return np.array(values, float)


class ScorerUnavailable(AbstainError):
    """Raised for a scorer that is not available; the leaderboard shows the message, the reason, in its place."""
