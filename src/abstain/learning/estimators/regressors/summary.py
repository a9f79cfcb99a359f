"""The correctness regressors of a retrain, as the stage `train_regressors` writes them."""

from __future__ import annotations

from abstain.core.result_record import ResultRecord, Value
from abstain.learning.metrics.correctness_metrics import EstimateMetrics


class Regressor(ResultRecord):
    """A correctness regressor.

    Attributes:
        dropped: Feature that does not vary in training -> its constant value; None if it is missing everywhere.
        parity: Largest difference between what was fitted and its file.
        bytes: Size of its file.
        folds: Number of folds of its estimates of training answers.
        holdout: Metrics on the hold-out; None without a threshold, for which `note` has the reason.
    """

    dropped: dict[str, Value]
    parity: float
    bytes: int
    folds: int
    holdout: EstimateMetrics | None
    note: str = ""


class RegressorSummary(ResultRecord):
    """The fitted regressors by name, and why others are `skipped`."""

    regressors: dict[str, Regressor]
    skipped: dict[str, str]
