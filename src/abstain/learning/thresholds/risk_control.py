"""Risk control (Learn then Test): a threshold whose shown answers meet the target with a stated confidence.

Learn then Test (Angelopoulos et al. 2022), by MAPIE's `BinaryClassificationController`: each threshold tried is a
hypothesis, "the guarantee is broken here", to be rejected by an exact binomial p-value; the chance of any false
rejection is at most 1 - confidence. The guarantee is for *all* answers, not only for the reviewed ones.

Notes (each measured, docs/thresholds.md):

* MAPIE takes no weights, and a binomial p-value needs evenly sampled rows: rows are thinned by their weight
  (`calibration.thin`). That finds more than weighted bounds do, because the p-value stays exact.
* Fixed-sequence testing: thresholds are tried one after another, each at the whole error level, until one is not
  rejected: from the one that looks most significant on rows that do not test (the training split, out of fold)
  downwards. Only those rows decide which thresholds are tried, and in which order. An error rate falls as the threshold
  rises: there, from the highest down.
* The risk is written as an error: MAPIE's own `precision` tests 1 - precision, and its rounding makes that one
  incorrect answer too many for every fifth pair of counts. Thresholds that show no training row are not tried: their
  p-value would be nan, which MAPIE takes for the most significant one.

The guarantee is for answers like the tested ones, and assumes that these are independent. Errors of answers about one
document are correlated: with `ReviewedAnswers.groups` one answer a group tests, so the rows are independent, and fewer.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from abstain.config.params import ThresholdParams
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.learning.metrics.calibration import checked_rows, thin
from abstain.learning.metrics.weighted_metrics import Weight, effective_sample_size
from abstain.learning.thresholds.selection import Threshold, operating_point

Metric = Literal["precision", "error_rate"]

TRIED = 50
"""Candidate thresholds, evenly spaced by coverage; 20 or 200 of them reach the same coverage."""
POWER = 0.8
"""The chance of a guarantee with `reviews_needed` reviews."""
MOST_REVIEWS = 1_000_000


@dataclass(frozen=True)
class ReviewedAnswers:
    """Answers with a reviewer's verdict. All arrays are (rows,).

    `confidence` is in [0, 1], `correct` 0/1, `weight` that of `metrics.row_weights` (None: all answers were as likely
    to be reviewed). `groups`: answers whose errors are correlated; None: all answers are independent.
    """

    confidence: np.ndarray
    correct: np.ndarray
    weight: Weight = None
    groups: np.ndarray | None = None

    def checked(self, what: str) -> ReviewedAnswers:
        """The same with float64 confidences and weights. Raises `AbstainError` for no rows, or nan."""
        if not len(self.confidence):
            raise AbstainError(Code.TOO_FEW_LABELS, f"no reviewed answers {what}: bring reviews")
        return ReviewedAnswers(*checked_rows(self.confidence, self.correct, self.weight), self.groups)

    def even(self, seed: int) -> ReviewedAnswers:
        """An even sample of all answers, one a group where there are groups."""
        kept = thin(self._weight, seed, self.groups)
        return ReviewedAnswers(self.confidence[kept], self.correct[kept])

    @property
    def even_share(self) -> float:
        """The share of these rows that `even` keeps, on average."""
        weight = self._weight
        if self.groups is not None:
            weight = np.bincount(np.unique(self.groups, return_inverse=True)[1], weight)
        return float(weight.sum() / weight.max() / len(self.correct))

    def joined(self, other: ReviewedAnswers) -> ReviewedAnswers:
        """Both as one table, whose rows weigh as in their own (each table's heaviest 1); without groups."""
        weights = [rows._weight / rows._weight.max() for rows in (self, other)]
        return ReviewedAnswers(
            np.concatenate([self.confidence, other.confidence]),
            np.concatenate([self.correct, other.correct]),
            np.concatenate(weights),
        )

    @property
    def _weight(self) -> np.ndarray:
        return np.ones(len(self.correct)) if self.weight is None else self.weight


@dataclass(frozen=True)
class _Outcome:
    metric: Metric
    target: float
    confidence: float
    threshold: float
    precision: float
    error_rate: float
    coverage: float
    rows: int
    n_eff: int

    def to_dict(self) -> dict[str, Any]:
        """Every field, whether anything is `guaranteed`, and its one-line `message`."""
        return {"guaranteed": isinstance(self, ControlledThreshold), **asdict(self), "message": str(self)}

    def _counted(self) -> str:
        n_eff = "" if self.n_eff == self.rows else f" (effective sample size {self.n_eff})"
        return f"confidence {self.confidence:g} with {self.rows} reviewed answers{n_eff}"


@dataclass(frozen=True)
class ControlledThreshold(_Outcome):
    """A `threshold` that keeps `metric` at `target` with `confidence`. Fractions are in [0, 1].

    `rows` were reviewed, an effective sample size of `n_eff`. Of these, `shown` were shown (`coverage`),
    `precision` of those correct, and `error_rate` of all shown and incorrect. `p_value` is the chance to see as few
    incorrect ones, or fewer, if the guarantee were just broken at this threshold.
    """

    shown: int
    p_value: float

    def __str__(self) -> str:
        limit = "precision of at least" if self.metric == "precision" else "error rate of at most"
        return (
            f"{limit} {self.target:g} at {self._counted()}: threshold {self.threshold:.3f} shows "
            f"{self.coverage:.0%}, {self.precision:.3f} of them correct"
        )


@dataclass(frozen=True)
class NoControlledThreshold(_Outcome):
    """Why nothing is guaranteed, and what would help.

    `threshold` is the one nearest to the target; `precision`, `error_rate` and `coverage` are its estimates for all
    answers. `reviews_needed` answers, sampled like these, would give a guarantee with a chance of 80 % if these
    estimates are true. Where the estimate is not better than the target, they are those `at_least` needed if the truth
    is the best that these answers do not exclude at 95 %; None where no number of them would do.
    `more_reviews` are to be given for that, in all splits together.
    """

    reviews_needed: int | None
    more_reviews: int | None
    at_least: bool

    def __str__(self) -> str:
        message = f"no threshold reaches {self.metric.replace('_', ' ')} {self.target:g} at {self._counted()}"
        change = "lower" if self.metric == "precision" else "raise"
        if self.more_reviews is not None:
            about = "at least" if self.at_least else "about"
            return (
                f"{message}; {about} {self.reviews_needed:,} would be needed: bring {about} {self.more_reviews:,} more "
                f"reviews, or {change} threshold.target"
            )
        reached = self.precision if self.metric == "precision" else self.error_rate
        return (
            f"{message}, and more of them will not help: within reach is {reached:.3f} while showing "
            f"{self.coverage:.0%} (threshold {self.threshold:.3f}): {change} threshold.target, "
            "or train a better probe"
        )


def control_risk(
    tested: ReviewedAnswers, training: ReviewedAnswers, params: ThresholdParams, tested_share: float = 1.0
) -> ControlledThreshold | NoControlledThreshold:
    """The threshold that shows most among those that keep `params.metric` at `params.target`, guaranteed.

    Args:
        tested: the validation split, on which neither the probe nor a calibrator was fitted, so these are raw
            confidences.
        training: other answers, on the same scale (out of fold), which decide where testing starts. The guarantee does
            not depend on them; the more they resemble the tested ones, the higher the coverage.
        tested_share: how many of all reviews are of tested answers, for the number of reviews that are to be given.

    Raises `AbstainError` where there is no row, where a value is nan or out of range, and where every confidence of the
    training answers is above every tested one.
    """
    tested = tested.checked("to test a threshold on")
    training = training.checked("in the training split, to learn from which threshold to try first")
    even = tested.even(params.seed)
    # Another seed: with the same draws, what is tried would depend on which of the tested rows were kept.
    learn = replace(training, groups=None).even(params.seed + 1)
    tried, p_values = _tried(learn, params)
    threshold = _controlled(tried, p_values, learn, even, params)
    if threshold is None:
        return _no_guarantee(tried, tested, training, len(even.correct), params, tested_share)
    point = operating_point(even.confidence, even.correct, threshold)
    return ControlledThreshold(
        **_figures(point, params),
        rows=len(tested.correct),
        n_eff=len(even.correct),
        shown=point.shown,
        p_value=float(_p_values(np.array([threshold]), even, params)[0]),
    )


def reviews_needed(
    metric: Metric, target: float, confidence: float, reached: float, coverage: float, even_share: float = 1.0
) -> int | None:
    """The number of reviewed answers needed for a guarantee with a chance of 80 %, to within two percent.

    Args:
        reached: the precision (error rate) at the threshold; coverage: the share of all answers that it shows.
        even_share: evenly sampled answers per reviewed answer (`ReviewedAnswers.even_share`).

    None where `reached` is not better than the target, or not by enough for a million reviews.
    """
    from scipy.stats import binom

    tolerated, wrong = (1 - target, 1 - reached) if metric == "precision" else (target, reached)
    if not wrong < tolerated:
        return None
    size = np.unique(np.geomspace(1, MOST_REVIEWS, 1000).astype(int))
    most = binom.ppf(1 - confidence, size, tolerated)
    most = np.where(binom.cdf(most, size, tolerated) <= 1 - confidence, most, most - 1)  # incorrect ones allowed
    short = np.flatnonzero(binom.cdf(most, size, wrong) < POWER)
    enough = short[-1] + 1 if len(short) else 0
    if enough == len(size):
        return None
    needed = size[enough] / (even_share * (coverage if metric == "precision" else 1))
    return int(np.ceil(needed)) if needed <= MOST_REVIEWS else None


def _tried(learn: ReviewedAnswers, params: ThresholdParams) -> tuple[np.ndarray, np.ndarray]:
    """The thresholds to try (ascending, (tried,)) and their p-values on the training rows."""
    thresholds = np.unique(np.quantile(learn.confidence, np.arange(TRIED) / TRIED, method="lower"))
    p_values = _p_values(thresholds, learn, params)
    tried = slice(None if params.metric == "error_rate" else int(np.argmin(p_values)) + 1)
    return thresholds[tried], p_values[tried]


def _p_values(thresholds: np.ndarray, rows: ReviewedAnswers, params: ThresholdParams) -> np.ndarray:
    """P(as few incorrect answers or fewer | guarantee just broken) for each of (thresholds,): exact, binomial."""
    from scipy.stats import binom

    order = np.argsort(rows.confidence, kind="stable")
    first = np.searchsorted(rows.confidence[order], thresholds)
    wrong_from = np.append(np.cumsum((1 - rows.correct[order])[::-1])[::-1], 0)
    counted = len(order) - first if params.metric == "precision" else len(order)
    return np.asarray(binom.cdf(wrong_from[first], counted, _tolerated(params)))


def _controlled(
    tried: np.ndarray, p_values: np.ndarray, learn: ReviewedAnswers, even: ReviewedAnswers, params: ThresholdParams
) -> float | None:
    from mapie.risk_control import BinaryClassificationController, BinaryRisk

    def shown(correct: np.ndarray, decided: np.ndarray) -> np.ndarray:
        return np.asarray(decided == 1)

    def shown_and_wrong(correct: np.ndarray, decided: np.ndarray) -> np.ndarray:
        return np.asarray((decided == 1) & (correct == 0))

    def always(correct: np.ndarray, decided: np.ndarray) -> np.ndarray:
        return np.ones(len(correct), bool)

    learnt = params.metric == "precision"
    controller = BinaryClassificationController(
        predict_function=lambda confidence: np.column_stack([1 - confidence, confidence]),
        risk=BinaryRisk(shown_and_wrong, shown if learnt else always, higher_is_better=False),
        target_level=_tolerated(params),
        confidence_level=params.confidence,
        best_predict_param_choice=BinaryRisk(shown, always, higher_is_better=True),
        list_predict_params=tried,
        fwer_method="split_fixed_sequence" if learnt else "fixed_sequence",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no threshold, or every one, is good enough: the caller reports it
        if learnt:  # the order is read off at each threshold's own p-value, so that none is left out between two levels
            controller.learn_fixed_sequence_order(learn.confidence, learn.correct, np.sort(p_values), binary=True)
        controller.calibrate(even.confidence, even.correct)
    best = controller.best_predict_param
    return float(best) if best is not None and (even.confidence >= best).any() else None


def _no_guarantee(
    tried: np.ndarray,
    tested: ReviewedAnswers,
    training: ReviewedAnswers,
    n_eff: int,
    params: ThresholdParams,
    tested_share: float,
) -> NoControlledThreshold:
    """The outcome without a guarantee, with the number of reviews needed, estimated at the first of `tried` at which
    a tested answer is shown.

    The tested rows alone overestimate it, because this is reached where they looked bad by chance; the training rows,
    which chose the threshold, underestimate it. So both are joined. Where by both the available reviews should have
    been enough, the tested rows decide.
    """
    rows = len(tested.correct)
    showing = tried[tried <= tested.confidence.max()]
    threshold = float(showing[-1] if len(showing) else tried[-1])

    def needed_for(reached: float, coverage: float) -> int | None:
        return reviews_needed(params.metric, params.target, params.confidence, reached, coverage, tested.even_share)

    def judge(answers: ReviewedAnswers) -> tuple[dict[str, Any], int | None]:
        point = operating_point(answers.confidence, answers.correct, threshold, answers.weight)
        figures = _figures(point, params)
        return figures, needed_for(figures[params.metric], point.coverage)

    joined = tested.joined(training)
    figures, needed = judge(joined)
    if needed is not None and needed <= rows:
        if not len(showing):
            raise AbstainError(
                Code.NO_THRESHOLD,
                f"no reviewed answer of the validation split has a confidence of {tried[0]:.3f} or more, as every "
                "training answer has: score both on one scale, the training split out of fold",
            )
        figures, needed = judge(tested)
    at_least = needed is None
    if at_least:
        needed = needed_for(_best_not_excluded(joined, figures, params), figures["coverage"])
    more = None if needed is None else max(1, math.ceil((needed - rows) / tested_share))
    return NoControlledThreshold(
        **figures, rows=rows, n_eff=n_eff, reviews_needed=needed, more_reviews=more, at_least=at_least
    )


def _best_not_excluded(answers: ReviewedAnswers, figures: dict[str, Any], params: ThresholdParams) -> float:
    """The best precision (error rate) under which `answers` could be as bad as `figures` with a chance of 5 % (Clopper
    and Pearson)."""
    from scipy.stats import beta

    rows = effective_sample_size(answers._weight)
    wrong, counted = figures["error_rate"] * rows, rows
    if params.metric == "precision":
        counted = figures["coverage"] * rows
    least = float(beta.ppf(0.05, wrong, counted - wrong + 1)) if wrong > 0 else 0.0
    return 1 - least if params.metric == "precision" else least


def _figures(point: Threshold, params: ThresholdParams) -> dict[str, Any]:
    return {
        "metric": params.metric,
        "target": params.target,
        "confidence": params.confidence,
        "threshold": point.threshold,
        "precision": point.precision,
        "error_rate": point.error_rate,
        "coverage": point.coverage,
    }


def _tolerated(params: ThresholdParams) -> float:
    """The largest share of incorrect answers that keeps the guarantee."""
    return 1 - params.target if params.metric == "precision" else params.target
