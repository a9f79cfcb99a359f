"""The labels of training answers, on which every estimator is fitted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from abstain.core.codes import Code
from abstain.core.errors import AbstainError


@dataclass(frozen=True)
class Labels:
    """Labels of answers, all (rows,): `correct` 0/1, `weight` >= 0, and `groups` with correlated errors."""

    correct: np.ndarray
    weight: np.ndarray
    groups: np.ndarray

    def subset(self, rows: np.ndarray) -> Labels:
        """The labels of the mask `rows`, (rows,) of bool."""
        return Labels(self.correct[rows], self.weight[rows], self.groups[rows])

    def assign_folds(self, max_folds: int, seed: int) -> np.ndarray:
        """The fold of every row, int64 (rows,), counted from 0: at most `max_folds` of them, of whole groups.

        There are no more folds than groups with correct, or with incorrect, answers of positive weight; outside of
        every fold there are answers of both kinds. Groups without positive weight are in the first fold. Raises
        `AbstainError` where there are too few groups for that.
        """
        from sklearn.model_selection import StratifiedGroupKFold

        self.require_both_classes()
        counts = self.weight > 0
        correct, named = self.correct[counts], self.groups[counts]
        of_kind = [len(np.unique(named[correct == kind])) for kind in (1, 0)]
        number_of: dict[str, int] = {}
        if min(of_kind) > 1:
            splitter = StratifiedGroupKFold(min(max_folds, *of_kind), shuffle=True, random_state=seed)
            for number, (others, held_out) in enumerate(splitter.split(correct, correct, named)):
                if len(np.unique(correct[others])) == 2:
                    number_of |= dict.fromkeys(named[held_out], number)
        if len(number_of) < len(np.unique(named)):
            raise AbstainError(
                Code.TOO_FEW_LABELS,
                "a scorer is tried on groups that it has not seen, and the train split has correct answers of only "
                f"{of_kind[0]}, incorrect ones of only {of_kind[1]}: bring feedback on more groups, or change "
                "split.seed",
            )
        return np.array([number_of.get(group, 0) for group in self.groups], np.int64)

    def require_both_classes(self) -> None:
        """Raise `AbstainError` where all answers of positive weight are correct, or all incorrect."""
        if len(np.unique(self.correct[self.weight > 0])) < 2:
            raise AbstainError(
                Code.TOO_FEW_LABELS,
                "the train split has answers of one class only: bring feedback of both kinds, or change split.seed",
            )
