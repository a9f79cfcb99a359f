"""Calibration: map a raw confidence to the probability that the answer is correct.

Notes:

* A calibrator is a few numbers and a numpy formula. It is stored as JSON in the ONNX file and reproduces the same
  values to the last bit; serving needs neither the library that fitted it nor a pickle.
* Every calibrator is non-decreasing, so it changes probabilities but never the ranking of answers.
* Rows are weighted by `weighted_metrics.row_weights`. The library for Venn-Abers accepts no weights, so its rows are
  thinned to an evenly weighted sample.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.learning.metrics.weighted_metrics import Weight

Method = Literal["none", "temperature", "isotonic", "venn_abers"]
Interval = tuple[np.ndarray, np.ndarray]
"""Lowest and highest probability of each answer."""
Numbers = tuple[float, ...]

MIN_PER_CLASS = 10
"""With fewer correct or incorrect answers nothing is calibrated: the result would be noise."""
THINNING_SEED = 5
"""Seed of the sample to which weighted rows are thinned."""
MAX_ABS_LOGIT = float(np.log(1e6))
"""Confidences of 0 and 1 have infinite logits; they are treated as 1e-6 and 1 - 1e-6."""
MAX_SCALE = 50.0
"""Temperature scaling is limited to scales in [1/50, 50]: confidences that separate the classes would make it infinite.
"""


@dataclass(frozen=True)
class Calibrator:
    """The identity, method "none", and the base class of the other calibrators.

    All arrays are (rows,) in [0, 1].
    """

    method: ClassVar[Method] = "none"

    def apply(self, confidence: np.ndarray) -> np.ndarray:
        """Calibrate confidences.

        Args:
            confidence: (rows,) raw confidences in [0, 1]; nan where there is none.

        Returns:
            float64 (rows,) probabilities; nan where the confidence is nan.
        """
        return np.asarray(confidence, float)

    def compute_interval(self, confidence: np.ndarray) -> Interval | None:
        """Compute the range of probabilities that the method allows for each answer.

        Args:
            confidence: (rows,) raw confidences in [0, 1]; nan where there is none.

        Returns:
            The lowest and the highest probability, each (rows,); None if the method gives a single probability.
        """
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the method's name and its parameters as JSON values.

        Returns:
            The input of `calibrator_from_dict`.
        """
        return {"method": self.method, **{k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}}


@dataclass(frozen=True)
class Temperature(Calibrator):
    """Temperature scaling, one parameter for all rows: p = sigmoid(scale * logit(c)), scale = 1 / T (Guo et al. 2017).

    A confidence of 0.5 stays 0.5: a constant offset is not corrected.

    Attributes:
        scale: The inverse temperature 1 / T, > 0.
    """

    method: ClassVar[Method] = "temperature"
    scale: float

    def apply(self, confidence: np.ndarray) -> np.ndarray:
        return _sigmoid(self.scale * _logit(confidence))


@dataclass(frozen=True)
class Isotonic(Calibrator):
    """Isotonic regression: the best non-decreasing fit (Zadrozny and Elkan 2002).

    It overfits with few answers: see docs/studies/thresholds.md.

    Attributes:
        knots: (n,) increasing confidences, between which the fit is linear; outside of them it is constant.
        values: (n,) probabilities at the knots, non-decreasing.
    """

    method: ClassVar[Method] = "isotonic"
    knots: Numbers
    values: Numbers

    def apply(self, confidence: np.ndarray) -> np.ndarray:
        x, values = np.asarray(confidence, float), np.array(self.values)
        next_index = np.minimum(np.searchsorted(self.knots, x, "right"), len(values) - 1)
        # np.interp may exceed the value at the next knot by a rounding error.
        interpolated = np.minimum(np.interp(x, self.knots, values), values[next_index])
        return np.asarray(interpolated)


