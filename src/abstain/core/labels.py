"""The labels of training answers, on which every estimator is fitted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from abstain.core.codes import Code
from abstain.core.errors import AbstainError


@dataclass(frozen=True)
class Labels:
    """Labels of answers.

    Attributes:
        correct: (rows,) 0 or 1.
        weight: (rows,) >= 0.
        groups: (rows,) ids of groups with correlated errors.
    """

    correct: np.ndarray
    weight: np.ndarray
    groups: np.ndarray

    def subset(self, rows: np.ndarray) -> Labels:
        """Return the labels of some rows.

        Args:
            rows: (rows,) mask of bool.

        Returns:
            The labels where `rows` is true.
        """
        return Labels(self.correct[rows], self.weight[rows], self.groups[rows])

    def assign_folds(self, max_folds: int, seed: int) -> np.ndarray:
        """Assign whole groups to folds for cross-validation.

        There are no more folds than groups with correct answers of positive weight, or than groups with incorrect ones.
        Outside of every fold there are answers of both classes. Groups without positive weight are in fold 0.

        Args:
            max_folds: Maximum number of folds.
            seed: Seed of the assignment.

        Returns:
            (rows,) int64, the fold of each row, from 0.

        Raises:
            AbstainError: There are too few groups for such folds.
        """
        from sklearn.model_selection import StratifiedGroupKFold

        self.require_both_classes()
        has_weight = self.weight > 0
        correct, groups = self.correct[has_weight], self.groups[has_weight]
        group_counts = [len(np.unique(groups[correct == label])) for label in (1, 0)]
        fold_by_group: dict[str, int] = {}
        if min(group_counts) > 1:
            splitter = StratifiedGroupKFold(min(max_folds, *group_counts), shuffle=True, random_state=seed)
            for fold, (outside, held_out) in enumerate(splitter.split(correct, correct, groups)):
                if len(np.unique(correct[outside])) == 2:
                    fold_by_group |= dict.fromkeys(groups[held_out], fold)
        if len(fold_by_group) < len(np.unique(groups)):
            raise AbstainError(
                Code.TOO_FEW_LABELS,
                "a scorer is tried on groups that it has not seen, and the train split has correct answers of only "
                f"{group_counts[0]}, incorrect ones of only {group_counts[1]}: bring feedback on more groups, or "
                "change split.seed",
            )
        return np.array([fold_by_group.get(group, 0) for group in self.groups], np.int64)

    def require_both_classes(self) -> None:
        """Check that the answers of positive weight are of both classes.

        Raises:
            AbstainError: All of them are correct, or all incorrect.
        """
        if len(np.unique(self.correct[self.weight > 0])) < 2:
            raise AbstainError(
                Code.TOO_FEW_LABELS,
                "the train split has answers of one class only: bring feedback of both kinds, or change split.seed",
            )
