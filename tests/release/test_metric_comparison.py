"""The candidate's metrics compared with the champion's, shown and not judged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from abstain.learning.metrics import weighted_metrics as metrics
from abstain.release.evaluation_set import CANDIDATE
from abstain.release.metric_comparison import compare_metrics
from tests.release.test_promotion_check import judged, window

CHAMPION = "v1.0.0"


def test_every_figure_is_that_of_both_with_an_interval_of_the_difference() -> None:
    both = window(rows=600, probe=1.4, champion=0.8)
    both = replace(both, probabilities=both.confidences[CANDIDATE], champion_probability=both.confidences[CHAMPION])
    found = {one.metric: one for one in compare_metrics(both, CHAMPION)}
    assert list(found) == [
        "AUROC",
        "AURC",
        "errors caught, 15 % withheld",
        "share of the errors that could be caught",
        "Brier score",
    ]
    for of, name in ((metrics.auroc, "AUROC"), (metrics.brier, "Brier score")):
        assert found[name].candidate == pytest.approx(of(both.correct, both.confidences[CANDIDATE]))
        assert found[name].champion == pytest.approx(of(both.correct, both.confidences[CHAMPION]))
    assert found["AUROC"].low > 0 and found["Brier score"].high < 0 and found["AURC"].high < 0
    for one in found.values():
        assert one.low <= one.difference <= one.high
        assert one.difference == pytest.approx(one.candidate - one.champion)


def test_a_champion_without_probabilities_has_no_brier_score() -> None:
    assert "Brier score" not in {one.metric for one in compare_metrics(window(), CHAMPION)}


def test_the_decision_carries_it_and_a_first_version_has_none() -> None:
    decision = judged()
    assert [one.metric for one in decision.champion_comparison][:2] == ["AUROC", "AURC"]
    assert decision.is_approved == all(check.passed is not False for check in decision.checks)
    assert judged(champion=None).champion_comparison == ()


def test_what_is_possible_depends_on_how_many_errors_there_are() -> None:
    """Of ten answers the two least confident are withheld, both incorrect, of four: half of all, and all that could be."""
    correct = np.array([0, 0, 0, 0, 1, 1, 1, 1, 1, 1])
    confidence = np.array([0.1, 0.2, 0.8, 0.9, 0.3, 0.4, 0.5, 0.6, 0.7, 0.85])
    assert metrics.error_recall(correct, confidence, max_withheld_share=0.2) == pytest.approx(0.5)
    assert metrics.error_recall_vs_best(correct, confidence, max_withheld_share=0.2) == pytest.approx(1.0)
    few = np.array([0, *[1] * 9])
    assert metrics.error_recall_vs_best(few, confidence, max_withheld_share=0.2) == pytest.approx(1.0)
