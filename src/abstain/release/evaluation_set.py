"""Evaluation sets and single checks: the input and the output of the promotion checks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
from pydantic import BeforeValidator

from abstain.core.codes import Code
from abstain.core.reasons import Reason
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import RESAMPLING, Estimate, Statistic, bootstrap

CANDIDATE = "candidate"
"""Name of the candidate's served scorer among the confidences of an evaluation set."""
Measured = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A number of a record; if it is not defined, nan here and null in JSON."""


@dataclass(frozen=True)
class EvaluationSet:
    """Answers that no version was trained on, with the confidences of all scorers.

    Attributes:
        correct: (rows,) int, 1 if the answer is correct.
        groups: (rows,) group ids.
        products: (rows,) product names.
        confidences: Scorer -> (rows,) confidences of the candidate, the champion (if there is one) and the baselines.
        weight: Result of `metrics.row_weights`; None if every answer counts the same.
        probabilities: (rows,) calibrated probabilities of the candidate; None if its confidences are probabilities
            already.
        champion_probability: (rows,) calibrated probabilities of the champion; None if unknown.
    """

    correct: np.ndarray
    groups: np.ndarray
    products: np.ndarray
    confidences: dict[str, np.ndarray]
    weight: metrics.Weight = None
    probabilities: np.ndarray | None = None
    champion_probability: np.ndarray | None = None

    def compute_precision(self, rows: np.ndarray) -> tuple[float, float]:
        """Compute the precision of some answers.

        Args:
            rows: (rows,) bool mask of the answers.

        Returns:
            The weighted share of correct answers, and the effective sample size.
        """
        weight = np.ones(len(rows)) if self.weight is None else self.weight
        return metrics.weighted_mean(self.correct[rows], weight[rows]), metrics.effective_sample_size(weight[rows])

    def get_shown_mask(self, threshold: float, name: str = CANDIDATE) -> np.ndarray:
        """Get the mask of the answers that a scorer shows.

        Args:
            threshold: Answers with at least this confidence are shown.
            name: The scorer.

        Returns:
            (rows,) bool.
        """
        return np.asarray(self.confidences[name] >= threshold)

    def bootstrap(self, statistics: Mapping[str, Statistic]) -> dict[str, Estimate]:
        """Estimate statistics on the same resamples of groups.

        Args:
            statistics: Statistic by name.

        Returns:
            Estimate by name.
        """
        return bootstrap(
            statistics, self.groups, n_resamples=RESAMPLING.n_resamples, seed=RESAMPLING.seed, weight=self.weight
        )

    def compute_aurocs(self, other_scorer: str) -> tuple[Estimate, Estimate]:
        """Estimate the AUROC of the candidate and of another scorer on the same resamples.

        Args:
            other_scorer: Name of the other scorer.

        Returns:
            The candidate's AUROC, then the other scorer's.
        """
        names = (CANDIDATE, other_scorer)
        statistics = {name: partial(metrics.auroc, self.correct, self.confidences[name]) for name in names}
        estimates = self.bootstrap(statistics)
        return estimates[CANDIDATE], estimates[other_scorer]


@dataclass(frozen=True)
class PromotionCheck:
    """One promotion check.

    Attributes:
        code: Error code if the check fails.
        name: Name of the check.
        passed: Whether it passed; None if it is reported but not judged for lack of rows.
        value: The measured value.
        limit: The required value.
        message: One sentence with the result.
    """

    code: Code
    name: str
    passed: bool | None
    value: Measured
    limit: Measured
    message: str

    def to_reason(self) -> Reason:
        """Return the check as the reason for a rejection; its field is the name of the check."""
        return Reason(self.code, self.name, self.message)


def correct_bootstrap_error(error: float, groups: int) -> float:
    """Correct the standard error of a bootstrap over few groups, which is too small by sqrt((g - 1) / g).

    Args:
        error: Standard error by bootstrap.
        groups: Number of groups, g.

    Returns:
        The corrected error; unchanged with a single group.
    """
    return float(error * np.sqrt(groups / (groups - 1))) if groups > 1 else error


def check_at_least(code: Code, name: str, value: float, limit: float, message: str) -> PromotionCheck:
    """Check that a value is not below a limit.

    Args:
        code: Error code if it is.
        name: Name of the check.
        value: Measured value; nan fails.
        limit: Lowest accepted value.
        message: Message of the check.

    Returns:
        The check.
    """
    return PromotionCheck(code, name, bool(value >= limit), float(value), float(limit), message)


def check_at_most(code: Code, name: str, value: float, limit: float, description: str) -> PromotionCheck:
    """Check that a value is not above a limit.

    Args:
        code: Error code if it is.
        name: Name of the check.
        value: Measured value; nan fails.
        limit: Highest accepted value.
        description: Description of the value; the message adds value and limit.

    Returns:
        The check.
    """
    message = f"{description}: {value:.3g}, at most {limit:g}"
    return PromotionCheck(code, name, bool(value <= limit), float(value), float(limit), message)


def format_count_with_n_eff(rows: int, n_eff: float) -> str:
    """Format a number of rows, with their effective sample size if it differs.

    Args:
        rows: Number of rows.
        n_eff: Effective sample size.

    Returns:
        Text such as "200 (n_eff 97)".
    """
    return f"{rows}" if n_eff == rows else f"{rows} (n_eff {n_eff:.0f})"
