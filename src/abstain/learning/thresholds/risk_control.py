"""Risk control (Learn then Test): a threshold whose shown answers meet the target with a stated confidence.

Learn then Test (Angelopoulos et al. 2022): each candidate threshold is a null hypothesis, "the target is missed here",
which a p-value may reject. The probability of any false rejection is at most 1 - confidence. The guarantee is for *all*
answers like the tested ones, not only for the reviewed ones.

Notes (each measured, docs/studies/thresholds.md):

* The p-value is exact and binomial, with the effective number of independent answers (`design_effect`): answers about
  one document err together, and some have larger weights than others. No reviewed answer is discarded.
* Fixed-sequence testing: thresholds are tested one after another, each at the whole alpha = 1 - confidence, until one
  is not rejected. The sequence starts at the threshold that is most significant on rows that are not tested (the
  training split, out of fold) and goes downwards. Only those rows decide which thresholds are tested, and in which
  order. For an error rate, which can only fall as the threshold rises, it starts at the highest threshold.
* The labels of one person are no guarantee: the largest share of a reviewer in the counted answers is reported, and may
  be limited (`threshold.max_reviewer_share`). The limit is applied after the test, so it can only take a guarantee
  away.
* From fewer than `MIN_GROUPS` groups the correlation within groups cannot be estimated, and nothing is guaranteed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import numpy as np

from abstain.config.params import ThresholdParams
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.learning.metrics.calibration import validate_rows
from abstain.learning.metrics.weighted_metrics import Weight, effective_sample_size
from abstain.learning.thresholds.design_effect import GroupTotals, compute_group_totals, estimate_intraclass_correlation
from abstain.learning.thresholds.guarantee import MIN_GROUPS, TargetMetric
from abstain.learning.thresholds.outcomes import ControlledThreshold, InfeasibleThreshold
from abstain.learning.thresholds.reviewer_share import ReviewerShare, find_largest_share
from abstain.learning.thresholds.reviews_needed import estimate_reviews_needed
from abstain.learning.thresholds.selection import OperatingPoint, compute_operating_point

MAX_CANDIDATES = 50
"""Number of candidate thresholds, evenly spaced by coverage; 20 or 200 of them reach the same coverage."""


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
            The same answers with weights.

        Raises:
            AbstainError: There are no rows, or a value is nan or out of range.
        """
        if not len(self.confidence):
            raise AbstainError(Code.TOO_FEW_LABELS, f"no reviewed answers {purpose}: bring reviews")
        rows = validate_rows(self.confidence, self.correct, self.weight)
        return ReviewedAnswers(*rows, self.groups, self.sampled, self.reviewers)

    def find_largest_reviewer(self, metric: TargetMetric, threshold: float) -> ReviewerShare | None:
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
        return len(np.unique(self._groups))

    def compute_totals(self, thresholds: np.ndarray, metric: TargetMetric) -> GroupTotals:
        """Compute `compute_group_totals` of these answers.

        Args:
            thresholds: (thresholds,) ascending.
            metric: "precision" or "error_rate".

        Returns:
            The sums, (groups, thresholds).
        """
        return compute_group_totals(self.confidence, self.correct, self._weight, self._groups, thresholds, metric)

    @property
    def _groups(self) -> np.ndarray:
        return np.arange(len(self.correct)) if self.groups is None else self.groups

    @property
    def _weight(self) -> np.ndarray:
        return np.ones(len(self.correct)) if self.weight is None else self.weight


@dataclass(frozen=True)
class _Requirement:
    """What a threshold must meet: a target for a metric, at a confidence level in (0, 1)."""

    metric: TargetMetric
    target: float
    confidence_level: float

    def __post_init__(self) -> None:
        if self.metric not in get_args(TargetMetric) or not (0 < self.target < 1 and 0 < self.confidence_level < 1):
            raise ValueError(f"{self} is none of {get_args(TargetMetric)} with fractions between 0 and 1")

    @property
    def alpha(self) -> float:
        """The largest probability of a false guarantee."""
        return 1 - self.confidence_level

    @property
    def tolerated_error(self) -> float:
        """The largest share of incorrect answers that meets the target."""
        return 1 - self.target if self.metric == "precision" else self.target


@dataclass(frozen=True)
class _ThresholdTests:
    """The tested thresholds in the order of testing, with icc, n_eff and p-value of each, all (tests,)."""

    thresholds: np.ndarray
    icc: np.ndarray
    n_eff: np.ndarray
    p_values: np.ndarray


