"""A regressor on NLLs as a live scorer; apart, because it needs pandas, which takes others half a second to import."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from abstain.learning.estimators.regressors.onnx_regressor import OnnxRegressor
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.base import Answers
from abstain.llm.signals.context_conditions import baseline, nll_features, normal


@dataclass(frozen=True)
class NllRegressor:
    """A regressor as a scorer of `Answers`: it reads them with and without their context, under `layout`."""

    onnx: OnnxRegressor
    layout: str

    @property
    def readings(self) -> tuple[FeatureRequest, ...]:
        return (*normal(self.layout).values(), *baseline(self.layout).values())

    def score(self, answers: Answers) -> np.ndarray:
        if not len(answers):
            return np.empty(0)
        return self.onnx.predict(nll_features(answers, self.layout))
