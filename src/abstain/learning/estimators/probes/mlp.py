"""A multilayer perceptron on the mean of the answer's states: the feedforward probe of Huang et al., section 4.2.

They observe that it "fails to capture the temporal dependencies": it sees every token, but not their order.
"""

from __future__ import annotations

from typing import Self

from torch import Tensor, nn

from abstain.config.params import ProbeParams
from abstain.learning.estimators.probes.base import masked_mean
from abstain.learning.estimators.probes.descent import DescentProbe, Dropout, merge_logits


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

    def forward(self, states: Tensor, lengths: Tensor | None) -> Tensor:
        pooled = self.drop_inputs(self.standardize(masked_mean(states, lengths)))
        return self.head(self.drop_hidden(self.hidden(pooled).relu()))  # type: ignore[no-any-return]

    def fold_scale_into_weights(self) -> None:
        self.hidden.weight.div_(self.scale)

    def merge_logits(self) -> None:
        merge_logits(self.head)