def control_risk(
    validation: ReviewedAnswers,
    training: ReviewedAnswers,
    *,
    metric: TargetMetric,
    target: float,
    confidence_level: float,
    max_reviewer_share: float | None = None,
    validation_share: float = 1.0,
) -> ControlledThreshold | InfeasibleThreshold:
    """Find the threshold with the largest coverage that meets the target with a guarantee (Learn then Test).

    Args:
        validation: Reviewed answers of the validation split, on which neither the scorer nor the calibrator was fitted;
            raw confidences.
        training: Labelled training answers with out-of-fold confidences on the same scale. They decide which thresholds
            are tested and in which order, so they affect the coverage but not the guarantee. The more they resemble the
            validation answers, the larger the coverage.
        metric: "precision" or "error_rate".
        target: Required precision, or highest error rate, in (0, 1).
        confidence_level: Confidence of the guarantee, in (0, 1).
        max_reviewer_share: Largest share of one reviewer in the counted answers, in (0, 1]; None for no limit.
        validation_share: Share of all reviews that are in the validation split, in (0, 1]; it converts the number of
            missing validation reviews into reviews of all splits.

    Returns:
        A `ControlledThreshold`, or an `InfeasibleThreshold` with the number of additional reviews that would help.

    Raises:
        AbstainError: There are no rows, a value is nan or out of range, or all training confidences are above all
            validation confidences.

    Examples:
        >>> training = ReviewedAnswers(np.repeat([0.9, 0.4], 50), np.repeat([1, 0], [52, 48]))
        >>> validation = ReviewedAnswers(np.repeat([0.9, 0.4], 40), np.repeat([1, 0], [42, 38]))
        >>> result = control_risk(validation, training, metric="precision", target=0.9, confidence_level=0.95)
        >>> isinstance(result, ControlledThreshold), result.threshold, result.coverage
        (True, 0.9, 0.5)
    """
    requirement = _Requirement(metric, target, confidence_level)
    validation = validation.validate("to test a threshold on")
    training = training.validate("in the training split, to learn from which threshold to try first")
    tests = _test_thresholds(validation, training, requirement)
    # number of thresholds before the first that is not rejected
    n_passed = int(np.cumprod(tests.p_values <= requirement.alpha).sum())
    last = n_passed - 1
    if not n_passed or not (validation.confidence >= tests.thresholds[last]).any() or validation.n_groups < MIN_GROUPS:
        return _make_infeasible(tests, validation, training, requirement, validation_share)
    point = _compute_point(validation, tests.thresholds[last])
    fields, p_value = _make_fields(point, tests, last, validation, requirement), float(tests.p_values[last])
    largest_reviewer: ReviewerShare | None = fields["largest_reviewer"]
    if max_reviewer_share is not None and largest_reviewer is not None and largest_reviewer.share > max_reviewer_share:
        n_needed = math.ceil(len(validation.correct) * largest_reviewer.share / max_reviewer_share)
        n_additional = math.ceil((n_needed - len(validation.correct)) / validation_share)
        return InfeasibleThreshold(
            **fields, reviews_needed=n_needed, additional_reviews=n_additional, is_lower_bound=False, p_value=p_value
        )
    return ControlledThreshold(**fields, shown=point.shown, p_value=p_value)


def control_risk_by_params(
    validation: ReviewedAnswers, training: ReviewedAnswers, params: ThresholdParams, validation_share: float = 1.0
) -> ControlledThreshold | InfeasibleThreshold:
    """Call `control_risk` with the section `threshold` of params.yaml.

    Args:
        validation: As in `control_risk`.
        training: As in `control_risk`.
        params: Metric, target, confidence level and reviewer limit.
        validation_share: As in `control_risk`.

    Returns:
        The result of `control_risk`.
    """
    return control_risk(
        validation,
        training,
        metric=params.metric,
        target=params.target,
        confidence_level=params.confidence,
        max_reviewer_share=params.max_reviewer_share,
        validation_share=validation_share,
    )


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
    validation: ReviewedAnswers, training: ReviewedAnswers, requirement: _Requirement
) -> _ThresholdTests:
    """Test candidate thresholds on the validation answers in the order that the training answers decide."""
    thresholds = choose_candidate_thresholds(training)
    validation_totals, training_totals = (
        rows.compute_totals(thresholds, requirement.metric) for rows in (validation, training)
    )
    icc, safe_icc = estimate_intraclass_correlation(validation_totals, training_totals)
    n_eff = validation_totals.compute_effective_size(safe_icc)
    p_values = _compute_p_values(validation_totals.incorrect_share, n_eff, requirement)
    start = len(thresholds) - 1
    if requirement.metric == "precision":
        training_n_eff = training_totals.compute_effective_size(safe_icc)
        training_p_values = _compute_p_values(training_totals.incorrect_share, training_n_eff, requirement)
        start = int(np.argmin(training_p_values))
    order = np.arange(start, -1, -1)
    return _ThresholdTests(thresholds[order], icc[order], n_eff[order], p_values[order])


def _compute_p_values(incorrect_share: np.ndarray, n_eff: np.ndarray, requirement: _Requirement) -> np.ndarray:
    """Compute P(as few incorrect answers or fewer | target only just missed); 1 without any answer.

    It is P(Bin(n_eff, e) <= k) = I_{1-e}(n_eff - k, k + 1) for real numbers, k = n_eff * incorrect_share and the
    tolerated error e.
    """
    from scipy.special import betainc

    incorrect, has_correct = incorrect_share * n_eff, incorrect_share < 1
    correct = np.where(has_correct, n_eff - incorrect, 1.0)
    cdf = betainc(np.maximum(correct, 1e-12), incorrect + 1, 1 - requirement.tolerated_error)
    return np.where(has_correct & (n_eff > 0), cdf, 1.0)


