"""The outcomes of risk control: a threshold with a guarantee, or the reason for a missing one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from abstain.learning.thresholds.guarantee import (
    VOID_IF,
    Guarantee,
    GuaranteeEstimates,
    GuaranteeEvidence,
    TargetMetric,
)
from abstain.learning.thresholds.reviewer_share import ReviewerShare


@dataclass(frozen=True)
class ThresholdOutcome:
    """The fields of every outcome. Fractions are in [0, 1].

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
    """

    metric: TargetMetric
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
class ControlledThreshold(ThresholdOutcome):
    """A threshold that meets the target with the stated confidence. Fractions are in [0, 1].

    The guarantee holds for all answers if the reviewed ones were `sampled` with known probabilities, otherwise for
    answers like the reviewed ones.

    Attributes:
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
class InfeasibleThreshold(ThresholdOutcome):
    """The reason for a missing guarantee, and the number of reviews that would help.

    `threshold` is the candidate nearest to the target; `precision`, `error_rate` and `coverage` are its estimates for
    all answers.

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
