"""Permutations of a window's rows and those before it which keep answers about one document together.

Answers about one document resemble each other. Documents that were asked about before and in the window are compared
with themselves: their rows are permuted within the document. Documents of the window that are new are compared, as
wholes, with all documents before it; each counts by as many of its rows as a new one typically has, so that they vary
alike. `scipy.stats.permutation_test` would permute all rows, or all documents, alike: the one raises false alarms where
documents are new, the other sees nothing where they recur, as the same document is then on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

PERMUTATIONS = 499
"""The least p-value is one over this and one."""


@dataclass(frozen=True)
class GroupedSamples:
    """Rows before a window and in it, in this order, and how their labels may be permuted.

    group: (rows,) index of the document. in_window: (rows,) bool. known: (rows,) bool, of documents of both sides.
    drawn: indices of the rows that stand for their documents where new ones are compared; none where no document is
    new.
    """

    group: np.ndarray
    in_window: np.ndarray
    in_both: np.ndarray
    group_representatives: np.ndarray

    @classmethod
    def from_groups(
        cls, reference_groups: np.ndarray, window_groups: np.ndarray, generator: np.random.Generator
    ) -> GroupedSamples:
        """Of document ids (n,) before the window and (m,) in it."""
        names, group = np.unique(np.concatenate([reference_groups, window_groups]), return_inverse=True)
        in_window = np.arange(len(group)) >= len(reference_groups)
        before, now = (np.bincount(group[side], minlength=len(names)) for side in (~in_window, in_window))
        new = now[before == 0]
        drawn = np.zeros(0, int)
        if len(new) and before.any():
            order = generator.permutation(np.flatnonzero(~in_window | (before == 0)[group]))
            order = order[np.argsort(group[order], kind="stable")]
            drawn = order[_rank(group[order]) < max(1, int(np.median(new)))]
        return cls(group, in_window, ((before > 0) & (now > 0))[group], drawn)

    @property
    def is_testable(self) -> bool:
        """Whether there is anything that a permutation could change."""
        return bool(self.in_both.any() or len(self.group_representatives))

    def center_within_groups(self, values: np.ndarray) -> np.ndarray:
        """`values` (rows, k) of documents of both sides, less their document's mean; 0 for other rows."""
        count = np.bincount(self.group)
        sums = np.stack([np.bincount(self.group, column) for column in values.T], axis=1)
        return np.where(self.in_both[:, None], values - (sums / count[:, None])[self.group], 0.0)

    def compute_group_means(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The mean of `values` (rows, k) over a document's drawn rows, (documents, k), and whether it is new."""
        _, group = np.unique(self.group[self.group_representatives], return_inverse=True)
        count = np.bincount(group)
        means = [np.bincount(group, column[self.group_representatives]) / count for column in values.T]
        return np.stack(means, axis=1), np.bincount(group, self.in_window[self.group_representatives]) > 0

    def permute_rows(self, generator: np.random.Generator) -> np.ndarray:
        """The true labels of the known rows and then `PERMUTATIONS` permuted ones, bool (1 + PERMUTATIONS, rows)."""
        rows = np.flatnonzero(self.in_both)
        rows = rows[np.argsort(self.group[rows], kind="stable")]
        keys = self.group[rows] + generator.random((PERMUTATIONS, len(rows)))
        labels = np.zeros((1 + PERMUTATIONS, len(self.group)), bool)
        labels[0] = self.in_window & self.in_both
        labels[1:, rows] = self.in_window[rows[np.argsort(keys, axis=1)]]
        return labels


def permute_labels(labels: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """`labels` (units,) and then `PERMUTATIONS` permutations of them, bool (1 + PERMUTATIONS, units)."""
    order = np.argsort(generator.random((PERMUTATIONS, len(labels))), axis=1)
    return np.concatenate([labels[None], labels[order]])


def compute_p_value(statistics: np.ndarray) -> float:
    """Of the most extreme of several statistics, (1 + permutations, statistics), those of the true labels first.

    Each is measured in standard deviations of its permutations; a larger one differs more.
    """
    spread = statistics.std(axis=0)
    scaled = (statistics - statistics.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    most = scaled.max(axis=1)
    return float((most >= most[0] - 1e-9).mean())


def _rank(sorted_group: np.ndarray) -> np.ndarray:
    """The place of each row within its group, from 0; (rows,)."""
    first = np.flatnonzero(np.diff(sorted_group, prepend=-1))
    return np.arange(len(sorted_group)) - np.repeat(first, np.diff([*first, len(sorted_group)]))
