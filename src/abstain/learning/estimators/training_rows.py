"""Labelled rows of ragged states, and their padded batches.

States are a sequence of tensors in memory or on disk (`StateTable`): a reader holds one batch, and states that fit into
`MEMORY_VALUES` are read once instead of once an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    import pandas as pd

BATCH_VALUES = 2**20
"""Largest number of values in a padded evaluation batch: 4 MiB, which fits into a processor's cache."""
MEMORY_VALUES = 2**25
"""Largest number of values in states that are kept in memory during a fit: 128 MiB."""


@dataclass(frozen=True)
class TrainingRows:
    """Labelled answers.

    Attributes:
        states: Ragged states, each float32 (L + 1, d), in memory or read on access.
        correct: int64 (rows,) labels, 0 or 1.
        weight: float32 (rows,) training weights >= 0.
    """

    states: Sequence[Tensor]
    correct: Tensor
    weight: Tensor

    def __len__(self) -> int:
        return len(self.states)

    @cached_property
    def lengths(self) -> Tensor:
        """The number of tokens of each row, int64 (rows,). A table of states knows them; other states are read once."""
        table_lengths: Any = getattr(self.states, "lengths", None)
        return torch.as_tensor(
            [len(row) for row in self.states] if table_lengths is None else table_lengths, dtype=torch.int64
        )

    def subset(self, index: Tensor) -> TrainingRows:
        """Select rows without reading their states.

        Args:
            index: int64 (selected,) row indices.

        Returns:
            The selected rows in the order of `index`.
        """
        return TrainingRows(
            _StatesView(self.states, index, self.lengths[index]), self.correct[index], self.weight[index]
        )

    def load_into_memory(self) -> TrainingRows:
        """Read the states into memory if they have at most `MEMORY_VALUES` values.

        Returns:
            The rows with states in memory, or the same rows.
        """
        states: list[Tensor] = []
        values = 0
        for row in self.states:
            values += row.numel()
            if values > MEMORY_VALUES:
                return self
            states.append(row)
        return TrainingRows(states, self.correct, self.weight)


def make_training_rows(rows: pd.DataFrame, read_states: Callable[[pd.Index], Sequence[Tensor]]) -> TrainingRows:
    """Combine rows of the data set with their states.

    Args:
        rows: Rows of the data set, with `correct` and `weight`.
        read_states: Returns the states of an index, in its order.

    Returns:
        The labelled rows.
    """
    correct, weight = rows["correct"].to_numpy(int), rows["weight"].to_numpy("float32")
    return TrainingRows(read_states(rows.index), torch.tensor(correct), torch.tensor(weight))


class _StatesView(Sequence[Tensor]):
    """A selection of a sequence of states."""

    def __init__(self, states: Sequence[Tensor], index: Tensor, lengths: Tensor) -> None:
        self._states, self._index, self.lengths = states, index.tolist(), lengths

    def __len__(self) -> int:
        return len(self._index)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> list[Tensor]: ...
    def __getitem__(self, index: int | slice) -> Tensor | list[Tensor]:
        if isinstance(index, slice):
            return [self._states[i] for i in self._index[index]]
        row: Tensor = self._states[self._index[index]]
        return row


def pad(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Pad ragged rows with zeros at the end. A single row is not copied.

    Args:
        rows: B tensors, each (L_b, d).

    Returns:
        The padded rows (B, T, d) with T = max L_b, and the lengths, int64 (B,).
    """
    lengths = torch.tensor([len(row) for row in rows])
    if len(rows) == 1:
        return rows[0].unsqueeze(0), lengths
    return nn.utils.rnn.pad_sequence(list(rows), batch_first=True), lengths


def iter_batches(rows: Iterable[Tensor], max_rows: int) -> Iterator[list[Tensor]]:
    """Split ragged rows into batches, in their order.

    Args:
        rows: Tensors, each (L, d).
        max_rows: Largest number of rows in a batch. A batch has fewer if it would exceed `BATCH_VALUES` values when
            padded.

    Yields:
        The rows of a batch.
    """
    batch: list[Tensor] = []
    max_values = 0
    for row in rows:
        max_values = max(max_values, row.numel())
        if batch and (len(batch) == max_rows or max_values * (len(batch) + 1) > BATCH_VALUES):
            yield batch
            batch, max_values = [], row.numel()
        batch.append(row)
    if batch:
        yield batch
