"""The simplest probe: logistic regression on the mean of the answer's states and on the last one.

Notes:

* It is fitted by scikit-learn; its path consists of ever weaker penalties. With two thousand labels, the strength of
  the penalty matters more than the architecture.
* The standardisation of the fit is folded into the weights, and states are pooled before they are standardised: a
  exported one does arithmetic on only two states an answer.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from typing import Self

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from abstain.config.params import ProbeParams
from abstain.learning.estimators.probes.base import Probe, TrainingStep, masked_last, masked_mean
from abstain.learning.estimators.training_rows import MEMORY_VALUES, TrainingRows, iter_batches, pad

LOGIT_VARIANCES = np.logspace(-1.5, 2.5, 9)
"""The variation of logits that the penalty alone allows. The inverse strength C is this by the number of features, so
that one value suits narrow and wide states."""
POOLED = 64
"""Rows that are pooled at once."""


class LinearProbe(Probe):
    """Logistic regression on [mean state, last state].

    Args:
        d: width of the base model's states.
    """

    def __init__(self, d: int) -> None:
        super().__init__(d)
        self.head = nn.Linear(2 * d, 1)

    @classmethod
    def of(cls, d: int, params: ProbeParams) -> Self:
        return cls(d)

    @classmethod
    def description(cls, params: ProbeParams) -> str:
        return "logistic regression on the mean and the last state"

    def forward(self, states: Tensor, lengths: Tensor | None) -> Tensor:
        difference: Tensor = self.head(self.pooled(states, lengths))
        return difference if self.is_served else torch.cat([torch.zeros_like(difference), difference], 1)

    def pooled(self, states: Tensor, lengths: Tensor | None) -> Tensor:
        """[mean, last] of the standardised states, (B, 2 d)."""
        return torch.cat([self.standardised(pool(states, lengths)) for pool in (masked_mean, masked_last)], 1)

    def divide_weights(self) -> None:
        self.head.weight.div_(self.scale.repeat(2))

    def subtract_outputs(self) -> None:
        """The head computes only the difference: z_0 is 0."""

    @classmethod
    def steps(cls, params: ProbeParams) -> int:
        return len(LOGIT_VARIANCES)

    @classmethod
    def path(cls, train: TrainingRows, params: ProbeParams) -> Iterator[TrainingStep]:
        probe = cls.of(train.states[0].shape[1], params)
        probe.fit_preprocessing(train)
        fitted = list(probe._fits(train))
        for penalty, train_loss, weight, bias in fitted:
            with torch.no_grad():
                probe.head.weight.copy_(weight)
                probe.head.bias.copy_(bias)
            yield TrainingStep(penalty, train_loss, probe)

    def _fits(self, train: TrainingRows) -> Iterator[tuple[float, float, Tensor, Tensor]]:
        """C, training loss, weights (1, 2 d) and bias (1,) of every penalty; features are held once, or lie on disk."""
        features = self._features(train)
        scaler = _standardise(features)
        weight = (train.weight / train.weight.mean()).numpy()
        model = LogisticRegression(warm_start=True, max_iter=1000, tol=1e-5)
        for penalty in (LOGIT_VARIANCES / features.shape[1]).tolist():
            model.set_params(C=penalty)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # more steps improve nothing
                model.fit(features, train.correct.numpy(), sample_weight=weight)
            coefficients = model.coef_ / scaler.scale_
            bias = model.intercept_ - coefficients @ scaler.mean_
            logits = torch.from_numpy(model.decision_function(features))
            loss = nn.functional.binary_cross_entropy_with_logits(logits, train.correct.to(logits), train.weight)
            yield penalty, float(loss / train.weight.mean()), torch.from_numpy(coefficients), torch.from_numpy(bias)

    def _features(self, train: TrainingRows) -> np.ndarray:
        """[mean, last] of all rows, float32 (rows, 2 d): in memory, or in a nameless file where it is too much."""
        shape = (len(train), 2 * self.width)
        if shape[0] * shape[1] <= MEMORY_VALUES:
            features = np.empty(shape, np.float32)
        else:
            with tempfile.TemporaryFile() as file:  # its map outlives it
                features = np.memmap(file, np.float32, "w+", shape=shape)
        at = 0
        with torch.inference_mode():
            for batch in iter_batches(train.states, POOLED):
                features[at : at + len(batch)] = self.pooled(*pad(batch)).numpy()
                at += len(batch)
        return features


def _standardise(features: np.ndarray) -> StandardScaler:
    """Standardise the columns of `features` in place, block by block."""
    scaler = StandardScaler(copy=False)
    blocks = [features[at : at + POOLED] for at in range(0, len(features), POOLED)]
    for block in blocks:
        scaler.partial_fit(block)
    for block in blocks:
        block[:] = scaler.transform(block)
    return scaler
