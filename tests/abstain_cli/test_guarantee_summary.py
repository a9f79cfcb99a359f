from typing import Any

import pytest

from abstain_cli.guarantee_summary import summarize_holdout
from tests.reports.builders import make_holdout_metrics


def summarize(metric: str = "precision", value: float = 0.8, **at: Any) -> str:
    figures = {"precision": 0.85, "coverage": 0.4, "shown": 60, "shown_n_eff": 57.3}
    figures |= {"precision_low": 0.77, "precision_high": 0.92, "error_rate_low": 0.03, "error_rate_high": 0.1}
    target = {"metric": metric, "value": value, "min_n_eff": 20}
    return summarize_holdout(make_holdout_metrics(figures | at, rows=150, target=target))


@pytest.mark.parametrize(
    ("metric", "value", "outcome", "is_uncertain"),
    [
        ("precision", 0.8, "kept on the hold-out: 85.0 % (95 % interval 77.0 % to 92.0 %) of 60 shown", True),
        ("precision", 0.9, "missed on the hold-out: 85.0 % (95 % interval 77.0 % to 92.0 %) of 60 shown", True),
        ("error_rate", 0.05, "missed on the hold-out: 6.0 % (95 % interval 3.0 % to 10.0 %) of 150 ", True),
        ("error_rate", 0.07, "kept on the hold-out: 6.0 % (95 % interval 3.0 % to 10.0 %) of 150 ", True),
        ("error_rate", 0.11, "kept on the hold-out: 6.0 % (95 % interval 3.0 % to 10.0 %) of 150 ", False),
    ],
)
def test_summarize_holdout_has_outcome_interval_and_doubt(
    metric: str, value: float, outcome: str, is_uncertain: bool
) -> None:
    text = summarize(metric, value)
    assert text.startswith(outcome) and ("chance" in text) is is_uncertain
    assert (", 60 of them shown" in text) is (metric == "error_rate")


def test_summarize_holdout_with_few_answers_counts_missing_ones() -> None:
    text = summarize(shown=13, shown_n_eff=12.4)
    assert "cannot be judged: 8 more" in text and "13 are there" in text


@pytest.mark.parametrize("metric", ["precision", "error_rate"])
def test_summarize_holdout_without_shown_answers_is_undefined(metric: str) -> None:
    text = summarize(metric, precision=None, coverage=0.0, shown=0, shown_n_eff=0.0)
    assert text.startswith("cannot be judged: nothing is shown")


def test_summarize_holdout_with_few_documents_counts_them() -> None:
    assert "cannot be judged" in summarize(shown_groups=5 - 1) and summarize(shown_groups=5).startswith("kept")
