"""The simplest probe: logistic regression on the mean of the answer's states and on the last one.

Notes:

* It is fitted by scikit-learn; its path consists of ever weaker penalties. With two thousand labels, the strength of
  the penalty matters more than the architecture.
* The standardization of the fit is folded into the weights. An exported probe pools states before it centres them: it
  does arithmetic on only two states per answer.
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
from abstain.learning.estimators.probes.base import Probe, ServingGraph, TrainingStep, masked_last, masked_mean
from abstain.learning.estimators.training_rows import MEMORY_VALUES, TrainingRows, iter_batches, pad

LOGIT_VARIANCES = np.logspace(-1.5, 2.5, 9)
"""Variances of the logits that the penalties allow by themselves.

The inverse strength C is this variance divided by the number of features, so that one value suits narrow and wide
states.
"""
POOL_ROWS = 64
"""Number of rows that are pooled at once."""


class LinearProbe(Probe):
    """Logistic regression on [mean state, last state].

    z_1 - z_0 = w . [mean_t s_t, s_last] + b, with the standardized states s_t; z_0 is 0.

    Args:
        d: Width of the base model's states.
    """

    def __init__(self, d: int) -> None:
        super().__init__(d)
        self.head = nn.Linear(2 * d, 1)

    @classmethod
    def from_params(cls, d: int, params: ProbeParams) -> Self:
        return cls(d)

    @classmethod
    def describe(cls, params: ProbeParams) -> str:
        return "logistic regression on the mean and the last state"

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        difference: Tensor = self.head(self.pool_states(states, lengths))
        return torch.cat([torch.zeros_like(difference), difference], 1)

    def pool_states(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Pool the standardized states.

        Args:
            states: (B, T, d).
            lengths: int64 (B,) valid tokens of each row.

        Returns:
            [mean, last], (B, 2 d).
        """
        return torch.cat([self.standardize(pool(states, lengths)) for pool in (masked_mean, masked_last)], 1)

    def to_graph(self) -> ServingGraph:
        nodes = """
            mean_state = ReduceMean (states, time_axis)
            last_state = Gather (states, last)
            pooled = Concat <axis = 1> (mean_state, last_state)
            centred = Sub (pooled, mean)
            logit = Gemm <transB = 1> (centred, weight, bias)
        """
        constants = {
            "time_axis": torch.tensor([0]),
            "last": torch.tensor([-1]),
            "mean": self.mean.repeat(2),
            "weight": self.head.weight / self.scale.repeat(2),
            "bias": self.head.bias,
        }
        return ServingGraph(nodes, constants)

    @classmethod
    def count_steps(cls, params: ProbeParams) -> int:
        return len(LOGIT_VARIANCES)

    @classmethod
    def fit_path(cls, train: TrainingRows, params: ProbeParams) -> Iterator[TrainingStep]:
        probe = cls.from_params(train.states[0].shape[1], params)
        probe.fit_preprocessing(train)
        fits = list(probe._fit_penalties(train))
        for penalty, train_loss, weight, bias in fits:
            with torch.no_grad():
                probe.head.weight.copy_(weight)
                probe.head.bias.copy_(bias)
            yield TrainingStep(penalty, train_loss, probe)

    def _fit_penalties(self, train: TrainingRows) -> Iterator[tuple[float, float, Tensor, Tensor]]:
        """Yield C, training loss, weights (1, 2 d) and bias (1,) of every penalty.

        The features are kept once, in memory or on disk.
        """
        features = self._compute_features(train)
        scaler = _standardize_in_place(features)
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

    def _compute_features(self, train: TrainingRows) -> np.ndarray:
        """Return [mean, last] of all rows, float32 (rows, 2 d): in memory, or in an unnamed file if it is too large."""
        shape = (len(train), 2 * self.width)
        if shape[0] * shape[1] <= MEMORY_VALUES:
            features = np.empty(shape, np.float32)
        else:
            with tempfile.TemporaryFile() as file:  # the memory map outlives it
                features = np.memmap(file, np.float32, "w+", shape=shape)
        start = 0
        with torch.inference_mode():
            for batch in iter_batches(train.states, POOL_ROWS):
                features[start : start + len(batch)] = self.pool_states(*pad(batch)).numpy()
                start += len(batch)
        return features


def _standardize_in_place(features: np.ndarray) -> StandardScaler:
    """Standardize the columns of `features` in place, block by block."""
    scaler = StandardScaler(copy=False)
    blocks = [features[start : start + POOL_ROWS] for start in range(0, len(features), POOL_ROWS)]
    for block in blocks:
        scaler.partial_fit(block)
    for block in blocks:
        block[:] = scaler.transform(block)
    return scaler
