"""The activation probe: an LSTM over the answer's hidden states with a 2-way head (paper, section 3.1, eq. 6).

Two decisions:

* Rows are padded at the end and the last *valid* output is gathered by `lengths`. A unidirectional LSTM's
  output at a step does not depend on later ones, so this equals a packed sequence, and unlike packing it
  exports to ONNX: the module that is trained is the module that is served.
* States are standardised inside the module by the training set's mean and deviation: a few dimensions of a
  residual stream are orders of magnitude larger than the rest, and a served model must not need a side file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

BATCH_VALUES = 2**26
"""Numbers in a padded batch that is only scored: 256 MiB, whatever the length of an answer and the width of a model."""


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

    def standardise_by(self, rows: Iterable[Tensor]) -> None:
        """Take mean and deviation over all tokens of `rows`, each (L + 1, d). One pass; one row in memory.

        Means and squared deviations of rows are merged in float64 (Chan, Golub and LeVeque 1979): a sum of squares
        would lose a deviation that is small against its mean.
        """
        tokens, mean, squares = 0, torch.zeros(()), torch.zeros(())
        for row in rows:
            states = row.to(torch.float64, copy=True)
            of_row = states.mean(0)
            states -= of_row
            apart, total = of_row - mean, tokens + len(row)
            mean = mean + apart * (len(row) / total)
            squares = squares + states.square_().sum(0) + apart.square() * (tokens * len(row) / total)
            tokens = total
        self.mean.copy_(mean)
        self.scale.copy_((squares / max(tokens - 1, 1)).sqrt().clamp_min(1e-6))


def confidence(logits: Tensor) -> Tensor:
    """c = softmax(z)_1, the probability of a correct answer, (B,) (eq. 6)."""
    return logits.softmax(-1)[:, 1]


def pad(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Ragged rows as (B, T, d), zeros after the end, and lengths (B,)."""
    lengths = torch.tensor([len(row) for row in rows])
    return nn.utils.rnn.pad_sequence(list(rows), batch_first=True), lengths


def batches(rows: Iterable[Tensor], most: int) -> Iterator[list[Tensor]]:
    """Ragged `rows` in order, `most` to a batch, or fewer where they would be more than `BATCH_VALUES` when padded."""
    batch: list[Tensor] = []
    longest = 0
    for row in rows:
        longest = max(longest, row.numel())
        if batch and (len(batch) == most or longest * (len(batch) + 1) > BATCH_VALUES):
            yield batch
            batch, longest = [], row.numel()
        batch.append(row)
    if batch:
        yield batch
