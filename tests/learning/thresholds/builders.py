"""A guarantee as the promotion leaves it."""

from typing import Any

from abstain.learning.thresholds.guarantee import (
    VOID_IF,
    Guarantee,
    GuaranteeEstimates,
    GuaranteeEvidence,
    HoldoutResult,
)

EVIDENCE = GuaranteeEvidence(
    reviews=206,
    groups=31,
    n_eff=90,
    icc=0.04,
    sampled=True,
    p_value=0.0678,
    reviewers=4,
    largest_reviewer_share=0.34,
)


def make_guarantee(**changes: Any) -> Guarantee:
    """An active guarantee with these fields changed."""
    fields: dict[str, Any] = {
        "status": "active",
        "metric": "precision",
        "target": 0.8,
        "confidence": 0.9,
        "population": "all_answers",
        "evidence": EVIDENCE,
        "estimates": GuaranteeEstimates(coverage=0.4321, precision=0.9111, error_rate=0.0384),
        "holdout": HoldoutResult(reviews=96, value=0.87, low=0.8, high=0.93),
        "void_if": VOID_IF,
        "additional_reviews": None,
    }
    return Guarantee(**{**fields, **changes})


def make_missing_guarantee(additional_reviews: int | None = 500, **changes: Any) -> Guarantee:
    """No guarantee: too few answers were reviewed."""
    evidence = EVIDENCE.model_copy(update={"p_value": None})
    fields = {"status": "none", "holdout": None, "evidence": evidence, "additional_reviews": additional_reviews}
    return make_guarantee(**{**fields, **changes})
