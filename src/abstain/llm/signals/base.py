"""Protocol of all scorers: declare feature requests, fit, score.

A scorer never runs the base model: the feature requests of all scorers are computed together
(`llm/features/feature_store.py`).
A score is a confidence from 0 to 1: higher means more likely correct, nan means that the scorer has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.core.labels import Labels
from abstain.llm.features.feature_request import FeatureRequest

Feature = Tensor | None
"""One row's result, (tokens, n) as the operation defines it; None if the base model cannot read the row."""


@dataclass(frozen=True)
class FeatureBatch:
    """Interactions with the features of the base model for each of them.

    Attributes:
        interactions: The answered questions.
        features: Feature request -> one result per interaction, in the same order.
        derived: Cache of values that several scorers derive from these features: `nll_features`, a DataFrame of
            `ContextConditions.compute_table`.
    """

    interactions: Sequence[Interaction]
    features: Mapping[FeatureRequest, Sequence[Feature]]
    derived: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.interactions)

    def take(self, indices: Sequence[int]) -> FeatureBatch:
        """Return the rows of `indices`, in their order."""
        features = {request: [values[index] for index in indices] for request, values in self.features.items()}
        return FeatureBatch([self.interactions[index] for index in indices], features)

    def get_rows(self, requests: Sequence[FeatureRequest]) -> list[tuple[Interaction, list[Feature]]]:
        """Return each interaction with its results of `requests`, in their order."""
        columns = [self.features[request] for request in requests]
        return [
            (interaction, [column[index] for column in columns]) for index, interaction in enumerate(self.interactions)
        ]


class Scorer(Protocol):
    """A confidence scorer: its name, its feature requests, its fit and its scores."""

    @property
    def name(self) -> str:
        """Name on the leaderboard."""

    @property
    def requires(self) -> tuple[FeatureRequest, ...]:
        """Features that `fit` and `score` read."""

    def fit(self, batch: FeatureBatch, labels: Labels) -> Scorer:
        """Fit the scorer to training answers.

        Args:
            batch: Training answers with the features that `requires` names.
            labels: Labels, weights and groups of the same rows.

        Returns:
            The fitted scorer; the scorer itself if there is nothing to fit.

        Raises:
            ScorerUnavailable: The answers lack what the scorer learns from. The leaderboard shows the message.
        """

    def score(self, batch: FeatureBatch) -> np.ndarray:
        """Score answers.

        Args:
            batch: Answers with the features that `requires` names.

        Returns:
            Confidences in [0, 1], float64 `(rows,)`; nan if there is no score.
        """


@runtime_checkable
class RunsModel(Protocol):
    """A scorer that runs a model by itself when it scores, beside the features that it requires."""

    def estimate_forward_tokens(self, interactions: Sequence[Interaction]) -> float:
        """Estimate what it has the base model read of an answer, beside the features that it requires.

        Args:
            interactions: Answered questions.

        Returns:
            The mean number of tokens; 0 if it runs another model.
        """


@dataclass(frozen=True)
class Signal:
    """A scorer that needs no fit: a function of the features of one answer.

    Attributes:
        name: Name on the leaderboard.
        requires: The feature requests.
        score_row: Function of an interaction and its features, in the order of `requires`; returns nan if there is no
            score.

    Examples:
        >>> import torch
        >>> from abstain.llm.engine.requests import NLL
        >>> request = FeatureRequest(NLL(("answer", "eos")))
        >>> def compute_least_likely(interaction, features):
        ...     return float(torch.exp(-features[0][:, 0].max()))
        >>> signal = Signal("least_likely", (request,), compute_least_likely)
        >>> batch = FeatureBatch([Interaction.model_construct()], {request: [torch.tensor([[0.1], [0.7]])]})
        >>> signal.score(batch).round(2)
        array([0.5])
    """

    name: str
    requires: tuple[FeatureRequest, ...]
    score_row: Callable[[Interaction, Sequence[Tensor]], float]

    def fit(self, batch: FeatureBatch, labels: Labels) -> Signal:
        """Return the signal itself; there is nothing to fit."""
        return self

    def score(self, batch: FeatureBatch) -> np.ndarray:
        """Score each answer whose features are complete; the others get nan."""
        values = [
            self.score_row(interaction, [feature for feature in row_features if feature is not None])
            if all(feature is not None for feature in row_features)
            else float("nan")
            for interaction, row_features in batch.get_rows(self.requires)
        ]
        return np.array(values, float)


class ScorerUnavailable(AbstainError):
    """A scorer is not available; the leaderboard shows the message, the reason, in its place."""
