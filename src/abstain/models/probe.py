"""The activation probe: an LSTM over the answer's hidden states with a 2-way head (paper, section 3.1, eq. 6).

Two decisions:

* Rows are padded at the end and the last *valid* output is gathered by `lengths`. A unidirectional LSTM's
  output at a step does not depend on later ones, so this equals a packed sequence, and unlike packing it
  exports to ONNX: the module that is trained is the module that is served.
* States are standardised inside the module by the training set's mean and deviation: a few dimensions of a
  residual stream are orders of magnitude larger than the rest, and a served model must not need a side file.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Probe(nn.Module):
    """LSTM over S_in with a classification head.

    Args:
        d: width of the base model's states.
        hidden: width of the LSTM.
        dropout: on the standardised states and on the LSTM's last output, in training only.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, d: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(d))
        self.register_buffer("scale", torch.ones(d))
        self.dropout = nn.Dropout(dropout)
        self.lstm = nn.LSTM(d, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 2)

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Logits z, float32 (B, 2), of `states`, float32 (B, T, d), of which `lengths`, int64 (B,), are valid."""
        outputs, _ = self.lstm(self.dropout((states - self.mean) / self.scale))
        last = (lengths - 1).reshape(-1, 1, 1).expand(-1, 1, outputs.shape[2])
        return self.head(self.dropout(outputs.gather(1, last).squeeze(1)))  # type: ignore[no-any-return]

    def standardise_by(self, rows: Sequence[Tensor]) -> None:
        """Take mean and deviation over all tokens of `rows`, each (L + 1, d)."""
        tokens = torch.cat(list(rows)).double()
        self.mean.copy_(tokens.mean(0))
        self.scale.copy_(tokens.std(0).clamp_min(1e-6))


def confidence(logits: Tensor) -> Tensor:
    """c = softmax(z)_1, the probability of a correct answer, (B,) (eq. 6)."""
    return logits.softmax(-1)[:, 1]


def pad(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Ragged rows as (B, T, d), zeros after the end, and lengths (B,)."""
    lengths = torch.tensor([len(row) for row in rows])
    return nn.utils.rnn.pad_sequence(list(rows), batch_first=True), lengths
