"""The probe of Huang et al.: an LSTM over the answer's hidden states with a 2-way head (section 3.1, eq. 6).

The last *valid* output is gathered by length. A unidirectional LSTM's output at a step does not depend on later ones,
so this equals a packed sequence.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from abstain.config.params import ProbeParams
from abstain.learning.estimators.probes.base import ServingGraph, masked_last
from abstain.learning.estimators.probes.descent import DescentProbe, DimensionDropout, Dropout


class LSTMProbe(DescentProbe):
    """LSTM over S_in with a classification head: z = W h_last + b (eq. 6).

    Args:
        d: Width of the base model's states.
        hidden: Width of the LSTM.
        dropout: Dropout probability of the standardized states and of the LSTM's last output, in training only.
    """

    def __init__(self, d: int, hidden: int, dropout: float) -> None:
        super().__init__(d, hidden=hidden, dropout=dropout)
        self.reader = LSTMHead(d, hidden, dropout)

    @classmethod
    def from_params(cls, d: int, params: ProbeParams) -> Self:
        return cls(d, params.hidden, params.dropout)

    @classmethod
    def describe(cls, params: ProbeParams) -> str:
        return f"LSTM({params.hidden}), {cls.describe_training(params)}"

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        return self.reader(self.standardize(states), lengths)  # type: ignore[no-any-return]

    def to_graph(self) -> ServingGraph:
        nodes, constants = self.reader.to_graph(1 / self.scale)
        return ServingGraph(f"sequence = Sub (states, mean)\n{nodes}", {"mean": self.mean, **constants})


class LSTMHead(nn.Module):
    """The LSTM and its classification head, over sequences of any kind.

    Args:
        inputs: Width of the sequences.
        hidden: Width of the LSTM.
        dropout: Dropout probability of the inputs and of the last output, in training only.
    """

    def __init__(self, inputs: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.drop_inputs = DimensionDropout(dropout)
        self.lstm = nn.LSTM(inputs, hidden)
        self.drop_output = Dropout(dropout)
        self.head = nn.Linear(hidden, 2)

    def forward(self, sequences: Tensor, lengths: Tensor) -> Tensor:
        """Compute the logits.

        Args:
            sequences: (B, T, inputs), padded at the end.
            lengths: int64 (B,) valid steps of each row.

        Returns:
            (B, 2).
        """
        outputs, _ = self.lstm(self.drop_inputs(sequences).movedim(1, 0))
        return self.head(self.drop_output(masked_last(outputs.movedim(0, 1), lengths)))  # type: ignore[no-any-return]

    def to_graph(self, input_scale: Tensor | float = 1.0) -> ServingGraph:
        """Make the graph from `sequence` (steps, inputs) to `logit` (1, 1).

        Args:
            input_scale: (inputs,) factors of the inputs, which the weights take over.

        Returns:
            Its nodes and constants.
        """
        nodes = f"""
            steps = Unsqueeze (sequence, batch_axis)
            outputs, final = LSTM <hidden_size = {self.lstm.hidden_size}> (steps, inputs, recurrence, biases)
            output = Squeeze (final, direction_axis)
            logit = Gemm <transB = 1> (output, head_weight, head_bias)
        """
        inputs, recurrence, input_bias, recurrent_bias = (_reorder_gates(weight) for weight in self.lstm.parameters())
        constants = {
            "batch_axis": torch.tensor([1]),
            "direction_axis": torch.tensor([0]),
            "inputs": (inputs * input_scale).unsqueeze(0),
            "recurrence": recurrence.unsqueeze(0),
            "biases": torch.cat([input_bias, recurrent_bias]).unsqueeze(0),
            "head_weight": self.head.weight.diff(dim=0),
            "head_bias": self.head.bias.diff(dim=0),
        }
        return ServingGraph(nodes, constants)


def _reorder_gates(weight: Tensor) -> Tensor:
    """Order the rows of the gates as ONNX does, (input, output, forget, cell); torch has the output gate last."""
    input_gate, forget_gate, cell, output_gate = weight.chunk(4)
    return torch.cat([input_gate, output_gate, forget_gate, cell])
