from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from abstain.learning.evaluation.audits import audit_answers_shuffled, audit_context_removed
from abstain.learning.metrics.bootstrap import BootstrapConfig
from tests.learning.evaluation.builders import grouped

CORRECT = np.array([1, 1, 0, 0])
EVEN, GROUPS = np.ones(4), np.arange(4)
RESAMPLES = BootstrapConfig(200, 0)


def test_a_scorer_that_needs_the_context_is_told_from_one_that_does_not() -> None:
    scores = pd.DataFrame({"reads": [0.9, 0.8, 0.2, 0.1], "deaf": [0.9, 0.8, 0.2, 0.1]})
    changed = pd.DataFrame({"reads": [0.5, 0.1, 0.5, 0.1], "deaf": [0.9, 0.8, 0.2, 0.1]})
    reads, deaf = audit_context_removed(CORRECT, scores, changed, EVEN, GROUPS, RESAMPLES)
    assert (reads["auroc"], reads["auroc_changed"]) == (1.0, 0.5)
    assert (deaf["auroc"], deaf["auroc_changed"]) == (1.0, 1.0)
    assert reads["mean"] == pytest.approx(0.5) and reads["mean_changed"] == pytest.approx(0.3)


def test_what_is_lost_is_compared_answer_by_answer() -> None:
    correct, confidence, groups = grouped(400, 50, 3)
    noise = 0.15 * np.random.default_rng(0).normal(size=400)
    scores, changed = (pd.DataFrame({"probe": of}) for of in (confidence, confidence + noise))
    (row,) = audit_context_removed(correct, scores, changed, np.ones(400), groups, RESAMPLES)
    assert row["auroc_lost"] == pytest.approx(row["auroc"] - row["auroc_changed"])
    assert 0 < row["auroc_lost_low"] < row["auroc_lost"] < row["auroc_lost_high"]


def test_right_answers_in_place_are_compared_with_the_same_questions_shuffled() -> None:
    scores = pd.DataFrame({"probe": [0.9, 0.6, 0.2, 0.1], "other": [0.9, 0.6, 0.2, 0.1]})
    changed = pd.DataFrame({"probe": [0.7, 0.1, 0.95, 0.0], "other": [0.9, 0.6, 0.0, 0.0]})
    probe, other = audit_answers_shuffled(CORRECT, scores, changed, EVEN, {"probe": 0.65})
    assert probe["auroc_against_shuffled"] == pytest.approx(0.75)  # 0.9 beats both, 0.6 beats one of two
    assert probe["shown_changed"] == pytest.approx(0.5)  # 0.7 and 0.95, of four
    assert probe["mean_correct"] == pytest.approx(0.75) and probe["mean_changed"] == pytest.approx(0.4)
    assert other["auroc_against_shuffled"] == 0.5 and other["shown_changed"] is None


def test_weights_count() -> None:
    scores = pd.DataFrame({"probe": [0.9, 0.5, 0.1, 0.1]})
    (row,) = audit_context_removed(CORRECT, scores, scores, np.array([3.0, 1.0, 1.0, 1.0]), GROUPS, RESAMPLES)
    assert row["mean"] == pytest.approx((2.7 + 0.5 + 0.2) / 6)


def test_a_scorer_that_cannot_say_has_no_figures() -> None:
    scores = pd.DataFrame({"silent": [np.nan] * 4})
    (row,) = audit_context_removed(CORRECT, scores, scores, EVEN, GROUPS, RESAMPLES)
    assert np.isnan([row["auroc"], row["mean"]]).all()
