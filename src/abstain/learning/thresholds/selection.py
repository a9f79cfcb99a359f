"""The heuristic threshold: the highest coverage at which the target is met on the tuning answers.

On other answers the target is missed about every second time: `risk_control.control_risk` gives a guarantee, and this
threshold is reported with it. If some kinds of answers were reviewed more often than others, rows are weighted
(`weighted_metrics.row_weights`), so that the threshold is for all answers and not only for the reviewed ones; a few
heavy rows count as few rows (`effective_sample_size`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from abstain.config.params import ThresholdParams
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.learning.metrics.weighted_metrics import Weight, effective_sample_size
from abstain.learning.thresholds.threshold_result import TunedThreshold

ROUNDING = 1e-12


@dataclass(frozen=True)
class OperatingPoint:
    """A threshold and its metrics on the answers it was tuned on. Fractions are weighted and in [0, 1].

    Attributes:
        threshold: Answers with confidence >= `threshold` are shown.
        precision: Share of the shown answers that is correct; nan if none is shown.
        coverage: Share of all answers that is shown.
        recall: Share of the correct answers that is shown; nan if none is correct.
        shown: Number of shown answers.
        n_eff_shown: Effective sample size of the shown answers.
        rows: Number of all answers.
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
        """The share of all answers that are shown and incorrect; 0 if none is shown."""
        return self.coverage * (1 - self.precision) if self.shown else 0.0

    def to_record(self) -> TunedThreshold:
        """Return the fields as a part of threshold.json."""
        return TunedThreshold(**asdict(self))


def tune_threshold(
    confidence: np.ndarray, correct: np.ndarray, params: ThresholdParams, weight: Weight = None
) -> OperatingPoint:
    """Choose the heuristic threshold: the largest coverage that meets the target on the tuning answers.

    Args:
        confidence: (rows,) in [0, 1].
        correct: (rows,) 0 or 1.
        params: Metric, target and `min_shown`, the smallest effective number of shown answers.
        weight: (rows,) sampling weights; None means equal weights.

    Returns:
        The operating point of the chosen threshold.

    Raises:
        AbstainError: No threshold that shows `min_shown` answers meets the target. The message contains the best value.
    """
    candidates = [compute_operating_point(confidence, correct, float(t), weight) for t in np.unique(confidence)]
    eligible = [point for point in candidates if point.n_eff_shown >= params.min_shown]
    if not eligible:
        n_eff = "" if weight is None else f" (effective sample size {effective_sample_size(weight):.0f})"
        raise AbstainError(
            Code.TOO_FEW_LABELS,
            f"only {len(confidence)} reviewed answers{n_eff} to tune the threshold on, fewer than "
            f"threshold.min_shown = {params.min_shown}: bring more reviews, or lower it",
        )
    feasible = [point for point in eligible if _get_shortfall(point, params) <= ROUNDING]
    if not feasible:
        best = min(eligible, key=lambda point: (_get_shortfall(point, params), -point.coverage))
        is_precision = params.metric == "precision"
        raise AbstainError(
            Code.NO_THRESHOLD,
            f"no threshold reaches {params.metric.replace('_', ' ')} {params.target:g} on {best.rows} reviewed "
            f"answers; within reach: {best.precision if is_precision else best.error_rate:.3f} while showing "
            f"{best.coverage:.0%} (threshold {best.threshold:.3f}): "
            f"{'lower' if is_precision else 'raise'} threshold.target, or bring more reviews",
        )
    return max(feasible, key=lambda point: (point.coverage, point.threshold))


def _get_shortfall(point: OperatingPoint, params: ThresholdParams) -> float:
    """Return by how much the target is missed; at most 0 if it is met."""
    return params.target - point.precision if params.metric == "precision" else point.error_rate - params.target


def compute_operating_point(
    confidence: np.ndarray, correct: np.ndarray, threshold: float, weight: Weight = None
) -> OperatingPoint:
    """Compute the metrics of showing every answer with confidence >= `threshold`.

    Args:
        confidence: (rows,) in [0, 1].
        correct: (rows,) 0 or 1.
        threshold: The threshold.
        weight: (rows,) sampling weights; None means equal weights.

    Returns:
        The operating point; its precision is nan if no answer is shown.
    """
    weight = np.ones(len(confidence)) if weight is None else weight
    shown = confidence >= threshold
    true_positives = float(weight[shown & (correct == 1)].sum())
    shown_weight, positives = float(weight[shown].sum()), float(weight[correct == 1].sum())
    return OperatingPoint(
        threshold=threshold,
        precision=true_positives / shown_weight if shown_weight else float("nan"),
        coverage=shown_weight / float(weight.sum()),
        recall=true_positives / positives if positives else float("nan"),
        shown=int(shown.sum()),
        n_eff_shown=effective_sample_size(weight[shown]),
        rows=len(confidence),
    )
