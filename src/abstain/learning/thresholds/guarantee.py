"""The guarantee of a version as data, from threshold.json to the API; people read one sentence made from the fields.

No field names a reviewer. This module is light, because clients of the gate server import it.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, computed_field

from abstain.core.formatting import format_configured_share, format_count, format_percent

TargetMetric = Literal["precision", "error_rate"]
VoidCondition = Literal["documents_change", "model_changes", "questions_change"]

MIN_GROUPS = 10
"""Smallest number of groups whose answers can give a guarantee."""
MIN_SHOWN_GROUPS = 5
"""Smallest number of groups whose shown answers can check a guarantee on the hold-out."""
VOID_IF: tuple[VoidCondition, ...] = ("documents_change", "model_changes", "questions_change")
"""What ends every guarantee."""


def can_check(shown_n_eff: float, shown_groups: int, min_n_eff: int) -> bool:
    """Return whether a hold-out can check a guarantee, which is active if it can and the checks pass.

    Args:
        shown_n_eff: Effective sample size of its shown answers.
        shown_groups: Number of groups of these.
        min_n_eff: Smallest effective sample size that is judged.

    Returns:
        Whether both are large enough.
    """
    return shown_n_eff >= min_n_eff and shown_groups >= MIN_SHOWN_GROUPS


class _GuaranteeRecord(BaseModel):
    model_config = ConfigDict(frozen=True)


class GuaranteeSummary(_GuaranteeRecord):
    """What a decision says about the guarantee of its version: constant in size, without names and without prose.

    Attributes:
        status: "active" is checked on the hold-out, "unchecked" could not be checked yet, "none" is no guarantee.
        metric: "precision" of the shown answers, or "error_rate": the share of all answers that is shown and incorrect.
        target: Lowest precision, or highest error rate, in (0, 1).
        confidence: Confidence of the statement over retrains, in (0, 1).
        population: Answers that it is about: all, if the reviewed ones were sampled, or only those like the reviewed
            ones.
    """

    status: Literal["active", "unchecked", "none"]
    metric: TargetMetric
    target: float
    confidence: float
    population: Literal["all_answers", "answers_like_reviewed"]


class GuaranteeEvidence(_GuaranteeRecord):
    """The reviewed answers of the validation split that a guarantee rests on.

    Attributes:
        reviews: Number of reviewed answers.
        groups: Number of documents that they are about.
        n_eff: Number of independent answers that carry as much information as the answers that the metric counts (the
            shown ones for a precision, all for an error rate).
        icc: Estimated correlation of being incorrect within a document.
        sampled: Whether all of them were sampled with known probabilities.
        p_value: Probability of as few incorrect answers, or fewer, if the target were only just missed; None if no
            threshold passes the test.
        reviewers: Number of reviewers who decided the counted answers; None if they are unknown.
        largest_reviewer_share: Largest share of one of them in the weight of these answers; None if unknown.
    """

    reviews: int
    groups: int
    n_eff: int
    icc: float
    sampled: bool
    p_value: float | None
    reviewers: int | None
    largest_reviewer_share: float | None


class GuaranteeEstimates(_GuaranteeRecord):
    """Estimates at the served threshold by the validation split; `precision` is None if no answer is shown."""

    coverage: float
    precision: float | None
    error_rate: float


class HoldoutResult(_GuaranteeRecord):
    """The guaranteed metric on the hold-out, with its 95 % interval; an undefined end is None."""

    reviews: int
    value: float
    low: float | None
    high: float | None


class Guarantee(GuaranteeSummary):
    """The guarantee of a version with its evidence, or why there is none.

    Attributes:
        evidence: The reviewed answers that it rests on.
        estimates: Estimates at the served threshold.
        holdout: Its check on the hold-out; None unless it is active.
        void_if: What ends it.
        additional_reviews: About how many more reviews, over all splits, would give it or check it; None if it is
            active, or if no number is known to.
    """

    evidence: GuaranteeEvidence
    estimates: GuaranteeEstimates
    holdout: HoldoutResult | None
    void_if: tuple[VoidCondition, ...]
    additional_reviews: int | None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def message(self) -> str:
        """One plain sentence for people."""
        share = format_configured_share(self.target)
        limit = (
            f"at least {share} of the shown answers are correct"
            if self.metric == "precision"
            else f"at most {share} of all answers are shown and incorrect"
        )
        scope = "" if self.population == "all_answers" else ", of answers like the reviewed ones"
        statement = f"{limit}{scope} (confidence {self.confidence:g})"
        if self.status == "none":
            return f"No threshold guarantees that {statement}: {self._describe_remedy()}."
        if self.status == "unchecked":
            more = "" if self.additional_reviews is None else f": bring about {self.additional_reviews:,} more reviews"
            statement = f"{statement}, not checked on the hold-out yet{more}"
        return f"{statement[0].upper()}{statement[1:]}."

    def summarize(self) -> GuaranteeSummary:
        """Return what a decision says about it."""
        return GuaranteeSummary(**{name: getattr(self, name) for name in GuaranteeSummary.model_fields})

    def _describe_remedy(self) -> str:
        evidence, more = self.evidence, self.additional_reviews
        if evidence.p_value is not None:  # the test is passed, so the share of one reviewer prevents the guarantee
            share = format_percent(evidence.largest_reviewer_share)
            number = "more" if more is None else f"about {more:,} more"
            return (
                f"one of {format_count(evidence.reviewers or 0, 'reviewer')} wrote {share} of the reviews, more than "
                f"threshold.max_reviewer_share: have others review {number} answers"
            )
        if evidence.groups < min(MIN_GROUPS, evidence.reviews):
            documents = format_count(evidence.groups, "document")
            return f"only answers about {documents} were reviewed: review answers about {MIN_GROUPS} or more"
        change = f"{'lower' if self.metric == 'precision' else 'raise'} threshold.target"
        if more is None:
            return f"more than the {evidence.reviews:,} reviews will not help: {change}, or train a better scorer"
        return f"{evidence.reviews:,} reviews are too few: bring about {more:,} more, or {change}"
