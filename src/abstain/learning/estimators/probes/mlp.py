"""A multilayer perceptron on the mean of the answer's states: the feedforward probe of Huang et al., section 4.2.

They observe that it "fails to capture the temporal dependencies": it sees every token, but not their order.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from abstain.config.params import ProbeParams
from abstain.learning.estimators.probes.base import ServingGraph, masked_mean
from abstain.learning.estimators.probes.descent import DescentProbe, Dropout


class MLPProbe(DescentProbe):
    """One hidden layer on the mean state: z = W_2 relu(W_1 mean_t s_t + b_1) + b_2, with the standardized states s_t.

    Args:
        d: Width of the base model's states.
        hidden: Width of the hidden layer.
        dropout: Dropout probability of the mean state and of the hidden layer, in training only.
    """

    def __init__(self, d: int, hidden: int, dropout: float) -> None:
        super().__init__(d, hidden=hidden, dropout=dropout)
        self.drop_inputs = Dropout(dropout)
        self.hidden = nn.Linear(d, hidden)
        self.drop_hidden = Dropout(dropout)
        self.head = nn.Linear(hidden, 2)

    @classmethod
    def from_params(cls, d: int, params: ProbeParams) -> Self:
        return cls(d, params.hidden, params.dropout)

    @classmethod
    def describe(cls, params: ProbeParams) -> str:
        return f"MLP({params.hidden}) on the mean state, {cls.describe_training(params)}"

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        pooled = self.drop_inputs(self.standardize(masked_mean(states, lengths)))
        return self.head(self.drop_hidden(self.hidden(pooled).relu()))  # type: ignore[no-any-return]

    def to_graph(self) -> ServingGraph:
        nodes = """
            mean_state = ReduceMean (states, time_axis)
            centred = Sub (mean_state, mean)
            hidden = Gemm <transB = 1> (centred, hidden_weight, hidden_bias)
            active = Relu (hidden)
            logit = Gemm <transB = 1> (active, head_weight, head_bias)
        """
        constants = {
            "time_axis": torch.tensor([0]),
            "mean": self.mean,
            "hidden_weight": self.hidden.weight / self.scale,
            "hidden_bias": self.hidden.bias,
            "head_weight": self.head.weight.diff(dim=0),
            "head_bias": self.head.bias.diff(dim=0),
        }
        return ServingGraph(nodes, constants)
