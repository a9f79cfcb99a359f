"""Attention pooling: each head has a learned query that weights the answer's tokens.

The classifier is linear, so it is applied to every token before pooling instead of to the pooled states: the logits are
the same, at a cost of d x 3 heads products per token.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from abstain.config.params import ProbeParams
from abstain.learning.estimators.probes.base import ServingGraph, masked_softmax
from abstain.learning.estimators.probes.descent import DescentProbe, DimensionDropout

HEADS = 4
"""Number of queries that pool the states."""


class AttentionProbe(DescentProbe):
    """Multi-head attention pooling with a linear classification head.

    z_k = sum_h sum_t softmax_t(q_h . s_t) (v_{h,k} . s_t + b_{h,k}), with the standardized states s_t and k in {0, 1}.

    Args:
        d: Width of the base model's states.
        heads: Number of learned queries.
        dropout: Probability of dropping a dimension of the standardized states, in training only.
    """

    def __init__(self, d: int, heads: int, dropout: float) -> None:
        super().__init__(d, heads=heads, dropout=dropout)
        self.heads = heads
        self.dropout = DimensionDropout(dropout)
        self.queries_and_values = nn.Linear(d, 3 * heads)

    @classmethod
    def from_params(cls, d: int, params: ProbeParams) -> Self:
        return cls(d, HEADS, params.dropout)

    @classmethod
    def describe(cls, params: ProbeParams) -> str:
        return f"attention pooling with {HEADS} heads, {cls.describe_training(params)}"

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        standardized = self.dropout(self.standardize(states))
        scores, *values = self.queries_and_values(standardized).split(self.heads, -1)
        attention = masked_softmax(scores, lengths)
        logits = torch.cat([(attention * class_values).sum((-2, -1), keepdim=True) for class_values in values], -1)
        return logits.squeeze(1)

    def to_graph(self) -> ServingGraph:
        nodes = """
            centred = Sub (states, mean)
            scores_and_values = Gemm <transB = 1> (centred, weight, bias)
            scores, values = Split <axis = 1, num_outputs = 2> (scores_and_values)
            attention = Softmax <axis = 0> (scores)
            attended = Mul (attention, values)
            logit = ReduceSum (attended, axes)
        """
        layer = self.queries_and_values
        chunks = (rows.chunk(3) for rows in (layer.weight / self.scale, layer.bias))
        weight, bias = (torch.cat([query, right - wrong]) for query, wrong, right in chunks)
        return ServingGraph(nodes, {"mean": self.mean, "weight": weight, "bias": bias, "axes": torch.tensor([0, 1])})