@dataclass(frozen=True)
class VennAbers(Calibrator):
    """Inductive Venn-Abers predictor (Vovk, Petej and Fedorova 2015).

    Two isotonic fits, one that counts the new answer as incorrect (p0) and one that counts it as correct (p1). One of
    the two is perfectly calibrated for any data. The probability is p = p1 / (1 - p0 + p1).

    Both fits are step functions and are stored as their steps.

    Attributes:
        p0_knots: (n,) increasing confidences at which p0 changes: it is `p0_values[i]` from `p0_knots[i - 1]` on.
        p0_values: (n + 1,) values of p0.
        p1_knots: (m,) increasing confidences at which p1 changes: it is `p1_values[i]` above `p1_knots[i - 1]`.
        p1_values: (m + 1,) values of p1.
    """

    method: ClassVar[Method] = "venn_abers"
    p0_knots: Numbers
    p0_values: Numbers
    p1_knots: Numbers
    p1_values: Numbers

    def apply(self, confidence: np.ndarray) -> np.ndarray:
        p0, p1 = self.compute_interval(confidence)
        with np.errstate(divide="ignore"):
            return np.asarray(1 / (1 + (1 - p0) / p1))  # in this form rounding cannot change the order of rows

    def compute_interval(self, confidence: np.ndarray) -> Interval:
        x = np.asarray(confidence, float)
        p0 = np.array(self.p0_values)[np.searchsorted(self.p0_knots, x, "right")]
        p1 = np.array(self.p1_values)[np.searchsorted(self.p1_knots, x, "left")]
        return np.where(np.isnan(x), x, p0), np.where(np.isnan(x), x, p1)


def fit_calibrator(method: Method, confidence: np.ndarray, correct: np.ndarray, weight: Weight = None) -> Calibrator:
    """Fit a calibrator on answers that no model was trained on.

    Args:
        method: "venn_abers", "isotonic", "temperature" or "none". "venn_abers" is fitted on a rejection sample with a
            fixed seed if the weights differ.
        confidence: (rows,) raw confidences in [0, 1].
        correct: (rows,) labels, 0 or 1.
        weight: (rows,) sampling weights > 0; None means equal weights.

    Returns:
        The calibrator. "none" returns confidences unchanged and accepts any number of rows.

    Raises:
        AbstainError: The method is unknown, a value is out of range, or fewer than `MIN_PER_CLASS` answers
            are correct, or fewer are incorrect.
        ValueError: The shapes differ.
    """
    if method not in get_args(Method):
        raise AbstainError(
            Code.UNKNOWN_NAME, f"unknown calibration '{method}': choose one of {', '.join(get_args(Method))}"
        )
    confidence, correct, weight = validate_rows(confidence, correct, weight)
    if method == "none":
        return Calibrator()
    if method == "venn_abers":
        sampled = rejection_sample(weight, THINNING_SEED)
        _check_classes(method, correct[sampled], len(correct))
        return _fit_venn_abers(confidence[sampled], correct[sampled])
    _check_classes(method, correct, len(correct))
    fit = _fit_temperature if method == "temperature" else _fit_isotonic
    return fit(confidence, correct, weight)


def calibrator_from_dict(stored: Mapping[str, Any]) -> Calibrator:
    """Restore a calibrator from the output of `Calibrator.to_dict`.

    Args:
        stored: The method's name and its parameters.

    Returns:
        The calibrator.

    Raises:
        AbstainError: A field is missing or unknown, or the result is not a non-decreasing function.
    """
    try:
        classes_by_method: dict[str, Any] = {
            calibrator_class.method: calibrator_class
            for calibrator_class in (Calibrator, Temperature, Isotonic, VennAbers)
        }
        parameters = {k: tuple(v) if isinstance(v, list) else v for k, v in stored.items() if k != "method"}
        calibrator: Calibrator = classes_by_method[stored["method"]](**parameters)
        probabilities = calibrator.apply(np.array([0.0, 0.5, 1.0]))
        if not (np.diff(probabilities) >= 0).all():
            raise ValueError
    except (KeyError, TypeError, ValueError, IndexError):
        raise AbstainError(
            Code.BAD_ARTIFACT, "the stored calibration is damaged or incomplete: export the probe again"
        ) from None
    return calibrator


def rejection_sample(weight: np.ndarray, seed: int) -> np.ndarray:
    """Select an evenly weighted sample of weighted rows, for methods that accept no weights.

    A row is selected with probability weight / max(weight), so equal weights select all rows.

    Args:
        weight: (rows,) sampling weights > 0.
        seed: Seed of the random numbers.

    Returns:
        bool (rows,) mask of the selected rows.
    """
    uniform = np.random.default_rng(seed).random(len(weight))
    return np.asarray(uniform < weight / weight.max(initial=0))


