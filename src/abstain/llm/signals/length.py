"""Length baseline: a scorer that reads only the length of the answer, which every useful scorer must beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from abstain.core.labels import Labels
from abstain.core.scorer_names import LENGTH_ONLY
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.base import FeatureBatch


@dataclass(frozen=True)
class LengthOnly:
    """Logistic regression on the length of the answer in characters, and its logarithm.

    Attributes:
        name: Name on the leaderboard.
        requires: No feature requests.
        model: The fitted scikit-learn pipeline; None before the fit.
    """

    name: str = LENGTH_ONLY
    requires: tuple[FeatureRequest, ...] = ()
    model: Any = None

    def fit(self, batch: FeatureBatch, labels: Labels) -> LengthOnly:
        """Fit the regression to training answers.

        Args:
            batch: Training answers.
            labels: Labels and weights of the same rows.

        Returns:
            The fitted scorer.

        Raises:
            AbstainError: All answers are correct, or all are incorrect.
        """
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        labels.require_both_classes()
        model = make_pipeline(StandardScaler(), LogisticRegression())
        model.fit(_measure_lengths(batch), labels.correct, logisticregression__sample_weight=labels.weight)
        return LengthOnly(model=model)

    def score(self, batch: FeatureBatch) -> np.ndarray:
        """Predict the probability of correctness of each answer, float64 `(rows,)`."""
        if not len(batch):
            return np.empty(0)
        return np.asarray(self.model.predict_proba(_measure_lengths(batch))[:, 1])


def _measure_lengths(batch: FeatureBatch) -> np.ndarray:
    characters = np.array([len(interaction.answer) for interaction in batch.interactions], float)
    return np.column_stack([characters, np.log1p(characters)])
