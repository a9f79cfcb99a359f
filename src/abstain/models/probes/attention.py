"""Attention pooling: learned queries decide which of the answer's tokens are looked at, each in a head of its own.

The classifier is linear, so it is applied to every token before pooling instead of to the pooled states after it: the
same logits, and d x 3 heads products a token are all there is to compute.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from abstain.models.probes.base import valid
from abstain.models.probes.descent import DescentProbe, DimensionDropout
from abstain.params import ProbeParams


class AttentionProbe(DescentProbe):
    """Multi-head attention pooling with a linear classification head.

    Args:
        d: width of the base model's states.
        heads: learned queries.
        dropout: on the standardised states, in training only.
    """

    def __init__(self, d: int, heads: int, dropout: float) -> None:
        super().__init__(d, heads=heads, dropout=dropout)
        self.dropout = DimensionDropout(dropout)
        self.queries_and_values = nn.Linear(d, 3 * heads)

    @classmethod
    def of(cls, d: int, params: ProbeParams) -> Self:
        return cls(d, params.heads, params.dropout)

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        standard = self.dropout(self.standardised(states))
        inside = valid(states, lengths).unsqueeze(2)
        scores, wrong, right = self.queries_and_values(standard).chunk(3, 2)
        attention = scores.masked_fill(~inside, float("-inf")).softmax(1)
        return torch.stack([(attention * values).sum((1, 2)) for values in (wrong, right)], 1)

    def divide_weights(self) -> None:
        self.queries_and_values.weight.div_(self.scale)
