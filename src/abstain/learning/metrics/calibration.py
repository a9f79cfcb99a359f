"""Calibration: from a raw confidence to a probability of being correct.

Notes:

* A calibrator is a few numbers and a numpy formula: it is stored as JSON in the ONNX file and reproduces the same
  figures to the last bit; serving needs neither the library that fitted it nor a pickle.
* Every calibrator is non-decreasing, so it changes probabilities but never the ranking of answers.
* Rows are weighted by `metrics.row_weights`. Venn-Abers' library takes no weights, so its rows are thinned to an even
  sample.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np

from abstain.core.codes import Code
from abstain.core.errors import AbstainError

if TYPE_CHECKING:  # it imports scikit-learn, which serving does not need
    from abstain.learning.metrics.weighted_metrics import Weight

Method = Literal["none", "temperature", "isotonic", "venn_abers"]
Interval = tuple[np.ndarray, np.ndarray]
Numbers = tuple[float, ...]

MIN_PER_CLASS = 10
"""With fewer correct or incorrect answers nothing is calibrated: the result would be noise."""
THINNING_SEED = 5
LARGEST_LOGIT = float(np.log(1e6))
"""Confidences of 0 and 1 have no logit; they count as one in a million from it."""
MAX_SLOPE = 50.0
"""The temperature's scale stays within 1/50 and 50: confidences that separate the rows fully would have it endless."""


@dataclass(frozen=True)
class Calibrator:
    """Leaves confidences as they are (`none`); the base of those that do not. All arrays are (rows,), in [0, 1]."""

    method: ClassVar[Method] = "none"

    def apply(self, confidence: np.ndarray) -> np.ndarray:
        """Calibrated probabilities, float64 (rows,); nan where the confidence is nan."""
        return np.asarray(confidence, float)

    def interval(self, confidence: np.ndarray) -> Interval | None:
        """The lowest and the highest probability that the method allows, each (rows,); None: it gives one alone."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """The input of `calibrator_from_dict`: the method's name, numbers and lists of numbers."""
        return {"method": self.method, **{k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}}


@dataclass(frozen=True)
class Temperature(Calibrator):
    """sigmoid(scale * logit(confidence)), scale = 1 / temperature (Guo et al. 2017): one number for all rows.

    A confidence of 0.5 stays 0.5: a constant offset is not corrected.
    """

    method: ClassVar[Method] = "temperature"
    scale: float

    def apply(self, confidence: np.ndarray) -> np.ndarray:
        return _sigmoid(self.scale * _logit(confidence))


@dataclass(frozen=True)
class Isotonic(Calibrator):
    """The best non-decreasing fit: straight lines between `values` at confidences `knots`, flat outside."""

    method: ClassVar[Method] = "isotonic"
    knots: Numbers
    values: Numbers

    def apply(self, confidence: np.ndarray) -> np.ndarray:
        x, level = np.asarray(confidence, float), np.array(self.values)
        above = np.minimum(np.searchsorted(self.knots, x, "right"), len(level) - 1)
        value = np.minimum(np.interp(x, self.knots, level), level[above])  # rounding would pass the next level by a bit
        return np.asarray(value)


@dataclass(frozen=True)
class VennAbers(Calibrator):
    """Inductive Venn-Abers (Vovk, Petej and Fedorova 2015): two isotonic fits, one that counts the new answer as
    incorrect (p0) and one that counts it as correct (p1). One of the two is perfectly calibrated for any data.

    Both are step functions, kept as their steps: p0 is `low[i]` from confidence `low_at[i - 1]` on, that one included;
    p1 is `high[i]` above `high_at[i - 1]`, that one left out. The probability is p1 / (1 - p0 + p1).
    """

    method: ClassVar[Method] = "venn_abers"
    low_at: Numbers
    low: Numbers
    high_at: Numbers
    high: Numbers

    def apply(self, confidence: np.ndarray) -> np.ndarray:
        p0, p1 = self.interval(confidence)
        with np.errstate(divide="ignore"):
            return np.asarray(1 / (1 + (1 - p0) / p1))  # no step of this form rounds against the order of rows

    def interval(self, confidence: np.ndarray) -> Interval:
        x = np.asarray(confidence, float)
        p0 = np.array(self.low)[np.searchsorted(self.low_at, x, "right")]
        p1 = np.array(self.high)[np.searchsorted(self.high_at, x, "left")]
        return np.where(np.isnan(x), x, p0), np.where(np.isnan(x), x, p1)


def fit_calibrator(method: Method, confidence: np.ndarray, correct: np.ndarray, weight: Weight = None) -> Calibrator:
    """A calibrator of `method`, on answers that nothing was trained on.

    Args:
        confidence: (rows,) in [0, 1]. correct: (rows,) of 0/1. weight: (rows,) > 0, None for equal ones.

    Raises `AbstainError` where a value is out of these ranges, and where fewer than 10 answers are correct, or
    incorrect; `none` fits nothing and takes any number.
    """
    if method not in get_args(Method):
        raise AbstainError(
            Code.UNKNOWN_NAME, f"unknown calibration '{method}': choose one of {', '.join(get_args(Method))}"
        )
    confidence, correct, weight = validate_rows(confidence, correct, weight)
    if method == "none":
        return Calibrator()
    if method == "venn_abers":
        kept = rejection_sample(weight, THINNING_SEED)
        _check_classes(method, correct[kept], len(correct))
        return _fit_venn_abers(confidence[kept], correct[kept])
    _check_classes(method, correct, len(correct))
    fit = _fit_temperature if method == "temperature" else _fit_isotonic
    return fit(confidence, correct, weight)


