"""Risk control (Learn then Test): a threshold whose shown answers meet the target with a stated confidence.

Learn then Test (Angelopoulos et al. 2022): each candidate threshold is a null hypothesis, "the target is missed here",
which a p-value may reject. The probability of any false rejection is at most 1 - confidence. The guarantee is for *all*
answers like the tested ones, not only for the reviewed ones.

Notes (each measured, docs/thresholds.md):

* The p-value is exact and binomial, with the effective number of independent answers (`design_effect`): answers about
  one document err together, and some have larger weights than others. No reviewed answer is discarded.
* Fixed-sequence testing: thresholds are tested one after another, each at the whole alpha = 1 - confidence, until one
  is not rejected. The sequence starts at the threshold that is most significant on rows that are not tested (the
  training split, out of fold) and goes downwards. Only those rows decide which thresholds are tested, and in which
  order. An error rate falls as the threshold rises; there the sequence starts at the highest threshold.
* The labels of one person are no guarantee: the largest share of a reviewer in the counted answers is reported, and may
  be limited (`threshold.max_reviewer_share`). The limit is applied after the test, so it can only take a guarantee
  away.
* A few documents say too little about how their answers err together: below `MIN_GROUPS` groups nothing is guaranteed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from abstain.config.params import ThresholdParams
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.learning.metrics.calibration import validate_rows
from abstain.learning.metrics.weighted_metrics import Weight, effective_sample_size
from abstain.learning.thresholds.design_effect import GroupTotals, compute_group_totals, estimate_intraclass_correlation
from abstain.learning.thresholds.guarantee import (
    MIN_GROUPS,
    VOID_IF,
    Guarantee,
    GuaranteeEstimates,
    GuaranteeEvidence,
    Metric,
)
from abstain.learning.thresholds.reviewer_share import ReviewerShare, find_largest_share
from abstain.learning.thresholds.selection import OperatingPoint, compute_operating_point

MAX_CANDIDATES = 50
"""Number of candidate thresholds, evenly spaced by coverage; 20 or 200 of them reach the same coverage."""
POWER = 0.8
"""Probability of a guarantee with `reviews_needed` reviews."""
MAX_REVIEWS_NEEDED = 1_000_000


@dataclass(frozen=True)
class ReviewedAnswers:
    """Answers with a reviewer's label and one scorer's confidence.

    Attributes:
        confidence: (rows,) in [0, 1].
        correct: (rows,) 0 or 1.
        weight: (rows,) sampling weights from `row_weights`; None if all answers were equally likely to be reviewed.
        groups: (rows,) ids of answers with correlated errors, usually documents; None treats each answer as a group.
        sampled: Whether every review was sampled with a known probability, so that the rows represent all answers.
            False if some reviewers chose what to review.
        reviewers: (rows,) sequences of the reviewers who decided the label; None skips the reviewer limit.
    """

    confidence: np.ndarray
    correct: np.ndarray
    weight: Weight = None
    groups: np.ndarray | None = None
    sampled: bool = True
    reviewers: np.ndarray | None = None

    def validate(self, purpose: str) -> ReviewedAnswers:
        """Check the values, and convert confidences and weights to float64.

        Args:
            purpose: End of the message for no rows, for example "to test a threshold on".

        Returns:
            The same answers with weights and groups.

        Raises:
            AbstainError: There are no rows, or a value is nan or out of range.
        """
        if not len(self.confidence):
            raise AbstainError(Code.TOO_FEW_LABELS, f"no reviewed answers {purpose}: bring reviews")
        groups = np.arange(len(self.confidence)) if self.groups is None else self.groups
        rows = validate_rows(self.confidence, self.correct, self.weight)
        return ReviewedAnswers(*rows, groups, self.sampled, self.reviewers)

    def join(self, answers: ReviewedAnswers) -> ReviewedAnswers:
        """Concatenate two tables, each with its largest weight scaled to 1; the result has no groups.

        Args:
            answers: The second table.

        Returns:
            The rows of both.
        """
        weights = [rows._weight / rows._weight.max() for rows in (self, answers)]
        return ReviewedAnswers(
            np.concatenate([self.confidence, answers.confidence]),
            np.concatenate([self.correct, answers.correct]),
            np.concatenate(weights),
        )

    def find_largest_reviewer(self, metric: Metric, threshold: float) -> ReviewerShare | None:
        """Find the largest share of one reviewer in the answers that the metric counts.

        Args:
            metric: "precision" counts the shown answers, "error_rate" counts all.
            threshold: Answers with confidence >= `threshold` are shown.

        Returns:
            The largest share; None if the reviewers are not known.
        """
        if self.reviewers is None:
            return None
        is_counted = self.confidence >= threshold if metric == "precision" else np.ones(len(self.correct), bool)
        return find_largest_share(self.reviewers[is_counted], self._weight[is_counted])

    @property
    def n_groups(self) -> int:
        """The number of groups."""
        return len(self.correct) if self.groups is None else len(np.unique(self.groups))

    def compute_totals(self, thresholds: np.ndarray, metric: Metric) -> GroupTotals:
        """Compute `compute_group_totals` of these answers, which must be the result of `validate`.

        Args:
            thresholds: (thresholds,) ascending.
            metric: "precision" or "error_rate".

        Returns:
            The sums, (groups, thresholds).
        """
        assert self.groups is not None
        return compute_group_totals(self.confidence, self.correct, self._weight, self.groups, thresholds, metric)

    @property
    def _weight(self) -> np.ndarray:
        return np.ones(len(self.correct)) if self.weight is None else self.weight


@dataclass(frozen=True)
class _ThresholdResult:
    """The fields of every outcome. `groups` counts documents; `sampled` is that of `ReviewedAnswers`."""

    metric: Metric
    target: float
    confidence: float
    threshold: float
    precision: float
    error_rate: float
    coverage: float
    rows: int
    groups: int
    sampled: bool
    icc: float
    n_eff: int
    largest_reviewer: ReviewerShare | None

    def _make_guarantee(
        self, status: Literal["unchecked", "none"], p_value: float | None, additional_reviews: int | None
    ) -> Guarantee:
        largest = self.largest_reviewer
        return Guarantee(
            status=status,
            metric=self.metric,
            target=self.target,
            confidence=self.confidence,
            population="all_answers" if self.sampled else "answers_like_reviewed",
            evidence=GuaranteeEvidence(
                reviews=self.rows,
                groups=self.groups,
                n_eff=self.n_eff,
                icc=self.icc,
                sampled=self.sampled,
                p_value=p_value,
                reviewers=largest and largest.reviewers,
                largest_reviewer_share=largest and largest.share,
            ),
            estimates=GuaranteeEstimates(
                coverage=self.coverage,
                precision=None if math.isnan(self.precision) else self.precision,
                error_rate=self.error_rate,
            ),
            holdout=None,
            void_if=VOID_IF,
            additional_reviews=additional_reviews,
        )


@dataclass(frozen=True)
class ControlledThreshold(_ThresholdResult):
    """A threshold that meets the target with the stated confidence. Fractions are in [0, 1].

    The guarantee holds for all answers if the reviewed ones were `sampled` with known probabilities, otherwise for
    answers like the reviewed ones.

    Attributes:
        metric: "precision" or "error_rate".
        target: Guaranteed lower bound of the precision, or upper bound of the error rate.
        confidence: Confidence of the guarantee, in (0, 1).
        threshold: Answers with confidence >= `threshold` are shown.
        precision: Estimated share of correct answers among the shown ones.
        error_rate: Estimated share of all answers that are shown and incorrect.
        coverage: Estimated share of all answers that are shown.
        rows: Number of reviewed answers.
        groups: Number of documents that they are about.
        sampled: Whether all of them were sampled with known probabilities.
        icc: Estimated correlation of being incorrect within a document.
        n_eff: Number of independent answers that carry as much information as the answers that `metric` counts (the
            shown ones for a precision, all for an error rate).
        largest_reviewer: The largest share of one reviewer in the weight of the counted answers.
        shown: Number of reviewed answers that are shown.
        p_value: Probability of as few incorrect answers, or fewer, if the target were only just missed at this
            threshold.
    """

    shown: int
    p_value: float

    def to_guarantee(self) -> Guarantee:
        """Return the guarantee; the promotion checks it on the hold-out."""
        return self._make_guarantee("unchecked", self.p_value, None)


@dataclass(frozen=True)
class InfeasibleThreshold(_ThresholdResult):
    """The reason for a missing guarantee, and the number of reviews that would help.

    `threshold` is the candidate nearest to the target; `precision`, `error_rate` and `coverage` are its estimates for
    all answers. The other fields are as in `ControlledThreshold`.

    Attributes:
        reviews_needed: Number of answers, sampled like these, that would give a guarantee with probability 80 % if the
            estimates are true. If the estimate does not beat the target, the number if the truth is the best value that
            these answers do not exclude at 95 %; None if no number would do.
        additional_reviews: Additional reviews for that, in all splits together; about other documents if there are
            fewer than `MIN_GROUPS`.
        is_lower_bound: Whether the two numbers are lower bounds, because the estimate does not beat the target.
        p_value: That of a threshold that passes the test, if only the share of one reviewer, above
            `max_reviewer_share`, prevents the guarantee. `reviews_needed` reviews reduce that share to the limit if
            others write all the additional ones. None if no threshold passes.
    """

    reviews_needed: int | None
    additional_reviews: int | None
    is_lower_bound: bool
    p_value: float | None = None

    def to_guarantee(self) -> Guarantee:
        """Return why there is no guarantee."""
        return self._make_guarantee("none", self.p_value, self.additional_reviews)


@dataclass(frozen=True)
class _ThresholdTests:
    """The tested thresholds in the order of testing, with the intraclass correlation, n_eff and p-value of each."""

    thresholds: np.ndarray
    icc: np.ndarray
    n_eff: np.ndarray
    p_values: np.ndarray


def control_risk(
    validation: ReviewedAnswers, training: ReviewedAnswers, params: ThresholdParams, validation_share: float = 1.0
) -> ControlledThreshold | InfeasibleThreshold:
    """Find the threshold with the largest coverage that meets the target with a guarantee (Learn then Test).

    Args:
        validation: Reviewed answers of the validation split, on which neither the scorer nor the calibrator was fitted;
            raw confidences.
        training: Labelled training answers with out-of-fold confidences on the same scale. They decide which thresholds
            are tested and in which order, so they affect the coverage but not the guarantee. The more they resemble the
            validation answers, the larger the coverage.
        params: Metric ("precision" or "error_rate"), target and confidence in (0, 1), and the reviewer limit.
        validation_share: Share of all reviews that are in the validation split, in (0, 1]; it converts the number of
            missing validation reviews into reviews of all splits.

    Returns:
        A `ControlledThreshold`, or an `InfeasibleThreshold` with the number of additional reviews that would help.

    Raises:
        AbstainError: There are no rows, a value is nan or out of range, or all training confidences are above all
            validation confidences.
    """
    validation = validation.validate("to test a threshold on")
    training = training.validate("in the training split, to learn from which threshold to try first")
    tests = _test_thresholds(validation, training, params)
    n_passed = int(np.cumprod(tests.p_values <= 1 - params.confidence).sum())
    last = n_passed - 1
    if not n_passed or not (validation.confidence >= tests.thresholds[last]).any() or validation.n_groups < MIN_GROUPS:
        return _make_infeasible(tests, validation, training, params, validation_share)
    point = compute_operating_point(
        validation.confidence, validation.correct, float(tests.thresholds[last]), validation.weight
    )
    fields, p_value = _make_fields(point, tests, last, validation, params), float(tests.p_values[last])
    largest, limit = fields["largest_reviewer"], params.max_reviewer_share
    if limit is not None and largest is not None and largest.share > limit:
        needed = math.ceil(len(validation.correct) * largest.share / limit)
        additional = math.ceil((needed - len(validation.correct)) / validation_share)
        return InfeasibleThreshold(
            **fields, reviews_needed=needed, additional_reviews=additional, is_lower_bound=False, p_value=p_value
        )
    return ControlledThreshold(**fields, shown=point.shown, p_value=p_value)


def estimate_reviews_needed(
    metric: Metric,
    target: float,
    confidence: float,
    estimated_value: float,
    coverage: float,
    effective_share: float = 1.0,
) -> int | None:
    """Estimate how many reviewed answers a guarantee needs (power 80 %, accurate to 2 %).

    Args:
        metric: "precision" or "error_rate".
        target: Required precision, or highest error rate, in (0, 1).
        confidence: Confidence of the guarantee, in (0, 1).
        estimated_value: Estimated precision (or error rate) at the threshold.
        coverage: Share of all answers that the threshold shows, in (0, 1].
        effective_share: Effective sample size per counted answer, in (0, 1].

    Returns:
        The number of reviewed answers; None if the estimate does not beat the target, or not by enough for a million
        reviews.
    """
    from scipy.stats import binom

    max_error, error = (1 - target, 1 - estimated_value) if metric == "precision" else (target, estimated_value)
    if not error < max_error:
        return None
    sizes = np.unique(np.geomspace(1, MAX_REVIEWS_NEEDED, 1000).astype(int))
    max_incorrect = binom.ppf(1 - confidence, sizes, max_error)
    max_incorrect = np.where(
        binom.cdf(max_incorrect, sizes, max_error) <= 1 - confidence, max_incorrect, max_incorrect - 1
    )  # incorrect ones allowed
    underpowered = np.flatnonzero(binom.cdf(max_incorrect, sizes, error) < POWER)
    first_powered = underpowered[-1] + 1 if len(underpowered) else 0
    if first_powered == len(sizes):
        return None
    needed = sizes[first_powered] / (effective_share * (coverage if metric == "precision" else 1))
    return int(np.ceil(needed)) if needed <= MAX_REVIEWS_NEEDED else None


def choose_candidate_thresholds(training: ReviewedAnswers) -> np.ndarray:
    """Choose the candidate thresholds, evenly spaced by their coverage of the training answers.

    Args:
        training: Training answers with out-of-fold confidences.

    Returns:
        Up to `MAX_CANDIDATES` distinct thresholds, ascending.
    """
    shares = np.arange(MAX_CANDIDATES) / MAX_CANDIDATES
    return np.unique(np.quantile(training.confidence, shares, weights=training.weight, method="inverted_cdf"))


def _test_thresholds(
    validation: ReviewedAnswers, training: ReviewedAnswers, params: ThresholdParams
) -> _ThresholdTests:
    """Test candidate thresholds on the validation answers in the order that the training answers decide."""
    thresholds = choose_candidate_thresholds(training)
    validation_totals, training_totals = (
        rows.compute_totals(thresholds, params.metric) for rows in (validation, training)
    )
    icc, safe_icc = estimate_intraclass_correlation(validation_totals, training_totals)
    n_eff = validation_totals.compute_effective_size(safe_icc)
    p_values = _compute_p_values(validation_totals.incorrect_share, n_eff, params)
    start = len(thresholds) - 1
    if params.metric == "precision":
        training_n_eff = training_totals.compute_effective_size(safe_icc)
        training_p_values = _compute_p_values(training_totals.incorrect_share, training_n_eff, params)
        start = int(np.argmin(training_p_values))
    order = np.arange(start, -1, -1)
    return _ThresholdTests(thresholds[order], icc[order], n_eff[order], p_values[order])


def _compute_p_values(incorrect_share: np.ndarray, n_eff: np.ndarray, params: ThresholdParams) -> np.ndarray:
    """Compute P(as few incorrect answers or fewer | target only just missed), binomial; 1 without any answer."""
    from scipy.special import betainc

    incorrect, has_correct = incorrect_share * n_eff, incorrect_share < 1
    correct = np.where(has_correct, n_eff - incorrect, 1.0)
    # binom.cdf for real numbers
    cdf = betainc(np.maximum(correct, 1e-12), incorrect + 1, 1 - _get_tolerated_error(params))
    return np.where(has_correct & (n_eff > 0), cdf, 1.0)


def _make_infeasible(
    tests: _ThresholdTests,
    validation: ReviewedAnswers,
    training: ReviewedAnswers,
    params: ThresholdParams,
    validation_share: float,
) -> InfeasibleThreshold:
    """Describe a missing guarantee, with the number of reviews needed.

    It is estimated at the first tested threshold that shows a validation answer. The validation rows alone overestimate
    it, because this code is reached if they looked bad by chance; the training rows, which chose the threshold,
    underestimate it. So both are joined. If by both the available reviews should have been enough, the validation rows
    decide.
    """
    rows, groups = len(validation.correct), validation.n_groups
    showing_indices = np.flatnonzero(tests.thresholds <= validation.confidence.max())
    index = int(showing_indices[0]) if len(showing_indices) else 0
    threshold = float(tests.thresholds[index])
    shown = compute_operating_point(validation.confidence, validation.correct, threshold).shown
    n_counted = shown if params.metric == "precision" else rows
    effective_share = tests.n_eff[index] / n_counted if n_counted and tests.n_eff[index] else 1.0

    def estimate_needed(estimated_value: float, coverage: float) -> int | None:
        return estimate_reviews_needed(
            params.metric, params.target, params.confidence, estimated_value, coverage, effective_share
        )

    def summarize(answers: ReviewedAnswers) -> tuple[dict[str, Any], int | None]:
        point = compute_operating_point(answers.confidence, answers.correct, threshold, answers.weight)
        fields = _make_fields(point, tests, index, validation, params)
        return fields, estimate_needed(fields[params.metric], point.coverage)

    joined = validation.join(training)
    fields, needed = summarize(joined)
    if needed is not None and needed <= rows:
        if not len(showing_indices):
            raise AbstainError(
                Code.NO_THRESHOLD,
                "no reviewed answer of the validation split has a confidence of "
                f"{tests.thresholds[-1]:.3f} or more, as every training answer has: score both on one scale, the "
                "training split out of fold",
            )
        fields, needed = summarize(validation)
    is_lower_bound = needed is None
    if is_lower_bound:
        needed = estimate_needed(_find_best_plausible_value(joined, fields, params), fields["coverage"])
    if needed is not None and groups < MIN_GROUPS:
        needed = max(needed, math.ceil(rows * MIN_GROUPS / groups))
    additional = None if needed is None else max(1, math.ceil((needed - rows) / validation_share))
    return InfeasibleThreshold(
        **fields, reviews_needed=needed, additional_reviews=additional, is_lower_bound=is_lower_bound
    )


def _find_best_plausible_value(answers: ReviewedAnswers, fields: dict[str, Any], params: ThresholdParams) -> float:
    """Find the best precision (error rate) that would give a result as bad as `fields` with probability 5 %.

    The bound is that of Clopper and Pearson.
    """
    from scipy.stats import beta

    rows = effective_sample_size(answers._weight)
    n_incorrect, n_counted = fields["error_rate"] * rows, rows
    if params.metric == "precision":
        n_counted = fields["coverage"] * rows
    min_error = float(beta.ppf(0.05, n_incorrect, n_counted - n_incorrect + 1)) if n_incorrect > 0 else 0.0
    return 1 - min_error if params.metric == "precision" else min_error


def _make_fields(
    point: OperatingPoint, tests: _ThresholdTests, index: int, validation: ReviewedAnswers, params: ThresholdParams
) -> dict[str, Any]:
    return {
        "metric": params.metric,
        "target": params.target,
        "confidence": params.confidence,
        "threshold": point.threshold,
        "precision": point.precision,
        "error_rate": point.error_rate,
        "coverage": point.coverage,
        "rows": len(validation.correct),
        "groups": validation.n_groups,
        "sampled": validation.sampled,
        "icc": float(tests.icc[index]),
        "n_eff": round(float(tests.n_eff[index])),
        "largest_reviewer": validation.find_largest_reviewer(params.metric, point.threshold),
    }


def _get_tolerated_error(params: ThresholdParams) -> float:
    """Return the largest share of incorrect answers that meets the target."""
    return 1 - params.target if params.metric == "precision" else params.target