def _make_infeasible(
    tests: _ThresholdTests,
    validation: ReviewedAnswers,
    training: ReviewedAnswers,
    requirement: _Requirement,
    validation_share: float,
) -> InfeasibleThreshold:
    """Describe a missing guarantee, with the number of reviews needed.

    It is estimated at the first tested threshold that shows a validation answer. The validation rows alone overestimate
    it, because this code is reached if they looked bad by chance; the training rows, which chose the threshold,
    underestimate it. So both are concatenated. If by both the available reviews should have been enough, the validation
    rows decide.
    """
    rows, metric = len(validation.correct), requirement.metric
    first_showing = _find_first_showing(tests, validation)
    index = first_showing or 0
    estimate_needed = partial(
        estimate_reviews_needed,
        metric,
        requirement.target,
        requirement.confidence_level,
        effective_share=_estimate_effective_share(tests, index, validation, metric),
    )
    pooled = _concatenate(validation, training)
    fields = _make_fields(_compute_point(pooled, tests.thresholds[index]), tests, index, validation, requirement)
    n_needed = estimate_needed(fields[metric], fields["coverage"])
    if n_needed is not None and n_needed <= rows:
        if first_showing is None:
            raise _make_scale_error(tests)
        point = _compute_point(validation, tests.thresholds[index])
        fields = _make_fields(point, tests, index, validation, requirement)
        n_needed = estimate_needed(fields[metric], fields["coverage"])
    is_lower_bound = n_needed is None
    if is_lower_bound:
        n_needed = estimate_needed(_find_best_plausible_value(pooled, fields, metric), fields["coverage"])
    if n_needed is not None and validation.n_groups < MIN_GROUPS:
        n_needed = max(n_needed, math.ceil(rows * MIN_GROUPS / validation.n_groups))
    n_additional = None if n_needed is None else max(1, math.ceil((n_needed - rows) / validation_share))
    return InfeasibleThreshold(
        **fields, reviews_needed=n_needed, additional_reviews=n_additional, is_lower_bound=is_lower_bound
    )


def _find_first_showing(tests: _ThresholdTests, validation: ReviewedAnswers) -> int | None:
    """Find the first tested threshold that shows a validation answer."""
    indices = np.flatnonzero(tests.thresholds <= validation.confidence.max())
    return int(indices[0]) if len(indices) else None


def _estimate_effective_share(
    tests: _ThresholdTests, index: int, validation: ReviewedAnswers, metric: TargetMetric
) -> float:
    """Estimate the effective sample size per counted answer; 1 if no answer is counted."""
    shown = int((validation.confidence >= tests.thresholds[index]).sum())
    n_counted = shown if metric == "precision" else len(validation.correct)
    return float(tests.n_eff[index] / n_counted) if n_counted and tests.n_eff[index] else 1.0


def _concatenate(*tables: ReviewedAnswers) -> ReviewedAnswers:
    """Concatenate tables, each with its largest weight scaled to 1; the result has neither groups nor reviewers."""
    return ReviewedAnswers(
        np.concatenate([rows.confidence for rows in tables]),
        np.concatenate([rows.correct for rows in tables]),
        np.concatenate([rows._weight / rows._weight.max() for rows in tables]),
    )


def _make_scale_error(tests: _ThresholdTests) -> AbstainError:
    return AbstainError(
        Code.NO_THRESHOLD,
        f"no reviewed answer of the validation split has a confidence of {tests.thresholds[-1]:.3f} or more, as every "
        "training answer has: score both on one scale, the training split out of fold",
    )


def _find_best_plausible_value(answers: ReviewedAnswers, fields: dict[str, Any], metric: TargetMetric) -> float:
    """Find the best precision (error rate) that would give a result as bad as `fields` with probability 5 %.

    The bound is that of Clopper and Pearson.
    """
    from scipy.stats import beta

    rows = effective_sample_size(answers._weight)
    n_incorrect, n_counted = fields["error_rate"] * rows, rows
    if metric == "precision":
        n_counted = fields["coverage"] * rows
    min_error = float(beta.ppf(0.05, n_incorrect, n_counted - n_incorrect + 1)) if n_incorrect > 0 else 0.0
    return 1 - min_error if metric == "precision" else min_error


def _compute_point(answers: ReviewedAnswers, threshold: float) -> OperatingPoint:
    return compute_operating_point(answers.confidence, answers.correct, float(threshold), answers.weight)


def _make_fields(
    point: OperatingPoint, tests: _ThresholdTests, index: int, validation: ReviewedAnswers, requirement: _Requirement
) -> dict[str, Any]:
    return {
        "metric": requirement.metric,
        "target": requirement.target,
        "confidence": requirement.confidence_level,
        "threshold": point.threshold,
        "precision": point.precision,
        "error_rate": point.error_rate,
        "coverage": point.coverage,
        "rows": len(validation.correct),
        "groups": validation.n_groups,
        "sampled": validation.sampled,
        "icc": float(tests.icc[index]),
        "n_eff": round(float(tests.n_eff[index])),
        "largest_reviewer": validation.find_largest_reviewer(requirement.metric, point.threshold),
    }