def calibrator_from_dict(stored: Mapping[str, Any]) -> Calibrator:
    """The calibrator that `to_dict` was called on. Raises `AbstainError` where it is not whole."""
    try:
        kinds: dict[str, Any] = {one.method: one for one in (Calibrator, Temperature, Isotonic, VennAbers)}
        numbers = {k: tuple(v) if isinstance(v, list) else v for k, v in stored.items() if k != "method"}
        calibrator: Calibrator = kinds[stored["method"]](**numbers)
        probe = calibrator.apply(np.array([0.0, 0.5, 1.0]))
        if not (np.diff(probe) >= 0).all():
            raise ValueError
    except (KeyError, TypeError, ValueError, IndexError):
        raise AbstainError(Code.BAD_ARTIFACT, "the stored calibration is not whole: export the probe again") from None
    return calibrator


def rejection_sample(weight: np.ndarray, seed: int) -> np.ndarray:
    """The mask (rows,) of an even sample of all answers (rejection sampling), all rows for equal weights.

    A row stays with probability weight / max(weight): for methods that take no weights.
    """
    drawn = np.random.default_rng(seed).random(len(weight))
    return np.asarray(drawn < weight / weight.max(initial=0))


def validate_rows(
    confidence: np.ndarray, correct: np.ndarray, weight: Weight
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Confidences and weights as float64, `correct` as int, each (rows,). `AbstainError` names the invalid one."""
    confidence, correct = np.asarray(confidence, float), np.asarray(correct)
    weight = np.ones(len(confidence)) if weight is None else np.asarray(weight, float)
    if not confidence.shape == correct.shape == weight.shape or confidence.ndim != 1:
        raise AbstainError(
            Code.BAD_ARTIFACT,
            f"confidences {confidence.shape}, verdicts {correct.shape} and weights {weight.shape} differ in shape: "
            "each answer needs one of each",
        )
    for wrong, what in (
        (~((confidence >= 0) & (confidence <= 1)), "a confidence that is not in [0, 1]: score them again"),
        (~np.isin(correct, (0, 1)), "a verdict that is neither 0 nor 1: leave unreviewed answers out"),
        (~(np.isfinite(weight) & (weight > 0)), "a weight that is not above 0: see their inclusion probabilities"),
    ):
        if wrong.any():
            raise AbstainError(Code.NOT_FINITE, f"{wrong.sum()} of {len(wrong)} reviewed answers have {what}")
    return confidence, correct.astype(int), weight


def _check_classes(method: Method, correct: np.ndarray, reviewed: int) -> None:
    n_eff = "" if reviewed == len(correct) else f", effective sample size {len(correct)}"
    for count, name in ((int(correct.sum()), "correct"), (int(len(correct) - correct.sum()), "incorrect")):
        if count < MIN_PER_CLASS:
            raise AbstainError(
                Code.TOO_FEW_LABELS,
                f"calibration by {method} needs {MIN_PER_CLASS} correct and {MIN_PER_CLASS} incorrect reviewed "
                f"answers, and only {count} are {name} (of {reviewed}{n_eff}): bring more reviews, "
                "or set calibration.method to none",
            )


def _fit_temperature(confidence: np.ndarray, correct: np.ndarray, weight: np.ndarray) -> Temperature:
    from scipy.optimize import minimize_scalar

    logit, sign = _logit(confidence), 2 * correct - 1

    def loss(log_scale: float) -> float:
        return float(np.average(np.logaddexp(0, -sign * np.exp(log_scale) * logit), weights=weight))

    limit = np.log(MAX_SLOPE)
    found = minimize_scalar(loss, bounds=(-limit, limit), method="bounded", options={"xatol": 1e-6})
    return Temperature(float(np.exp(found.x)))


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
    return VennAbers(*_steps(fitted.c, fitted.p0[:, 1]), *_steps(fitted.c, fitted.p1[:, 1]))


def _steps(at: np.ndarray, level: np.ndarray) -> tuple[Numbers, Numbers]:
    """Only the places where the level changes: (steps,) and the levels around them (steps + 1,)."""
    changes = np.diff(level) != 0
    return tuple(at[changes].tolist()), (float(level[0]), *level[1:][changes].tolist())


def _logit(confidence: np.ndarray) -> np.ndarray:
    x = np.asarray(confidence, float)
    with np.errstate(divide="ignore"):
        return np.asarray(np.clip(np.log(x) - np.log1p(-x), -LARGEST_LOGIT, LARGEST_LOGIT))


def _sigmoid(logit: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-logit)))
