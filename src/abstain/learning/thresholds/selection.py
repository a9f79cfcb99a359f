"""The heuristic threshold: the highest coverage at which the target is met on the tuning answers.

On other answers the target is missed about every second time: `risk_control.control_risk` gives a guarantee, and this
threshold is reported beside it. Where some kinds of answers were reviewed more often than others, rows are weighted
(`metrics.row_weights`), so that the threshold is for all answers and not only for the reviewed ones; a few heavy rows
count as few rows (`effective_sample_size`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from abstain.config.params import ThresholdParams
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.learning.metrics.weighted_metrics import Weight, effective_sample_size

ROUNDING = 1e-12


@dataclass(frozen=True)
class OperatingPoint:
    """A tuned threshold and what it gave on the answers it was tuned on. Fractions are in [0, 1], and weighted.

    `n_eff_shown` is the effective sample size of the `shown` answers.
    """

    threshold: float
    precision: float
    coverage: float
    recall: float
    shown: int
    n_eff_shown: float
    rows: int

    @property
    def error_rate(self) -> float:
        """The share of all answers that are shown and incorrect; 0 where nothing is shown."""
        return self.coverage * (1 - self.precision) if self.shown else 0.0

    def to_dict(self) -> dict[str, float | int]:
        return asdict(self)


def tune_threshold(
    confidence: np.ndarray, correct: np.ndarray, params: ThresholdParams, weight: Weight = None
) -> OperatingPoint:
    """The threshold with the highest coverage whose precision (error rate) is at least (at most) the target.

    Args:
        confidence: (rows,) in [0, 1]. correct: (rows,) of 0/1. weight: (rows,), None for equal ones.

    Raises `AbstainError` where no threshold that shows `min_shown` answers reaches the target; the message has the best
    value reached.
    """
    candidates = [compute_operating_point(confidence, correct, float(t), weight) for t in np.unique(confidence)]
    believed = [point for point in candidates if point.n_eff_shown >= params.min_shown]
    if not believed:
        n_eff = "" if weight is None else f" (effective sample size {effective_sample_size(weight):.0f})"
        raise AbstainError(
            Code.TOO_FEW_LABELS,
            f"only {len(confidence)} reviewed answers{n_eff} to tune the threshold on, fewer than "
            f"threshold.min_shown = {params.min_shown}: bring more reviews, or lower it",
        )
    reaching = [point for point in believed if _get_shortfall(point, params) <= ROUNDING]
    if not reaching:
        best = min(believed, key=lambda point: (_get_shortfall(point, params), -point.coverage))
        precise = params.metric == "precision"
        raise AbstainError(
            Code.NO_THRESHOLD,
            f"no threshold reaches {params.metric.replace('_', ' ')} {params.target:g} on {best.rows} reviewed "
            f"answers; within reach: {best.precision if precise else best.error_rate:.3f} while showing "
            f"{best.coverage:.0%} (threshold {best.threshold:.3f}): "
            f"{'lower' if precise else 'raise'} threshold.target, or bring more reviews",
        )
    return max(reaching, key=lambda point: (point.coverage, point.threshold))


def _get_shortfall(point: OperatingPoint, params: ThresholdParams) -> float:
    """By how much the target is missed; not above 0 where it is reached."""
    return params.target - point.precision if params.metric == "precision" else point.error_rate - params.target


def compute_operating_point(
    confidence: np.ndarray, correct: np.ndarray, threshold: float, weight: Weight = None
) -> OperatingPoint:
    """The result of showing every answer with confidence >= `threshold`; precision is nan where nothing is shown."""
    weight = np.ones(len(confidence)) if weight is None else weight
    shown = confidence >= threshold
    true_positives = float(weight[shown & (correct == 1)].sum())
    displayed, positives = float(weight[shown].sum()), float(weight[correct == 1].sum())
    return OperatingPoint(
        threshold=threshold,
        precision=true_positives / displayed if displayed else float("nan"),
        coverage=displayed / float(weight.sum()),
        recall=true_positives / positives if positives else float("nan"),
        shown=int(shown.sum()),
        n_eff_shown=effective_sample_size(weight[shown]),
        rows=len(confidence),
    )
