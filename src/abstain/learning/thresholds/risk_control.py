"""Risk control (Learn then Test): a threshold whose shown answers meet the target with a stated confidence.

Learn then Test (Angelopoulos et al. 2022): each threshold tried is a hypothesis, "the guarantee is broken here", to be
rejected by a p-value; the chance of any false rejection is at most 1 - confidence. The guarantee is for *all* answers
like the tested ones, not only for the reviewed ones.

Notes (each measured, docs/thresholds.md):

* The p-value is exact and binomial, of as many independent answers as the tested ones are worth (`design_effect`):
  answers about one document err together, and some weigh more than others. All reviewed answers are used whole.
* Fixed-sequence testing: thresholds are tried one after another, each at the whole error level, until one is not
  rejected: from the one that looks most significant on rows that do not test (the training split, out of fold)
  downwards. Only those rows decide which thresholds are tried, and in which order. An error rate falls as the threshold
  rises: there, from the highest down.
* One person's word is no guarantee: the largest share of a reviewer in the counted answers is told, and may be limited
  (`threshold.max_reviewer_share`). The limit is applied after the test, so it only ever takes a guarantee away.
* Few documents tell too little of how their answers err together: below `MIN_GROUPS` nothing is guaranteed.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from abstain.config.params import ThresholdParams
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.learning.metrics.calibration import validate_rows
from abstain.learning.metrics.weighted_metrics import Weight, effective_sample_size
from abstain.learning.thresholds.design_effect import GroupTotals, compute_group_totals, intraclass_correlation
from abstain.learning.thresholds.reviewer_share import ReviewerShare, find_largest_share
from abstain.learning.thresholds.selection import OperatingPoint, compute_operating_point

Metric = Literal["precision", "error_rate"]

MAX_CANDIDATES = 50
"""Candidate thresholds, evenly spaced by coverage; 20 or 200 of them reach the same coverage."""
POWER = 0.8
"""The chance of a guarantee with `reviews_needed` reviews."""
MAX_REVIEWS_NEEDED = 1_000_000
MIN_GROUPS = 10
"""The fewest groups whose answers give a guarantee."""
VOID_CONDITION = "void if handbook, model or questions change"


@dataclass(frozen=True)
class ReviewedAnswers:
    """Answers with a reviewer's verdict. All arrays are (rows,).

    `confidence` is in [0, 1], `correct` 0/1, `weight` that of `metrics.row_weights` (None: all answers were as likely
    to be reviewed). `groups`: answers whose errors may be correlated; None: each answer is a group. `drawn`: whether
    all were drawn with known probabilities, so that they stand for all answers; volunteered reviews chose themselves.
    `reviewers` are those whose verdict decided, one or more a row; None: it is not asked who judged.
    """

    confidence: np.ndarray
    correct: np.ndarray
    weight: Weight = None
    groups: np.ndarray | None = None
    drawn: bool = True
    reviewers: np.ndarray | None = None

    def validate(self, what: str) -> ReviewedAnswers:
        """The same with float64 confidences, weights and groups. Raises `AbstainError` for no rows, or nan."""
        if not len(self.confidence):
            raise AbstainError(Code.TOO_FEW_LABELS, f"no reviewed answers {what}: bring reviews")
        groups = np.arange(len(self.confidence)) if self.groups is None else self.groups
        rows = validate_rows(self.confidence, self.correct, self.weight)
        return ReviewedAnswers(*rows, groups, self.drawn, self.reviewers)

    def join(self, other: ReviewedAnswers) -> ReviewedAnswers:
        """Both as one table, whose rows weigh as in their own (each table's heaviest 1); without groups."""
        weights = [rows._weight / rows._weight.max() for rows in (self, other)]
        return ReviewedAnswers(
            np.concatenate([self.confidence, other.confidence]),
            np.concatenate([self.correct, other.correct]),
            np.concatenate(weights),
        )

    def find_largest_reviewer(self, metric: Metric, threshold: float) -> ReviewerShare | None:
        """The largest share of one reviewer in the answers that `metric` counts at `threshold`."""
        if self.reviewers is None:
            return None
        counted = self.confidence >= threshold if metric == "precision" else np.ones(len(self.correct), bool)
        return find_largest_share(self.reviewers[counted], self._weight[counted])

    @property
    def n_groups(self) -> int:
        """The number of groups."""
        return len(self.correct) if self.groups is None else len(np.unique(self.groups))

    def totals(self, thresholds: np.ndarray, metric: Metric) -> GroupTotals:
        """`compute_group_totals` of these answers, which must be `validate`."""
        assert self.groups is not None
        return compute_group_totals(self.confidence, self.correct, self._weight, self.groups, thresholds, metric)

    @property
    def _weight(self) -> np.ndarray:
        return np.ones(len(self.correct)) if self.weight is None else self.weight


@dataclass(frozen=True)
class _ThresholdResult:
    metric: Metric
    target: float
    confidence: float
    threshold: float
    precision: float
    error_rate: float
    coverage: float
    rows: int
    groups: int
    drawn: bool
    icc: float
    n_eff: int
    largest_reviewer: ReviewerShare | None

    def to_dict(self) -> dict[str, Any]:
        """Every field, whether anything is `guaranteed`, what voids it, and its `message`."""
        return {
            "guaranteed": isinstance(self, ControlledThreshold),
            **asdict(self),
            "void": VOID_CONDITION,
            "message": str(self),
        }

    def _describe_groups(self) -> str:
        return "" if self.groups == self.rows else f" about {self.groups:,} documents"

    def _describe_reviewer(self) -> str:
        return "" if self.largest_reviewer is None else f"; {self.largest_reviewer}"


@dataclass(frozen=True)
class ControlledThreshold(_ThresholdResult):
    """A `threshold` that keeps `metric` at `target` with `confidence`. Fractions are in [0, 1].

    It holds for all answers where the reviewed ones were `drawn` with known probabilities, else for answers like these.

    `rows` were reviewed, about `groups` documents, of which `shown` were shown (`coverage`), `precision` of those
    correct, and `error_rate` of all shown and incorrect. The answers that `metric` counts (shown ones for a precision,
    all for an error rate) are worth `n_eff` independent ones; `icc` is the estimated correlation of being incorrect
    within a document. `p_value` is the chance to see as few incorrect ones, or fewer, if the guarantee were just broken
    at this threshold. `largest_reviewer` has the largest share of the weight of the answers that `metric` counts.
    """

    shown: int
    p_value: float

    def __str__(self) -> str:
        limit = "precision of at least" if self.metric == "precision" else "error rate of at most"
        of, drawn = ("all answers", "drawn at random") if self.drawn else ("answers like those reviewed", "not drawn")
        counted = self.shown if self.metric == "precision" else self.rows
        worth = f" (worth {self.n_eff:,} independent, ICC {self.icc:.2f})"
        return (
            f"{limit} {self.target:g} of {of} at confidence {self.confidence:g}: threshold {self.threshold:.3f} shows "
            f"{self.coverage:.0%}, {self.precision:.3f} correct, by {self.rows:,} reviews {drawn}{self._describe_groups()}"
            f"{'' if self.n_eff == counted else worth}{self._describe_reviewer()}; {VOID_CONDITION}"
        )


@dataclass(frozen=True)
class InfeasibleThreshold(_ThresholdResult):
    """Why nothing is guaranteed, and what would help.

    `threshold` is the one nearest to the target; `precision`, `error_rate` and `coverage` are its estimates for all
    answers. `reviews_needed` answers, sampled like these, would give a guarantee with a chance of 80 % if these
    estimates are true. Where the estimate is not better than the target, they are those `is_lower_bound` needed if the
    truth is the best that these answers do not exclude at 95 %; None where no number of them would do. `more_reviews`
    are to be given for that, in all splits together; about other documents where there are fewer than `MIN_GROUPS`.
    """

    reviews_needed: int | None
    more_reviews: int | None
    is_lower_bound: bool

    def __str__(self) -> str:
        chosen = "" if self.drawn else " that were not drawn at random"
        message = (
            f"no threshold reaches {self.metric.replace('_', ' ')} {self.target:g} at confidence {self.confidence:g} "
            f"with {self.rows:,} reviewed answers{self._describe_groups()}{chosen}"
        )
        if self.groups < min(MIN_GROUPS, self.rows):
            return (
                f"{message}: too few documents to tell how answers about one err together: review answers about at "
                f"least {MIN_GROUPS}"
            )
        change = "lower" if self.metric == "precision" else "raise"
        if self.more_reviews is not None:
            about = "at least" if self.is_lower_bound else "about"
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


@dataclass(frozen=True)
class ReviewerShareExceeded(InfeasibleThreshold):
    """A threshold passes the test, but one reviewer judged more than `max_reviewer_share` of what the test is of.

    `reviews_needed` bring that share down to the limit if others review all that are more.
    """

    max_reviewer_share: float

    def __str__(self) -> str:
        fewest = math.ceil(1 / self.max_reviewer_share - 1e-9)
        return (
            f"{self.metric.replace('_', ' ')} {self.target:g} is reached at confidence {self.confidence:g} with "
            f"{self.rows:,} reviewed answers{self._describe_reviewer()}, {self.max_reviewer_share:.0%} allowed "
            f"(threshold.max_reviewer_share): have other reviewers review about {self.more_reviews:,} more answers, by "
            f"{fewest} reviewers or more in all"
        )


@dataclass(frozen=True)
class _Tests:
    """The thresholds tried, in the order in which they are tested, and what the tested answers say of each."""

    thresholds: np.ndarray
    icc: np.ndarray
    n_eff: np.ndarray
    p_values: np.ndarray


def control_risk(
    validation: ReviewedAnswers, training: ReviewedAnswers, params: ThresholdParams, validation_share: float = 1.0
) -> ControlledThreshold | InfeasibleThreshold:
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
    validation = validation.validate("to test a threshold on")
    training = training.validate("in the training split, to learn from which threshold to try first")
    tests = _test_thresholds(validation, training, params)
    passed = int(np.cumprod(tests.p_values <= 1 - params.confidence).sum())
    last = passed - 1
    if not passed or not (validation.confidence >= tests.thresholds[last]).any() or validation.n_groups < MIN_GROUPS:
        return _no_guarantee(tests, validation, training, params, validation_share)
    point = compute_operating_point(
        validation.confidence, validation.correct, float(tests.thresholds[last]), validation.weight
    )
    figures = _figures(point, tests, last, validation, params)
    largest, limit = figures["largest_reviewer"], params.max_reviewer_share
    if limit is not None and largest is not None and largest.share > limit:
        needed = math.ceil(len(validation.correct) * largest.share / limit)
        more = math.ceil((needed - len(validation.correct)) / validation_share)
        return ReviewerShareExceeded(
            **figures, reviews_needed=needed, more_reviews=more, is_lower_bound=False, max_reviewer_share=limit
        )
    return ControlledThreshold(**figures, shown=point.shown, p_value=float(tests.p_values[last]))


def estimate_reviews_needed(
    metric: Metric,
    target: float,
    confidence: float,
    estimated_value: float,
    coverage: float,
    effective_share: float = 1.0,
) -> int | None:
    """The number of reviewed answers needed for a guarantee with a chance of 80 %, to within two percent.

    Args:
        reached: the precision (error rate) at the threshold; coverage: the share of all answers that it shows.
        effective_share: independent answers that a counted one is worth.

    None where `reached` is not better than the target, or not by enough for a million reviews.
    """
    from scipy.stats import binom

    tolerated, wrong = (1 - target, 1 - estimated_value) if metric == "precision" else (target, estimated_value)
    if not wrong < tolerated:
        return None
    size = np.unique(np.geomspace(1, MAX_REVIEWS_NEEDED, 1000).astype(int))
    most = binom.ppf(1 - confidence, size, tolerated)
    most = np.where(binom.cdf(most, size, tolerated) <= 1 - confidence, most, most - 1)  # incorrect ones allowed
    short = np.flatnonzero(binom.cdf(most, size, wrong) < POWER)
    enough = short[-1] + 1 if len(short) else 0
    if enough == len(size):
        return None
    needed = size[enough] / (effective_share * (coverage if metric == "precision" else 1))
    return int(np.ceil(needed)) if needed <= MAX_REVIEWS_NEEDED else None


def candidate_thresholds(training: ReviewedAnswers) -> np.ndarray:
    """Up to `MAX_CANDIDATES` thresholds, ascending, evenly spaced by their coverage of the training answers."""
    shares = np.arange(MAX_CANDIDATES) / MAX_CANDIDATES
    return np.unique(np.quantile(training.confidence, shares, weights=training.weight, method="inverted_cdf"))


def _test_thresholds(tested: ReviewedAnswers, training: ReviewedAnswers, params: ThresholdParams) -> _Tests:
    thresholds = candidate_thresholds(training)
    counted, learnt = (rows.totals(thresholds, params.metric) for rows in (tested, training))
    icc, safe_icc = intraclass_correlation(counted, learnt)
    n_eff = counted.effective_size(safe_icc)
    p_values = _p_values(counted.incorrect_share, n_eff, params)
    start = len(thresholds) - 1
    if params.metric == "precision":
        start = int(np.argmin(_p_values(learnt.incorrect_share, learnt.effective_size(safe_icc), params)))
    order = np.arange(start, -1, -1)
    return _Tests(thresholds[order], icc[order], n_eff[order], p_values[order])


def _p_values(wrong_share: np.ndarray, n_eff: np.ndarray, params: ThresholdParams) -> np.ndarray:
    """P(as few incorrect answers or fewer | guarantee just broken), binomial, of `n_eff` answers; 1 of none."""
    from scipy.special import betainc

    wrong, some = wrong_share * n_eff, wrong_share < 1
    right = np.where(some, n_eff - wrong, 1.0)
    of_some = betainc(
        np.maximum(right, 1e-12), wrong + 1, 1 - _get_tolerated_error(params)
    )  # binom.cdf, of any real numbers
    return np.where(some & (n_eff > 0), of_some, 1.0)


def _no_guarantee(
    tests: _Tests, tested: ReviewedAnswers, training: ReviewedAnswers, params: ThresholdParams, tested_share: float
) -> InfeasibleThreshold:
    """The outcome without a guarantee, with the number of reviews needed, estimated at the first threshold tried at
    which a tested answer is shown.

    The tested rows alone overestimate it, because this is reached where they looked bad by chance; the training rows,
    which chose the threshold, underestimate it. So both are joined. Where by both the available reviews should have
    been enough, the tested rows decide.
    """
    rows, groups = len(tested.correct), tested.n_groups
    showing = np.flatnonzero(tests.thresholds <= tested.confidence.max())
    at = int(showing[0]) if len(showing) else 0
    threshold = float(tests.thresholds[at])
    shown = compute_operating_point(tested.confidence, tested.correct, threshold).shown
    counted = shown if params.metric == "precision" else rows
    effective_share = tests.n_eff[at] / counted if counted and tests.n_eff[at] else 1.0

    def needed_for(reached: float, coverage: float) -> int | None:
        return estimate_reviews_needed(
            params.metric, params.target, params.confidence, reached, coverage, effective_share
        )

    def judge(answers: ReviewedAnswers) -> tuple[dict[str, Any], int | None]:
        point = compute_operating_point(answers.confidence, answers.correct, threshold, answers.weight)
        figures = _figures(point, tests, at, tested, params)
        return figures, needed_for(figures[params.metric], point.coverage)

    joined = tested.join(training)
    figures, needed = judge(joined)
    if needed is not None and needed <= rows:
        if not len(showing):
            raise AbstainError(
                Code.NO_THRESHOLD,
                "no reviewed answer of the validation split has a confidence of "
                f"{tests.thresholds[-1]:.3f} or more, as every training answer has: score both on one scale, the "
                "training split out of fold",
            )
        figures, needed = judge(tested)
    at_least = needed is None
    if at_least:
        needed = needed_for(_best_plausible_value(joined, figures, params), figures["coverage"])
    if needed is not None and groups < MIN_GROUPS:
        needed = max(needed, math.ceil(rows * MIN_GROUPS / groups))
    more = None if needed is None else max(1, math.ceil((needed - rows) / tested_share))
    return InfeasibleThreshold(**figures, reviews_needed=needed, more_reviews=more, is_lower_bound=at_least)


def _best_plausible_value(answers: ReviewedAnswers, figures: dict[str, Any], params: ThresholdParams) -> float:
    """The best precision (error rate) under which `answers` could be as bad as `figures` with a chance of 5 % (Clopper
    and Pearson)."""
    from scipy.stats import beta

    rows = effective_sample_size(answers._weight)
    wrong, counted = figures["error_rate"] * rows, rows
    if params.metric == "precision":
        counted = figures["coverage"] * rows
    least = float(beta.ppf(0.05, wrong, counted - wrong + 1)) if wrong > 0 else 0.0
    return 1 - least if params.metric == "precision" else least


def _figures(
    point: OperatingPoint, tests: _Tests, at: int, tested: ReviewedAnswers, params: ThresholdParams
) -> dict[str, Any]:
    return {
        "metric": params.metric,
        "target": params.target,
        "confidence": params.confidence,
        "threshold": point.threshold,
        "precision": point.precision,
        "error_rate": point.error_rate,
        "coverage": point.coverage,
        "rows": len(tested.correct),
        "groups": tested.n_groups,
        "drawn": tested.drawn,
        "icc": float(tests.icc[at]),
        "n_eff": round(float(tests.n_eff[at])),
        "largest_reviewer": tested.find_largest_reviewer(params.metric, point.threshold),
    }


def _get_tolerated_error(params: ThresholdParams) -> float:
    """The largest share of incorrect answers that keeps the guarantee."""
    return 1 - params.target if params.metric == "precision" else params.target
