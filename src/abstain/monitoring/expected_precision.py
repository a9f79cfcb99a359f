"""The precision of shown answers that have no review yet, from calibrated probabilities; and whether these are right."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ExpectedPrecision:
    """The expected share of correct answers among those shown, with its 95 % interval; all in [0, 1]."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class CalibrationCheck:
    """The mean of correct - probability, with its 95 % interval, in [-1, 1]; p_value: of a difference of 0."""

    difference: float
    low: float
    high: float
    p_value: float


def expected_precision(probability: np.ndarray, document: np.ndarray) -> ExpectedPrecision:
    """From calibrated probabilities of being correct (n,) of shown answers about `document` (n,)."""
    return ExpectedPrecision(float("nan"), float("nan"), float("nan"))


def calibration_check(
    probability: np.ndarray, correct: np.ndarray, weight: np.ndarray, document: np.ndarray
) -> CalibrationCheck:
    """Whether reviewed answers are as often correct as their probabilities say; all (n,)."""
    return CalibrationCheck(float("nan"), float("nan"), float("nan"), float("nan"))
