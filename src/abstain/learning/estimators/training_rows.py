"""Labelled rows of ragged states, and how they become padded batches.

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
"""Numbers in a padded batch that is only scored: 4 MiB, which a processor's cache can hold."""
MEMORY_VALUES = 2**25
"""Numbers in states that are kept in memory for the time of a fit: 128 MiB."""


@dataclass(frozen=True)
class TrainingRows:
    """Labelled answers: states, each float32 (L + 1, d), in memory or read on access; `correct` 0/1 and
    `weight` >= 0, both (rows,)."""

    states: Sequence[Tensor]
    correct: Tensor
    weight: Tensor

    def __len__(self) -> int:
        return len(self.states)

    @cached_property
    def lengths(self) -> Tensor:
        """Tokens of every row, int64 (rows,). A table of states knows them; of other states each is read once."""
        known: Any = getattr(self.states, "lengths", None)
        return torch.as_tensor([len(row) for row in self.states] if known is None else known, dtype=torch.int64)

    def subset(self, index: Tensor) -> TrainingRows:
        """The rows of `index` as rows of their own; no states are read."""
        return TrainingRows(_View(self.states, index, self.lengths[index]), self.correct[index], self.weight[index])

    def load_into_memory(self) -> TrainingRows:
        """These rows with their states in memory, where there are no more than `MEMORY_VALUES` numbers in them."""
        states: list[Tensor] = []
        values = 0
        for row in self.states:
            values += row.numel()
            if values > MEMORY_VALUES:
                return self
            states.append(row)
        return TrainingRows(states, self.correct, self.weight)


def make_training_rows(rows: pd.DataFrame, read_states: Callable[[pd.Index], Sequence[Tensor]]) -> TrainingRows:
    """`rows` of the data set (`correct`, `weight`) with the states that `read_states` gives of them, in their order."""
    correct, weight = rows["correct"].to_numpy(int), rows["weight"].to_numpy("float32")
    return TrainingRows(read_states(rows.index), torch.tensor(correct), torch.tensor(weight))


class _View(Sequence[Tensor]):
    """Some of a sequence's states, in an order of their own."""

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
    """Ragged rows as (B, T, d), zeros after the end, and lengths, int64 (B,). One row alone is not copied."""
    lengths = torch.tensor([len(row) for row in rows])
    if len(rows) == 1:
        return rows[0].unsqueeze(0), lengths
    return nn.utils.rnn.pad_sequence(list(rows), batch_first=True), lengths


def iter_batches(rows: Iterable[Tensor], most: int) -> Iterator[list[Tensor]]:
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
