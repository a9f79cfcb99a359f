"""Permutations of rows before and in a window that keep answers of a group together.

Answers of a group (those about one document) resemble each other. A group that occurs before and in the window is
compared with itself: its rows are permuted within the group. Groups that are new in the window are compared, as a
whole, with all earlier groups. Each group counts with as many of its rows as a typical new group has, so that all vary
alike. `scipy.stats.permutation_test` would permute all rows, or all groups, alike: the former raises false alarms if
groups are new, the latter detects nothing if they recur, because the same group is then on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

N_PERMUTATIONS = 499
"""The smallest p-value is 1 / (1 + N_PERMUTATIONS)."""


@dataclass(frozen=True)
class GroupedSamples:
    """Rows before a window and in it, in this order, and how their labels may be permuted.

    Attributes:
        group: (rows,) index of the group.
        in_window: (rows,) bool.
        in_both: (rows,) bool, whether the group has rows on both sides.
        group_representatives: Indices of the rows that represent their groups if new groups are compared; empty if no
            group is new.
    """

    group: np.ndarray
    in_window: np.ndarray
    in_both: np.ndarray
    group_representatives: np.ndarray

    @classmethod
    def from_groups(
        cls, reference_groups: np.ndarray, window_groups: np.ndarray, generator: np.random.Generator
    ) -> GroupedSamples:
        """Build the samples from group ids.

        Args:
            reference_groups: (n,) group ids before the window.
            window_groups: (m,) group ids in the window.
            generator: Draws the representatives.

        Returns:
            The samples.
        """
        names, group = np.unique(np.concatenate([reference_groups, window_groups]), return_inverse=True)
        in_window = np.arange(len(group)) >= len(reference_groups)
        reference_counts, window_counts = (
            np.bincount(group[side], minlength=len(names)) for side in (~in_window, in_window)
        )
        new_group_sizes = window_counts[reference_counts == 0]
        representatives = np.zeros(0, int)
        if len(new_group_sizes) and reference_counts.any():
            order = generator.permutation(np.flatnonzero(~in_window | (reference_counts == 0)[group]))
            order = order[np.argsort(group[order], kind="stable")]
            representatives = order[_rank_within_groups(group[order]) < max(1, int(np.median(new_group_sizes)))]
        return cls(group, in_window, ((reference_counts > 0) & (window_counts > 0))[group], representatives)

    @property
    def is_testable(self) -> bool:
        """Whether there is anything that a permutation could change."""
        return bool(self.in_both.any() or len(self.group_representatives))

    def center_within_groups(self, values: np.ndarray) -> np.ndarray:
        """Subtract the mean of the group from rows of groups on both sides.

        Args:
            values: (rows, k).

        Returns:
            (rows, k); 0 for other rows.
        """
        count = np.bincount(self.group)
        sums = np.stack([np.bincount(self.group, column) for column in values.T], axis=1)
        return np.where(self.in_both[:, None], values - (sums / count[:, None])[self.group], 0.0)

    def compute_group_means(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Compute the mean over the representatives of each group.

        Args:
            values: (rows, k).

        Returns:
            (groups, k) means, and (groups,) bool, whether the group is new.
        """
        _, group = np.unique(self.group[self.group_representatives], return_inverse=True)
        count = np.bincount(group)
        means = [np.bincount(group, column[self.group_representatives]) / count for column in values.T]
        return np.stack(means, axis=1), np.bincount(group, self.in_window[self.group_representatives]) > 0

    def permute_rows(self, generator: np.random.Generator) -> np.ndarray:
        """Permute the labels of rows within groups on both sides.

        Args:
            generator: Draws the permutations.

        Returns:
            (1 + N_PERMUTATIONS, rows) bool; the first row has the true labels.
        """
        rows = np.flatnonzero(self.in_both)
        rows = rows[np.argsort(self.group[rows], kind="stable")]
        keys = self.group[rows] + generator.random((N_PERMUTATIONS, len(rows)))
        labels = np.zeros((1 + N_PERMUTATIONS, len(self.group)), bool)
        labels[0] = self.in_window & self.in_both
        labels[1:, rows] = self.in_window[rows[np.argsort(keys, axis=1)]]
        return labels


def permute_labels(labels: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Permute labels.

    Args:
        labels: (units,) labels.
        generator: Draws the permutations.

    Returns:
        (1 + N_PERMUTATIONS, units) bool; the first row has the true labels.
    """
    order = np.argsort(generator.random((N_PERMUTATIONS, len(labels))), axis=1)
    return np.concatenate([labels[None], labels[order]])


def compute_p_value(statistics: np.ndarray) -> float:
    """Compute the p-value of the most extreme of several statistics.

    Each statistic is scaled to standard deviations of its permutations; a larger one means a larger difference.

    Args:
        statistics: (1 + permutations, statistics); the first row is for the true labels.

    Returns:
        The p-value.
    """
    spread = statistics.std(axis=0)
    scaled = (statistics - statistics.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    extremes = scaled.max(axis=1)
    return float((extremes >= extremes[0] - 1e-9).mean())


def _rank_within_groups(sorted_group: np.ndarray) -> np.ndarray:
    """Return the position of each row within its group, from 0; (rows,)."""
    first = np.flatnonzero(np.diff(sorted_group, prepend=-1))
    return np.arange(len(sorted_group)) - np.repeat(first, np.diff([*first, len(sorted_group)]))
