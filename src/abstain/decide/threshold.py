"""The threshold: show as many answers as possible at a precision that was asked for."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from abstain.errors import AbstainError
from abstain.params import ThresholdParams


@dataclass(frozen=True)
class Threshold:
    """A tuned threshold and what it gave on the answers it was tuned on. Fractions are in [0, 1]."""

    threshold: float
    precision: float
    display_rate: float
    recall: float
    shown: int
    rows: int

    def to_dict(self) -> dict[str, float | int]:
        return asdict(self)


def tune_threshold(confidence: np.ndarray, correct: np.ndarray, params: ThresholdParams) -> Threshold:
    """The threshold with the highest display rate whose precision is at least the target.

    Args:
        confidence: (rows,) in [0, 1]. correct: (rows,) of 0/1.

    Raises `AbstainError` where no threshold that shows `min_shown` answers reaches the target, with the best
    precision that one does reach.
    """
    candidates = [operating_point(confidence, correct, float(t)) for t in np.unique(confidence)]
    believed = [point for point in candidates if point.shown >= params.min_shown]
    if not believed:
        raise AbstainError(
            f"only {len(confidence)} reviewed answers to tune the threshold on, fewer than threshold.min_shown = "
            f"{params.min_shown}: bring more reviews, or lower it"
        )
    reaching = [point for point in believed if point.precision >= params.target_precision]
    if not reaching:
        best = max(believed, key=lambda point: (point.precision, point.display_rate))
        raise AbstainError(
            f"no threshold reaches precision {params.target_precision:g} on {best.rows} reviewed answers; within "
            f"reach: {best.precision:.3f} while showing {best.display_rate:.0%} (threshold {best.threshold:.3f}): "
            "lower threshold.target_precision, or bring more reviews"
        )
    return max(reaching, key=lambda point: (point.display_rate, point.threshold))


def operating_point(confidence: np.ndarray, correct: np.ndarray, threshold: float) -> Threshold:
    """What showing every answer with confidence >= `threshold` gives; precision is nan where nothing is shown."""
    shown = confidence >= threshold
    right = int(correct[shown].sum())
    count = int(shown.sum())
    return Threshold(
        threshold=threshold,
        precision=right / count if count else float("nan"),
        display_rate=count / len(confidence),
        recall=right / int(correct.sum()) if correct.any() else float("nan"),
        shown=count,
        rows=len(confidence),
    )
