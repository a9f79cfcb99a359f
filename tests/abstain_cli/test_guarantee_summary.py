"""The sentence about the guarantee on the hold-out."""

from __future__ import annotations

from typing import Any

from abstain.learning.evaluation.evaluation_result import HoldoutMetrics
from abstain_cli.guarantee_summary import summarize_holdout
from tests.reports.builders import make_holdout_metrics


def holdout(metric: str = "precision", value: float = 0.8, **at: Any) -> HoldoutMetrics:
    figures = {"precision": 0.85, "coverage": 0.4, "shown": 60, "shown_n_eff": 57.3}
    figures |= {"precision_low": 0.77, "precision_high": 0.92, "error_rate_low": 0.03, "error_rate_high": 0.1}
    target = {"metric": metric, "value": value, "min_n_eff": 20}
    return make_holdout_metrics(figures | at, rows=150, target=target)


def test_verdict_kept_names_interval_and_shown_answers() -> None:
    assert summarize_holdout(holdout()) == (
        "kept on the hold-out: 85.0 % (95 % interval 77.0 % to 92.0 %) of 60 shown reviewed answers; "
        "the interval holds the target, so this may be chance"
    )


def test_verdict_missed_below_target_and_above_error_rate() -> None:
    assert summarize_holdout(holdout(value=0.9)).startswith("missed on the hold-out: 85.0 %")
    assert summarize_holdout(holdout("error_rate", 0.05)).startswith("missed on the hold-out: 6.0 %")
    assert summarize_holdout(holdout("error_rate", 0.07)) == (
        "kept on the hold-out: 6.0 % (95 % interval 3.0 % to 10.0 %) of 150 reviewed answers, 60 of them shown; "
        "the interval holds the target, so this may be chance"
    )
    assert "chance" not in summarize_holdout(holdout("error_rate", 0.11))


def test_verdict_too_few_answers_says_how_many_are_missing() -> None:
    assert summarize_holdout(holdout(shown=13, shown_n_eff=12.4)) == (
        "cannot be judged: 8 more shown reviewed answers of the hold-out are needed, 13 are there"
    )


def test_verdict_nothing_shown_cannot_be_judged() -> None:
    nothing = {"precision": None, "coverage": 0.0, "shown": 0, "shown_n_eff": 0.0}
    for metric in ("precision", "error_rate"):
        assert "cannot be judged: nothing is shown" in summarize_holdout(holdout(metric, **nothing))
