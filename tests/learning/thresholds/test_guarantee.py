import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from abstain.learning.thresholds.guarantee import (
    VOID_IF,
    Guarantee,
    GuaranteeEstimates,
    GuaranteeEvidence,
    HoldoutResult,
    can_check,
)
from tests.learning.thresholds.builders import EVIDENCE, make_guarantee, make_missing_guarantee

shares = st.floats(0, 1)
counts = st.integers(1, 10**9)
evidence = st.builds(
    GuaranteeEvidence,
    reviews=counts,
    groups=counts,
    n_eff=counts,
    icc=shares,
    sampled=st.booleans(),
    p_value=st.none() | shares,
    reviewers=counts,
    largest_reviewer_share=shares,
)
guarantees = st.builds(
    Guarantee,
    status=st.sampled_from(["active", "unchecked", "none"]),
    metric=st.sampled_from(["precision", "error_rate"]),
    target=st.sampled_from([0.5, 0.9, 0.975]),
    confidence=st.sampled_from([0.8, 0.95]),
    population=st.sampled_from(["all_answers", "answers_like_reviewed"]),
    evidence=evidence,
    estimates=st.builds(GuaranteeEstimates, coverage=shares, precision=st.none() | shares, error_rate=shares),
    holdout=st.none() | st.builds(HoldoutResult, reviews=counts, value=shares, low=shares, high=shares),
    void_if=st.just(VOID_IF),
    additional_reviews=counts,
)

FEW_GROUPS = EVIDENCE.model_copy(update={"p_value": None, "groups": 8})


@given(guarantees, evidence)
def test_guarantee_summary_has_no_prose_and_constant_size(guarantee: Guarantee, other: GuaranteeEvidence) -> None:
    summary = guarantee.summarize()
    changes = {"evidence": other, "holdout": None, "additional_reviews": None}
    assert guarantee.model_copy(update=changes).summarize() == summary and len(summary.model_dump_json()) < 150
    values = summary.model_dump()
    assert set(values) == {"status", "metric", "target", "confidence", "population"}
    assert all(isinstance(value, float) or re.fullmatch("[a-z_]+", value) for value in values.values())


@given(guarantees)
def test_guarantee_survives_json_with_one_sentence(guarantee: Guarantee) -> None:
    assert Guarantee.model_validate_json(guarantee.model_dump_json()) == guarantee
    assert re.fullmatch(r"[A-Z].*[^.]\.", guarantee.message) and ". " not in guarantee.message


@pytest.mark.parametrize(
    ("shown_n_eff", "shown_groups", "expected"), [(20, 5, True), (19.9, 50, False), (200, 4, False)]
)
def test_can_check_needs_answers_and_groups(shown_n_eff: float, shown_groups: int, expected: bool) -> None:
    assert can_check(shown_n_eff, shown_groups, min_n_eff=20) is expected


@pytest.mark.parametrize(
    ("guarantee", "part"),
    [
        (make_guarantee(), "At least 80 % of the shown answers are correct (confidence 0.9)."),
        (make_guarantee(metric="error_rate", target=0.1), "At most 10 % of all answers are shown and incorrect"),
        (make_guarantee(status="unchecked", additional_reviews=40), "not checked on the hold-out yet: bring about 40"),
        (make_missing_guarantee(333), "bring about 333 more, or lower threshold.target"),
        (make_missing_guarantee(None), "train a better scorer"),
        (make_missing_guarantee(evidence=FEW_GROUPS), "review answers about 10 or more"),
        (make_missing_guarantee(evidence=EVIDENCE), "have others review about 500 more answers"),
    ],
    ids=["precision", "error rate", "unchecked", "few reviews", "hopeless", "few documents", "one reviewer"],
)
def test_guarantee_message_states_limit_status_and_remedy(guarantee: Guarantee, part: str) -> None:
    assert part in guarantee.message


def test_guarantee_is_frozen_and_needs_all_fields() -> None:
    content = make_guarantee().model_dump()
    for name in set(content) - {"message"}:
        with pytest.raises(ValidationError):
            Guarantee.model_validate({key: value for key, value in content.items() if key != name})
    with pytest.raises(ValidationError):
        make_guarantee().status = "none"  # type: ignore[misc]
