from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from abstain.learning.evaluation.selective_prediction import build_threshold_table, evaluate_at_threshold
from abstain.learning.metrics import weighted_metrics as metrics
from tests.learning.evaluation.builders import grouped

CORRECT, CONFIDENCE, _ = grouped(200, 25, 0)
NAN = float("nan")


def test_the_table_by_hand() -> None:
    table = build_threshold_table(np.array([1, 0, 1, 1]), np.array([0.95, 0.45, 0.35, 0.05]), {"guaranteed": 0.35})
    assert table["threshold"].tolist() == pytest.approx([0, 0.1, 0.2, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
    assert table["threshold"][table["mark"] == "guaranteed"].tolist() == [0.35]
    assert set(table["mark"]) == {"", "guaranteed"}
    row = table.set_index("threshold").loc
    columns = ["precision", "recall", "coverage", "abstention_rate", "accuracy", "f1"]
    assert row[0.0, columns].tolist() == pytest.approx([0.75, 1, 1, 0, 0.75, 6 / 7])
    assert row[0.35, columns].tolist() == pytest.approx([2 / 3, 2 / 3, 0.75, 0.25, 0.5, 2 / 3])
    assert row[0.9, columns].tolist() == pytest.approx([1, 1 / 3, 0.25, 0.75, 0.5, 0.5])
    assert not [name for name in table if "rouge" in name]


def test_rouge_of_shown_and_withheld_answers_by_hand() -> None:
    """Four of five answers have an ideal one; weighted: the shown ones 0.8 (3) and 0.4 (1), the withheld 0.2 (1), 0.6 (3)."""
    correct, confidence = np.array([1, 1, 1, 0, 0]), np.array([0.9, 0.8, 0.7, 0.3, 0.2])
    rouge, weight = np.array([0.8, 0.4, NAN, 0.2, 0.6]), np.array([3.0, 1, 1, 1, 3])
    found = evaluate_at_threshold(correct, confidence, 0.5, weight, rouge)
    assert (found["rouge_shown"], found["rouge_shown_answers"]) == (pytest.approx(0.7), 2)
    assert (found["rouge_withheld"], found["rouge_withheld_answers"]) == (pytest.approx(0.5), 2)
    assert evaluate_at_threshold(correct, confidence, 0.5, None, rouge)["rouge_shown"] == pytest.approx(0.6)
    table = build_threshold_table(correct, confidence, {}, weight, rouge).set_index("threshold")
    assert np.isnan(table.loc[0.0, "rouge_withheld"]) and table.loc[0.0, "rouge_withheld_answers"] == 0
    assert table.loc[0.0, "rouge_shown_answers"] == 4
    assert (table["rouge_shown_answers"] + table["rouge_withheld_answers"] == 4).all()
    none = evaluate_at_threshold(correct, confidence, 0.5, weight, np.full(5, NAN))
    assert np.isnan([none["rouge_shown"], none["rouge_withheld"]]).all()
    assert none["rouge_shown_answers"] == none["rouge_withheld_answers"] == 0


@pytest.mark.parametrize("marked", [0.3, 0.3 + 1e-12, 0.0, 1.0])
def test_a_marked_threshold_stands_in_the_table_once(marked: float) -> None:
    table = build_threshold_table(CORRECT, CONFIDENCE, {"heuristic": marked})
    assert (table["mark"] == "heuristic").sum() == (table["threshold"] == marked).sum() == 1
    assert table["threshold"].is_monotonic_increasing


def test_two_marks_of_one_threshold_are_each_found() -> None:
    table = build_threshold_table(CORRECT, CONFIDENCE, {"guaranteed": 0.5, "heuristic": 0.5}).set_index("mark")
    assert table.loc["guaranteed"].equals(table.loc["heuristic"])
    assert len(table) == 11


def test_a_mark_without_a_threshold_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'guaranteed' is nan"):
        build_threshold_table(CORRECT, CONFIDENCE, {"heuristic": 0.5, "guaranteed": NAN})


def test_a_threshold_that_shows_nothing_has_no_precision() -> None:
    table = build_threshold_table(np.array([1, 0]), np.array([0.1, 0.2]), {"guaranteed": 0.95})
    last = table.iloc[-1]
    assert np.isnan(last["precision"])
    assert (last["abstention_rate"], last["recall"], last["f1"], last["accuracy"]) == (1, 0, 0, 0.5)
    never = build_threshold_table(CORRECT, CONFIDENCE, {"guaranteed": float("inf")}).iloc[-1]
    assert (never["mark"], never["abstention_rate"]) == ("guaranteed", 1)


def test_an_answer_without_a_confidence_is_masked() -> None:
    some = np.where(np.arange(200) % 4 == 0, NAN, CONFIDENCE)
    found = build_threshold_table(CORRECT, some, {}, rouge=np.ones(200)).iloc[0]
    assert (found["coverage"], found["abstention_rate"]) == (0.75, 0.25)
    assert (found["rouge_shown_answers"], found["rouge_withheld_answers"]) == (150, 50)


def test_weights_reach_every_figure() -> None:
    weight, rouge = np.where(CORRECT == 1, 1.0, 0.25), np.where(CORRECT == 1, 0.9, 0.1)
    weighted = build_threshold_table(CORRECT, CONFIDENCE, {"heuristic": 0.55}, weight, rouge)
    assert weighted["precision"].iloc[0] == pytest.approx(metrics.weighted_mean(CORRECT, weight))
    assert weighted["rouge_shown"].iloc[0] == pytest.approx(metrics.weighted_mean(rouge, weight))
    assert weighted["precision"].iloc[0] > CORRECT.mean() + 0.1
    times = (4 * weight).astype(int)
    repeated = build_threshold_table(
        *(np.repeat(column, times) for column in (CORRECT, CONFIDENCE)),
        {"heuristic": 0.55},
        None,
        np.repeat(rouge, times),
    )
    counts = ["rouge_shown_answers", "rouge_withheld_answers"]
    pd.testing.assert_frame_equal(weighted.drop(columns=counts), repeated.drop(columns=counts))
    pd.testing.assert_frame_equal(
        build_threshold_table(CORRECT, CONFIDENCE, {}, np.ones(200)), build_threshold_table(CORRECT, CONFIDENCE, {})
    )
