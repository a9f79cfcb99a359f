"""The probe of Huang et al.: an LSTM over the answer's hidden states with a 2-way head (section 3.1, eq. 6).

The last *valid* output is gathered by length. A unidirectional LSTM's output at a step does not depend on later ones,
so this equals a packed sequence. For a single answer it is the final state.
"""

from __future__ import annotations

from typing import Self

from torch import Tensor, nn

from abstain.config.params import ProbeParams
from abstain.learning.estimators.probes.base import masked_last
from abstain.learning.estimators.probes.descent import DescentProbe, DimensionDropout, Dropout, merge_logits


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

    def forward(self, states: Tensor, lengths: Tensor | None) -> Tensor:
        return self.reader(self.standardize(states), lengths)  # type: ignore[no-any-return]

    def fold_scale_into_weights(self) -> None:
        self.reader.lstm.get_parameter("weight_ih_l0").div_(self.scale)

    def merge_logits(self) -> None:
        self.reader.merge_logits()


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

    def forward(self, sequences: Tensor, lengths: Tensor | None) -> Tensor:
        """Compute the logits.

        Args:
            sequences: (B, T, inputs), padded at the end; (T, inputs) for a single answer.
            lengths: int64 (B,) valid steps of each row; None for a single answer.

        Returns:
            (B, 2), or (1, 2) for a single answer.
        """
        # Time is the first axis, as in ONNX and in a single answer: then the exported graph needs no transpose.
        outputs, (final, _) = self.lstm(self.drop_inputs(sequences).movedim(-2, 0))
        output = final if lengths is None else masked_last(outputs.movedim(0, 1), lengths)
        return self.head(self.drop_output(output))  # type: ignore[no-any-return]

    def merge_logits(self) -> None:
        """Replace the head's weights by those of z_1 - z_0."""
        merge_logits(self.head)
