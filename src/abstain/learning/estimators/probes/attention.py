"""Attention pooling: learned queries, one a head, weight the answer's tokens.

The classifier is linear, so it is applied to every token before pooling instead of to the pooled states after it: the
logits are the same, at a cost of d x 3 heads products a token.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from abstain.config.params import ProbeParams
from abstain.learning.estimators.probes.base import masked_softmax
from abstain.learning.estimators.probes.descent import DescentProbe, DimensionDropout

HEADS = 4
"""Queries that pool the states."""


class AttentionProbe(DescentProbe):
    """Multi-head attention pooling with a linear classification head.

    Args:
        d: width of the base model's states.
        heads: learned queries.
        dropout: on the standardised states, in training only.
    """

    def __init__(self, d: int, heads: int, dropout: float) -> None:
        super().__init__(d, heads=heads, dropout=dropout)
        self.heads = heads
        self.dropout = DimensionDropout(dropout)
        self.queries_and_values = nn.Linear(d, 3 * heads)

    @classmethod
    def of(cls, d: int, params: ProbeParams) -> Self:
        return cls(d, HEADS, params.dropout)

    @classmethod
    def description(cls, params: ProbeParams) -> str:
        return f"attention pooling with {HEADS} heads, {cls.describe_training(params)}"

    def forward(self, states: Tensor, lengths: Tensor | None) -> Tensor:
        standard = self.dropout(self.standardised(states))
        scores, *values = self.queries_and_values(standard).split(self.heads, -1)
        attention = masked_softmax(scores, lengths)
        logits = torch.cat([(attention * of_one).sum((-2, -1), keepdim=True) for of_one in values], -1)
        return logits.flatten(0, -2)  # of a batch (B, 1, 2) so far

    def divide_weights(self) -> None:
        self.queries_and_values.weight.div_(self.scale)

    def subtract_outputs(self) -> None:
        layer = self.queries_and_values
        parts = (rows.chunk(3) for rows in (layer.weight, layer.bias))
        layer.weight, layer.bias = (nn.Parameter(torch.cat([query, right - wrong])) for query, wrong, right in parts)
