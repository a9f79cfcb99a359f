"""The guarantee as data: what a decision says of it, what people read, and its way through JSON."""

from __future__ import annotations

import re
from typing import Any

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


@given(guarantees, evidence)
def test_a_summary_has_the_same_size_whatever_the_evidence(guarantee: Guarantee, other: GuaranteeEvidence) -> None:
    summary = guarantee.summarize().model_dump_json()
    changes = {"evidence": other, "holdout": None, "additional_reviews": None}
    assert guarantee.model_copy(update=changes).summarize().model_dump_json() == summary and len(summary) < 150


@given(guarantees)
def test_a_summary_has_no_prose(guarantee: Guarantee) -> None:
    values = guarantee.summarize().model_dump()
    assert set(values) == {"status", "metric", "target", "confidence", "population"}
    assert all(isinstance(value, float) or re.fullmatch("[a-z_]+", value) for value in values.values())


@given(guarantees)
def test_a_guarantee_is_the_same_after_json(guarantee: Guarantee) -> None:
    assert Guarantee.model_validate_json(guarantee.model_dump_json()) == guarantee


@given(guarantees)
def test_the_message_is_one_sentence(guarantee: Guarantee) -> None:
    assert re.fullmatch(r"[A-Z].*[^.]\.", guarantee.message) and ". " not in guarantee.message


@pytest.mark.parametrize(
    ("guarantee", "message"),
    [
        (make_guarantee(), "At least 80 % of the shown answers are correct (confidence 0.9)."),
        (
            make_guarantee(metric="error_rate", target=0.1),
            "At most 10 % of all answers are shown and incorrect (confidence 0.9).",
        ),
        (
            make_guarantee(status="unchecked", additional_reviews=40),
            "At least 80 % of the shown answers are correct (confidence 0.9), not checked on the hold-out yet: bring "
            "about 40 more reviews.",
        ),
        (
            make_missing_guarantee(333),
            "No threshold guarantees that at least 80 % of the shown answers are correct (confidence 0.9): 206 reviews "
            "are too few: bring about 333 more, or lower threshold.target.",
        ),
    ],
)
def test_messages_by_hand(guarantee: Guarantee, message: str) -> None:
    assert guarantee.message == message


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"additional_reviews": None}, "train a better scorer"),
        ({"evidence": EVIDENCE.model_copy(update={"p_value": None, "groups": 8})}, "review answers about 10 or more"),
        ({"evidence": EVIDENCE}, "have others review about 500 more answers"),
    ],
    ids=["hopeless", "few documents", "one reviewer"],
)
def test_a_missing_guarantee_names_its_remedy(changes: dict[str, Any], remedy: str) -> None:
    assert remedy in make_missing_guarantee(**changes).message


def test_a_guarantee_lacks_no_field_and_does_not_change() -> None:
    content = make_guarantee().model_dump()
    for name in set(content) - {"message"}:
        with pytest.raises(ValidationError):
            Guarantee.model_validate({key: value for key, value in content.items() if key != name})
    with pytest.raises(ValidationError):
        make_guarantee().status = "none"  # type: ignore[misc]
