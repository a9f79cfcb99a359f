"""The design effect: the number of independent answers that carry as much information as correlated, weighted ones.

Answers about one document are right and wrong together, and answers of rarely reviewed kinds have larger weights. Both
make the share of incorrect answers vary more than that of as many independent answers. The effective sample size is the
number of independent answers whose share varies as much (Kish 1965; used with an exact binomial test, Korn and Graubard
1998):

    1 / n_eff = r ((1 - icc) sum(w^2) + icc sum_g(W_g^2)) / (sum w)^2

`w` are the weights of the counted answers, `W_g` their sum within a group, and `icc` is the intraclass correlation of
being incorrect. `r` is the mean squared residual, weighted by squared weights, in units of the variance of the share.
It is 1 for equal weights, and above 1 if the rarer kind of answers, mostly the incorrect ones, has larger weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

STANDARD_ERRORS_ADDED = 1.0
"""Number of standard errors by which the correlation is raised above its estimate."""


@dataclass(frozen=True)
class GroupTotals:
    """Sums over the counted answers of each group at each threshold.

    All arrays are float64 (groups, thresholds). w is the weight of an answer.

    Attributes:
        weight: Sum of w over the counted answers.
        squares: Sum of w^2 over the counted answers.
        incorrect_weight: Sum of w over the answers that are shown and incorrect.
        incorrect_squares: Sum of w^2 over the answers that are shown and incorrect.
    """

    weight: np.ndarray
    squares: np.ndarray
    incorrect_weight: np.ndarray
    incorrect_squares: np.ndarray

    @property
    def incorrect_share(self) -> np.ndarray:
        """The weighted share of incorrect answers among the counted ones, (thresholds,); 0 if none is counted."""
        return _ratio(self.incorrect_weight.sum(axis=0), self.weight.sum(axis=0))

    def compute_effective_size(self, icc: np.ndarray) -> np.ndarray:
        """Compute the effective sample size n_eff of the counted answers (see the module's formula).

        Args:
            icc: (thresholds,) intraclass correlation in [0, 1].

        Returns:
            (thresholds,) n_eff; 0 if no answer is counted.
        """
        share, weight, squares = self.incorrect_share, self.weight.sum(axis=0), self.squares.sum(axis=0)
        independent = (1 - icc) * squares + icc * (self.weight**2).sum(axis=0)
        variance_ratio = _ratio(self._residual_squares(share).sum(axis=0), share * (1 - share) * squares)
        return _ratio(weight**2, independent * np.maximum(variance_ratio, 1.0))

    def sum_residual_pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Sum the products of residuals over all pairs of counted answers within each group.

        The ratio of the two results, each summed over groups, is the moment estimate of the intraclass correlation.

        Returns:
            The weighted products in units of the variance p (1 - p), and the weights of the pairs; both (groups,
            thresholds).
        """
        share = self.incorrect_share
        pair_products = (self.incorrect_weight - share * self.weight) ** 2 - self._residual_squares(share)
        return _ratio(
            pair_products, np.broadcast_to(share * (1 - share), pair_products.shape)
        ), self.weight**2 - self.squares

    def _residual_squares(self, share: np.ndarray) -> np.ndarray:
        return np.asarray(
            self.incorrect_squares * (1 - share) ** 2 + (self.squares - self.incorrect_squares) * share**2
        )


def compute_group_totals(
    confidence: np.ndarray,
    correct: np.ndarray,
    weight: np.ndarray,
    groups: np.ndarray,
    thresholds: np.ndarray,
    metric: str,
) -> GroupTotals:
    """Compute the sums over each group at each threshold.

    Args:
        confidence: (rows,) in [0, 1].
        correct: (rows,) 0 or 1.
        weight: (rows,) sampling weights > 0. They are scaled so that the largest is 1.
        groups: (rows,) group ids.
        thresholds: (thresholds,) ascending.
        metric: "precision" counts the shown answers, "error_rate" counts all of them.

    Returns:
        The sums, (groups, thresholds).
    """
    group_ids, group_index = np.unique(groups, return_inverse=True)
    n_shown_thresholds = np.searchsorted(
        thresholds, confidence, side="right"
    )  # an answer is shown at the thresholds before this index
    weight = weight / weight.max(initial=0.0)

    def sum_shown(values: np.ndarray) -> np.ndarray:
        cells = np.bincount(
            group_index * (len(thresholds) + 1) + n_shown_thresholds, values, len(group_ids) * (len(thresholds) + 1)
        )
        return np.cumsum(cells.reshape(len(group_ids), -1)[:, ::-1], axis=1)[:, ::-1][:, 1:]

    def sum_counted(values: np.ndarray) -> np.ndarray:
        if metric == "precision":
            return sum_shown(values)
        return np.repeat(np.bincount(group_index, values, len(group_ids))[:, None], len(thresholds), axis=1)

    incorrect = correct == 0
    return GroupTotals(
        sum_counted(weight), sum_counted(weight**2), sum_shown(weight * incorrect), sum_shown(weight**2 * incorrect)
    )


def estimate_intraclass_correlation(*tables: GroupTotals) -> tuple[np.ndarray, np.ndarray]:
    """Estimate the correlation of being incorrect within a group, and a safe upper value of it.

    The estimate is the moment estimate over all pairs of answers of a group, pooled over the tables. Its standard error
    is the jackknife over groups. Both results are 0 if no group has two counted answers: then no correlation could
    matter.

    Args:
        *tables: Sums of disjoint sets of answers at the same thresholds.

    Returns:
        The estimate, and the estimate plus `STANDARD_ERRORS_ADDED` standard errors; both (thresholds,) in [0, 1].
    """
    pairs = [table.sum_residual_pairs() for table in tables]
    products, weights = (np.concatenate(part) for part in zip(*pairs, strict=True))
    groups = len(products)
    leave_one_out = _ratio(products.sum(axis=0) - products, weights.sum(axis=0) - weights)
    error = np.sqrt((groups - 1) / groups * ((leave_one_out - leave_one_out.mean(axis=0)) ** 2).sum(axis=0))
    estimate = _ratio(products.sum(axis=0), weights.sum(axis=0))
    return np.clip(estimate, 0, 1), np.clip(estimate + STANDARD_ERRORS_ADDED * error, 0, 1)


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Compute `part / whole`, and 0 where the whole is only rounding error."""
    quotient = np.zeros(np.broadcast_shapes(np.shape(part), np.shape(whole)))
    np.divide(part, whole, out=quotient, where=np.broadcast_to(whole > 1e-12, quotient.shape))
    return quotient
