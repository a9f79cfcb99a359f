from dataclasses import replace

import numpy as np
import pytest

from abstain.learning.metrics import weighted_metrics as metrics
from abstain.release.evaluation_set import CANDIDATE
from abstain.release.metric_comparison import compare_metrics
from tests.release.builders import CHAMPION, check_set, make_set


def test_compare_metrics_values_and_interval_of_difference() -> None:
    both = make_set(rows=600, probe=1.4, champion=0.8)
    both = replace(both, probabilities=both.confidences[CANDIDATE], champion_probability=both.confidences[CHAMPION])
    by_name = {comparison.metric: comparison for comparison in compare_metrics(both, CHAMPION)}
    assert list(by_name) == [
        "AUROC",
        "AURC",
        "errors caught, 15 % withheld",
        "share of the errors that could be caught",
        "Brier score",
    ]
    for metric, name in ((metrics.auroc, "AUROC"), (metrics.brier, "Brier score")):
        assert by_name[name].candidate == pytest.approx(metric(both.correct, both.confidences[CANDIDATE]))
        assert by_name[name].champion == pytest.approx(metric(both.correct, both.confidences[CHAMPION]))
    assert by_name["AUROC"].low > 0 and by_name["Brier score"].high < 0 and by_name["AURC"].high < 0
    for comparison in by_name.values():
        assert comparison.low <= comparison.difference <= comparison.high
        assert comparison.difference == pytest.approx(comparison.candidate - comparison.champion)


def test_compare_metrics_without_probabilities_has_no_brier() -> None:
    assert "Brier score" not in {comparison.metric for comparison in compare_metrics(make_set(), CHAMPION)}


def test_check_candidate_has_comparison_unless_first() -> None:
    assert [comparison.metric for comparison in check_set().champion_comparison][:2] == ["AUROC", "AURC"]
    assert check_set(champion=None).champion_comparison == ()


def test_error_recall_vs_best_is_relative_to_number_of_errors() -> None:
    """Of ten answers the two least confident are withheld."""
    correct = np.array([0, 0, 0, 0, 1, 1, 1, 1, 1, 1])
    confidence = np.array([0.1, 0.2, 0.8, 0.9, 0.3, 0.4, 0.5, 0.6, 0.7, 0.85])
    assert metrics.error_recall(correct, confidence, max_withheld_share=0.2) == pytest.approx(0.5)
    assert metrics.error_recall_vs_best(correct, confidence, max_withheld_share=0.2) == pytest.approx(1.0)
    few = np.array([0, *[1] * 9])
    assert metrics.error_recall_vs_best(few, confidence, max_withheld_share=0.2) == pytest.approx(1.0)
