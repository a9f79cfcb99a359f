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

    def at(self, rows: np.ndarray) -> Labels:
        """The labels of the mask `rows`, (rows,) of bool."""
        return Labels(self.correct[rows], self.weight[rows], self.groups[rows])

    def require_both_kinds(self) -> None:
        """Raise `AbstainError` where all answers of positive weight are correct, or all incorrect."""
        if len(np.unique(self.correct[self.weight > 0])) < 2:
            raise AbstainError(
                Code.TOO_FEW_LABELS,
                "the train split has answers of one class only: bring feedback of both kinds, or change split.seed",
            )
