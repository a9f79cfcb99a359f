"""Answers that no version was trained on, with the scores of all, and one check of them: what the gate works with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from abstain.core.codes import Code
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import RESAMPLES, Estimate, Statistic, bootstrap

CANDIDATE = "challenger"
"""The challenger's live scorer, among the confidences of a window."""


@dataclass(frozen=True)
class EvaluationSet:
    """Answers that no version was trained on, with the scores of all. All arrays are (rows,).

    `confidences` holds the challenger's, the champion's where there is one, and the baselines'; `probabilities` the
    challenger's calibrated ones (None: its confidences are probabilities already), `champion_probability` those of the
    champion (None: not known). `weight` is that of `metrics.row_weights`; None: every answer counts the same.
    """

    correct: np.ndarray
    groups: np.ndarray
    products: np.ndarray
    confidences: dict[str, np.ndarray]
    weight: metrics.Weight = None
    probabilities: np.ndarray | None = None
    champion_probability: np.ndarray | None = None

    def compute_precision(self, rows: np.ndarray) -> tuple[float, float]:
        """The share of correct answers among `rows` (a mask), and their effective sample size."""
        weight = np.ones(len(rows)) if self.weight is None else self.weight
        return metrics.weighted_mean(self.correct[rows], weight[rows]), metrics.effective_sample_size(weight[rows])

    def get_shown_mask(self, threshold: float, name: str = CANDIDATE) -> np.ndarray:
        """The mask of answers that the scorer `name` shows from `threshold` on."""
        return np.asarray(self.confidences[name] >= threshold)

    def bootstrap(self, figures: Mapping[str, Statistic]) -> dict[str, Estimate]:
        """`figures` on the same resamples of groups."""
        return bootstrap(figures, self.groups, RESAMPLES.draws, RESAMPLES.seed, self.weight)

    def compute_aurocs(self, other_scorer: str) -> tuple[Estimate, Estimate]:
        """The AUROC of the challenger and that of `other_scorer`, on the same resamples."""
        names = (CANDIDATE, other_scorer)
        figures = {name: partial(metrics.auroc, self.correct, self.confidences[name]) for name in names}
        drawn = self.bootstrap(figures)
        return drawn[CANDIDATE], drawn[other_scorer]


@dataclass(frozen=True)
class PromotionCheck:
    """One check of the gate; `code` is for its failure. `passed=None`: shown but not judged, for lack of rows."""

    code: Code
    name: str
    passed: bool | None
    value: float
    limit: float
    message: str


def correct_bootstrap_error(error: float, groups: int) -> float:
    """The standard error from that of a bootstrap of so many documents, which is too small by sqrt((g - 1) / g)."""
    return float(error * np.sqrt(groups / (groups - 1))) if groups > 1 else error


def check_at_least(code: Code, name: str, value: float, limit: float, message: str) -> PromotionCheck:
    """The check that `value` is not below `limit`; nan fails."""
    return PromotionCheck(code, name, bool(value >= limit), float(value), float(limit), message)


def check_at_most(code: Code, name: str, value: float, limit: float, description: str) -> PromotionCheck:
    """The check that `value` is not above `limit`; nan fails."""
    message = f"{description}: {value:.3g}, at most {limit:g}"
    return PromotionCheck(code, name, bool(value <= limit), float(value), float(limit), message)


def format_count_with_n_eff(rows: int, n_eff: float) -> str:
    """A number of rows, with their effective sample size where that is another one."""
    return f"{rows}" if n_eff == rows else f"{rows} (n_eff {n_eff:.0f})"