def validate_rows(
    confidence: np.ndarray, correct: np.ndarray, weight: Weight
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Check and convert the input of a calibrator or a threshold.

    Args:
        confidence: (rows,) in [0, 1].
        correct: (rows,) of 0 and 1.
        weight: (rows,) finite and > 0; None means equal weights.

    Returns:
        `confidence` as float64, `correct` as int and the weights as float64, each (rows,).

    Raises:
        AbstainError: A value is out of range; the message names the invalid array.
        ValueError: The shapes differ.
    """
    confidence, correct = np.asarray(confidence, float), np.asarray(correct)
    weight = np.ones(len(confidence)) if weight is None else np.asarray(weight, float)
    if not confidence.shape == correct.shape == weight.shape or confidence.ndim != 1:
        raise ValueError(
            f"confidences {confidence.shape}, labels {correct.shape} and weights {weight.shape} differ in shape"
        )
    is_score, is_label = (confidence >= 0) & (confidence <= 1), np.isin(correct, (0, 1))
    is_weight = np.isfinite(weight) & (weight > 0)
    for is_valid, code, description in (
        (is_score, Code.NOT_FINITE, "a confidence that is not in [0, 1]: score them again"),
        (is_label, Code.INVALID_ROW, "a label that is neither 0 nor 1: leave unreviewed answers out"),
        (is_weight, Code.INVALID_ROW, "a weight that is not above 0: see their inclusion probabilities"),
    ):
        if not is_valid.all():
            raise AbstainError(code, f"{(~is_valid).sum()} of {len(is_valid)} reviewed answers have {description}")
    return confidence, correct.astype(int), weight


def _check_classes(method: Method, correct: np.ndarray, n_reviewed: int) -> None:
    thinned = "" if n_reviewed == len(correct) else f", {len(correct)} after thinning"
    for count, name in ((int(correct.sum()), "correct"), (int(len(correct) - correct.sum()), "incorrect")):
        if count < MIN_PER_CLASS:
            raise AbstainError(
                Code.TOO_FEW_LABELS,
                f"calibration by {method} needs {MIN_PER_CLASS} correct and {MIN_PER_CLASS} incorrect reviewed "
                f"answers, and only {count} are {name} (of {n_reviewed}{thinned}): bring more reviews, "
                "or set calibration.method to none",
            )


def _fit_temperature(confidence: np.ndarray, correct: np.ndarray, weight: np.ndarray) -> Temperature:
    from scipy.optimize import minimize_scalar

    logit, sign = _logit(confidence), 2 * correct - 1

    def loss(log_scale: float) -> float:
        return float(np.average(np.logaddexp(0, -sign * np.exp(log_scale) * logit), weights=weight))

    limit = np.log(MAX_SCALE)
    optimum = minimize_scalar(loss, bounds=(-limit, limit), method="bounded", options={"xatol": 1e-6})
    return Temperature(float(np.exp(optimum.x)))


def _fit_isotonic(confidence: np.ndarray, correct: np.ndarray, weight: np.ndarray) -> Isotonic:
    from sklearn.isotonic import IsotonicRegression

    fitted = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(confidence, correct, weight)
    return Isotonic(tuple(fitted.X_thresholds_.tolist()), tuple(fitted.y_thresholds_.tolist()))


def _fit_venn_abers(confidence: np.ndarray, correct: np.ndarray) -> VennAbers:
    with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
        # The library divides by zero on purpose, and switches numpy's warnings off for good when it is imported.
        warnings.simplefilter("ignore", RuntimeWarning)
        from venn_abers import VennAbers as Fitter

        fitted = Fitter().fit(np.column_stack([1 - confidence, confidence]), correct)
    return VennAbers(*_find_steps(fitted.c, fitted.p0[:, 1]), *_find_steps(fitted.c, fitted.p1[:, 1]))


def _find_steps(knots: np.ndarray, values: np.ndarray) -> tuple[Numbers, Numbers]:
    """Reduce a step function to its changes: their positions (steps,) and the values around them (steps + 1,)."""
    changes = np.diff(values) != 0
    return tuple(knots[changes].tolist()), (float(values[0]), *values[1:][changes].tolist())


def _logit(confidence: np.ndarray) -> np.ndarray:
    x = np.asarray(confidence, float)
    with np.errstate(divide="ignore"):
        return np.asarray(np.clip(np.log(x) - np.log1p(-x), -MAX_ABS_LOGIT, MAX_ABS_LOGIT))


def _sigmoid(logit: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-logit)))
