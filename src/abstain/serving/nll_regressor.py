"""A regressor on NLLs as a live scorer.

It is a module of its own because it needs pandas, which the other scorers should not import: that takes half a second.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from abstain.learning.estimators.regressors.onnx_regressor import OnnxRegressor
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.base import FeatureBatch
from abstain.llm.signals.context_conditions import compute_nll_table, make_condition_requests


@dataclass(frozen=True)
class NllRegressor:
    """A regressor as a scorer of `FeatureBatch`.

    It reads NLLs with and without context.

    Attributes:
        onnx: The regressor.
        layout: Prompt layout of the NLLs.
    """

    onnx: OnnxRegressor
    layout: str

    @property
    def requires(self) -> tuple[FeatureRequest, ...]:
        return make_condition_requests(self.layout)

    def score(self, answers: FeatureBatch) -> np.ndarray:
        """Return confidences, float64 (rows,)."""
        if not len(answers):
            return np.empty(0)
        return self.onnx.predict(compute_nll_table(answers, self.layout))
