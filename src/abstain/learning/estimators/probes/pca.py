"""The paper's LSTM on compressed states: on the principal components of the training tokens.

Notes:

* Of many tokens the components of `SAMPLED`, of evenly spaced rows, are found: as good, and memory and time depend on
  the width of the states alone.
* Components are scaled to unit variance: the first ones would drown the rest.
"""

from __future__ import annotations

import math
from typing import Self

import torch
from sklearn.utils.extmath import randomized_svd
from torch import Tensor

from abstain.config.params import ProbeParams
from abstain.learning.estimators.probes.descent import DescentProbe
from abstain.learning.estimators.probes.lstm import LSTMHead
from abstain.learning.estimators.training_rows import TrainingRows, iter_batches

COMPONENTS = 64
SAMPLED = 2**14
"""Tokens whose covariance is taken, about."""
SUMMED = 64
"""Rows that are read at once."""


class PCAProbe(DescentProbe):
    """LSTM over the principal components of S_in.

    Args:
        d: width of the base model's states.
        components: to which they are compressed, at most d.
        hidden: width of the LSTM.
        dropout: on the components and on the LSTM's last output, in training only.
    """

    projection: Tensor

    def __init__(self, d: int, components: int, hidden: int, dropout: float) -> None:
        super().__init__(d, components=components, hidden=hidden, dropout=dropout)
        self.register_buffer("projection", torch.zeros(d, components))
        self.reader = LSTMHead(components, hidden, dropout)

    @classmethod
    def of(cls, d: int, params: ProbeParams) -> Self:
        return cls(d, min(COMPONENTS, d), params.hidden, params.dropout)

    @classmethod
    def description(cls, params: ProbeParams) -> str:
        return f"LSTM({params.hidden}) on {COMPONENTS} principal components, {cls.describe_training(params)}"

    def forward(self, states: Tensor, lengths: Tensor | None) -> Tensor:
        return self.reader(self.standardised(states) @ self.projection, lengths)  # type: ignore[no-any-return]

    def divide_weights(self) -> None:
        self.projection.div_(self.scale.unsqueeze(1))

    def subtract_outputs(self) -> None:
        self.reader.subtract_outputs()

    def prepare(self, train: TrainingRows) -> None:
        """Mean and deviation, then the components with the largest variance of the standardised training tokens."""
        super().fit_preprocessing(train)
        spacing = math.ceil(int(train.lengths.sum()) / SAMPLED)
        sample = train.subset(torch.arange(0, len(train), spacing))
        covariance = torch.zeros(self.width, self.width)
        for batch in iter_batches(sample.states, SUMMED):
            standard = self.standardised(torch.cat(batch))
            covariance.addmm_(standard.T, standard)
        covariance /= int(sample.lengths.sum())
        _, variances, vectors = randomized_svd(
            covariance.numpy(), self.projection.shape[1], power_iteration_normalizer="QR", random_state=0
        )
        # Where there are fewer tokens than components, the rest have no variance, and must not be blown up.
        scale = torch.from_numpy(variances).clamp_min(1e-6).rsqrt()
        self.projection.copy_(torch.from_numpy(vectors.T) * scale)
