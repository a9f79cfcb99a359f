"""The paper's probe: an LSTM over the answer's hidden states with a 2-way head (section 3.1, eq. 6).

The last *valid* output is gathered by length. A unidirectional LSTM's output at a step does not depend on later ones,
so this equals a packed sequence. Of an answer alone it is the final state.
"""

from __future__ import annotations

from typing import Self

from torch import Tensor, nn

from abstain.config.params import ProbeParams
from abstain.learning.estimators.probes.base import masked_last
from abstain.learning.estimators.probes.descent import DescentProbe, DimensionDropout, Dropout


class LSTMProbe(DescentProbe):
    """LSTM over S_in with a classification head.

    Args:
        d: width of the base model's states.
        hidden: width of the LSTM.
        dropout: on the standardised states and on the LSTM's last output, in training only.
    """

    def __init__(self, d: int, hidden: int, dropout: float) -> None:
        super().__init__(d, hidden=hidden, dropout=dropout)
        self.reader = LSTMHead(d, hidden, dropout)

    @classmethod
    def of(cls, d: int, params: ProbeParams) -> Self:
        return cls(d, params.hidden, params.dropout)

    @classmethod
    def description(cls, params: ProbeParams) -> str:
        return f"LSTM({params.hidden}), {cls.describe_training(params)}"

    def forward(self, states: Tensor, lengths: Tensor | None) -> Tensor:
        return self.reader(self.standardised(states), lengths)  # type: ignore[no-any-return]

    def divide_weights(self) -> None:
        self.reader.lstm.get_parameter("weight_ih_l0").div_(self.scale)

    def subtract_outputs(self) -> None:
        self.reader.subtract_outputs()


class LSTMHead(nn.Module):
    """The LSTM and its head, over sequences of any kind: (B, T, inputs) and lengths (B,) to logits (B, 2).

    An answer alone, (T, inputs) and None, has logits (1, 2).
    """

    def __init__(self, inputs: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.drop_inputs = DimensionDropout(dropout)
        self.lstm = nn.LSTM(inputs, hidden)
        self.drop_output = Dropout(dropout)
        self.head = nn.Linear(hidden, 2)

    def forward(self, sequences: Tensor, lengths: Tensor | None) -> Tensor:
        # Time goes first, as in ONNX, where an answer alone has it anyway: its graph transposes nothing.
        outputs, (final, _) = self.lstm(self.drop_inputs(sequences).movedim(-2, 0))
        output = final if lengths is None else masked_last(outputs.movedim(0, 1), lengths)
        return self.head(self.drop_output(output))  # type: ignore[no-any-return]

    def subtract_outputs(self) -> None:
        """Put weights of z_1 - z_0 for the head's own."""
        head = self.head
        head.weight, head.bias = (nn.Parameter(rows.diff(dim=0)) for rows in (head.weight, head.bias))
