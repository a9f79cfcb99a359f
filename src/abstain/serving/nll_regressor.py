"""A regressor on NLLs as a live scorer.

It is a module of its own because it needs pandas, which the other scorers should not import: that takes half a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from abstain.core.contracts import Interaction
from abstain.learning.estimators.regressors.onnx_regressor import OnnxRegressor
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.base import FeatureBatch
from abstain.llm.signals.context_conditions import ContextConditions, make_condition_requests


@dataclass(frozen=True)
class NllRegressor:
    """A regressor as a scorer of `FeatureBatch`.

    It reads NLLs with and without context, and with perturbed copies of it if it was trained on them.

    Attributes:
        onnx: The regressor.
        conditions: Base model, prompt layout and perturbation of the training.
    """

    onnx: OnnxRegressor
    conditions: ContextConditions

    @property
    def requires(self) -> tuple[FeatureRequest, ...]:
        return make_condition_requests(self.conditions.llm.layout)

    def score(self, answers: FeatureBatch) -> np.ndarray:
        """Return confidences, float64 (rows,)."""
        if not len(answers):
            return np.empty(0)
        return self.onnx.predict(self.conditions.compute_table(answers))


@dataclass(frozen=True)
class PerturbedRegressor(NllRegressor):
    """A regressor that perturbs the contexts of an answer, and has the base model read the answer with them."""

    def estimate_forward_tokens(self, interactions: Sequence[Interaction]) -> float:
        """Estimate the tokens that perturb the contexts of an answer, and read it with them."""
        return self.conditions.estimate_perturbed_forward_tokens(interactions)
