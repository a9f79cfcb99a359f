"""The LSTM of Huang et al. on compressed states: on the principal components of the training tokens.

Notes:

* The components are those of about `SAMPLE_TOKENS` tokens of evenly spaced rows: they are as good, and memory and time
  depend only on the width of the states.
* Components are scaled to unit variance: otherwise the first ones would dominate.
"""

from __future__ import annotations

import math
from typing import Self

import torch
from sklearn.utils.extmath import randomized_svd
from torch import Tensor

from abstain.config.params import ProbeParams
from abstain.learning.estimators.probes.base import ServingGraph
from abstain.learning.estimators.probes.descent import DescentProbe
from abstain.learning.estimators.probes.lstm import LSTMHead
from abstain.learning.estimators.training_rows import TrainingRows, iter_batches

COMPONENTS = 64
SAMPLE_TOKENS = 2**14
"""Approximate number of tokens in the covariance."""
BATCH_ROWS = 64
"""Number of rows that are read at once."""


class PCAProbe(DescentProbe):
    """LSTM over the principal components of S_in.

    Args:
        d: Width of the base model's states.
        components: Number of components, at most d.
        hidden: Width of the LSTM.
        dropout: Dropout probability of the components and of the LSTM's last output, in training only.
    """

    projection: Tensor

    def __init__(self, d: int, components: int, hidden: int, dropout: float) -> None:
        super().__init__(d, components=components, hidden=hidden, dropout=dropout)
        self.register_buffer("projection", torch.zeros(d, components))
        self.reader = LSTMHead(components, hidden, dropout)

    @classmethod
    def from_params(cls, d: int, params: ProbeParams) -> Self:
        return cls(d, min(COMPONENTS, d), params.hidden, params.dropout)

    @classmethod
    def describe(cls, params: ProbeParams) -> str:
        return f"LSTM({params.hidden}) on {COMPONENTS} principal components, {cls.describe_training(params)}"

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        return self.reader(self.standardize(states) @ self.projection, lengths)  # type: ignore[no-any-return]

    def to_graph(self) -> ServingGraph:
        nodes, constants = self.reader.to_graph()
        constants |= {"mean": self.mean, "projection": self.projection / self.scale.unsqueeze(1)}
        return ServingGraph(
            f"""
            centred = Sub (states, mean)
            sequence = MatMul (centred, projection)
            {nodes}
            """,
            constants,
        )

    def fit_preprocessing(self, train: TrainingRows) -> None:
        """Fit mean and standard deviation, then the components of largest variance of the standardized training tokens.

        Args:
            train: The training rows.
        """
        super().fit_preprocessing(train)
        spacing = math.ceil(int(train.lengths.sum()) / SAMPLE_TOKENS)
        sample = train.subset(torch.arange(0, len(train), spacing))
        covariance = torch.zeros(self.width, self.width)
        for batch in iter_batches(sample.states, BATCH_ROWS):
            standardized = self.standardize(torch.cat(batch))
            covariance.addmm_(standardized.T, standardized)
        covariance /= int(sample.lengths.sum())
        _, variances, vectors = randomized_svd(
            covariance.numpy(), self.projection.shape[1], power_iteration_normalizer="QR", random_state=0
        )
        # With fewer tokens than components, the other components have no variance and must not be scaled up.
        scale = torch.from_numpy(variances).clamp_min(1e-6).rsqrt()
        self.projection.copy_(torch.from_numpy(vectors.T) * scale)
