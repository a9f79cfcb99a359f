"""The design effect: how many independent answers some correlated and unevenly weighted ones are worth.

Answers about one document are right and wrong together, and answers of rarely reviewed kinds weigh more. Both make the
share of incorrect answers vary more than that of as many independent ones. The effective sample size is the number of
independent answers whose share varies as much (Kish 1965; used with an exact binomial test, Korn and Graubard 1998):

    1 / n_eff = r ((1 - icc) sum(w^2) + icc sum_g(W_g^2)) / (sum w)^2

`w` are the weights of the counted answers, `W_g` their sum within a group, and `icc` is the intraclass correlation of
being incorrect. `r` is 1 for equal weights, and above 1 where the rarer kind of answers, mostly the incorrect ones,
weighs more: the mean squared residual, weighted by squares, in units of the variance of the share.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

STANDARD_ERRORS_ADDED = 1.0
"""The correlation is taken this many standard errors above its estimate."""


@dataclass(frozen=True)
class GroupTotals:
    """Sums over the answers of each group that each threshold counts. All arrays are float64 (groups, thresholds).

    `weight` and `squares` sum the weights and their squares; `incorrect_weight` and `wrong_squares` those of the
    answers that are shown and incorrect.
    """

    weight: np.ndarray
    squares: np.ndarray
    incorrect_weight: np.ndarray
    wrong_squares: np.ndarray

    @property
    def incorrect_share(self) -> np.ndarray:
        """The weighted share of incorrect answers among the counted ones, (thresholds,); 0 where none is counted."""
        return _ratio(self.incorrect_weight.sum(axis=0), self.weight.sum(axis=0))

    def effective_size(self, icc: np.ndarray) -> np.ndarray:
        """The effective number of counted answers at each threshold, (thresholds,); 0 where none is counted."""
        share, weight, squares = self.incorrect_share, self.weight.sum(axis=0), self.squares.sum(axis=0)
        independent = (1 - icc) * squares + icc * (self.weight**2).sum(axis=0)
        heavier = _ratio(self._residual_squares(share).sum(axis=0), share * (1 - share) * squares)
        return _ratio(weight**2, independent * np.maximum(heavier, 1.0))

    def sum_residual_pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Per group and threshold the products of residuals, in units of their variance, of all pairs of counted
        answers, and the weights of these pairs; the ratio of their sums estimates the correlation."""
        share = self.incorrect_share
        together = (self.incorrect_weight - share * self.weight) ** 2 - self._residual_squares(share)
        return _ratio(together, np.broadcast_to(share * (1 - share), together.shape)), self.weight**2 - self.squares

    def _residual_squares(self, share: np.ndarray) -> np.ndarray:
        return np.asarray(self.wrong_squares * (1 - share) ** 2 + (self.squares - self.wrong_squares) * share**2)


def compute_group_totals(
    confidence: np.ndarray,
    correct: np.ndarray,
    weight: np.ndarray,
    groups: np.ndarray,
    thresholds: np.ndarray,
    metric: str,
) -> GroupTotals:
    """The sums for `thresholds` (ascending). A precision counts the shown answers, an error rate all of them.

    All but `thresholds` are (rows,); the heaviest answer of all weighs 1 here, whatever the scale of `weight`.
    """
    names, group = np.unique(groups, return_inverse=True)
    below = np.searchsorted(thresholds, confidence, side="right")  # an answer is shown at the thresholds before this
    weight = weight / weight.max(initial=0.0)

    def shown(values: np.ndarray) -> np.ndarray:
        cells = np.bincount(group * (len(thresholds) + 1) + below, values, len(names) * (len(thresholds) + 1))
        return np.cumsum(cells.reshape(len(names), -1)[:, ::-1], axis=1)[:, ::-1][:, 1:]

    def counted(values: np.ndarray) -> np.ndarray:
        if metric == "precision":
            return shown(values)
        return np.repeat(np.bincount(group, values, len(names))[:, None], len(thresholds), axis=1)

    wrong = correct == 0
    return GroupTotals(counted(weight), counted(weight**2), shown(weight * wrong), shown(weight**2 * wrong))


def intraclass_correlation(*tables: GroupTotals) -> tuple[np.ndarray, np.ndarray]:
    """The correlation of being incorrect within a group at each threshold, and what is safely above it.

    Both are (thresholds,), in [0, 1]. The first is the moment estimate over all pairs of answers of a group, pooled
    over `tables`; the second adds `STANDARD_ERRORS_ADDED` standard errors by the jackknife over groups. Both are 0
    where no group has two counted answers: there is no correlation that could matter.
    """
    parts = [table.sum_residual_pairs() for table in tables]
    products, weights = (np.concatenate(part) for part in zip(*parts, strict=True))
    groups = len(products)
    without = _ratio(products.sum(axis=0) - products, weights.sum(axis=0) - weights)
    error = np.sqrt((groups - 1) / groups * ((without - without.mean(axis=0)) ** 2).sum(axis=0))
    estimate = _ratio(products.sum(axis=0), weights.sum(axis=0))
    return np.clip(estimate, 0, 1), np.clip(estimate + STANDARD_ERRORS_ADDED * error, 0, 1)


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """`part / whole`, 0 where the whole is nothing but rounding."""
    filled = np.zeros(np.broadcast_shapes(np.shape(part), np.shape(whole)))
    np.divide(part, whole, out=filled, where=np.broadcast_to(whole > 1e-12, filled.shape))
    return filled
