"""Length baseline: a scorer of the answer's length alone, which every useful scorer must beat."""

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
    """Logistic regression on the answer's length in characters, and its logarithm."""

    name: str = LENGTH_ONLY
    readings: tuple[FeatureRequest, ...] = ()
    model: Any = None

    def fit(self, answers: FeatureBatch, labels: Labels) -> LengthOnly:
        """Fitted to training answers. Raises `AbstainError` where all of them are correct, or all incorrect."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        labels.require_both_classes()
        model = make_pipeline(StandardScaler(), LogisticRegression())
        model.fit(_lengths(answers), labels.correct, logisticregression__sample_weight=labels.weight)
        return LengthOnly(model=model)

    def score(self, answers: FeatureBatch) -> np.ndarray:
        if not len(answers):
            return np.empty(0)
        return np.asarray(self.model.predict_proba(_lengths(answers))[:, 1])


def _lengths(answers: FeatureBatch) -> np.ndarray:
    characters = np.array([len(one.answer) for one in answers.interactions], float)
    return np.column_stack([characters, np.log1p(characters)])
