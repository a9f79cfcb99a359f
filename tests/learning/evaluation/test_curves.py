import numpy as np
import pandas as pd
import pytest

from abstain.learning.evaluation import curves
from abstain.learning.metrics import weighted_metrics as metrics

CORRECT = np.array([1, 0, 1, 1, 0, 0, 1, 0])
SCORES = pd.DataFrame({"a": [0.9, 0.2, 0.8, 0.7, 0.4, 0.75, 0.3, 0.1], "b": [0.5] * 8})
WEIGHT = np.array([1.0, 0.5, 1, 1, 1, 0.25, 1, 1])


def test_roc_and_risk_tables_show_unscored_answers_last() -> None:
    table = curves.make_roc_table(CORRECT, SCORES, WEIGHT)
    for name, part in table.groupby("scorer"):
        area = np.trapezoid(part["true_positive_rate"], part["false_positive_rate"])
        assert area == pytest.approx(metrics.auroc(CORRECT, SCORES[name].to_numpy(), WEIGHT))
    answers = np.array([1, 1, 0]), pd.DataFrame({"a": [0.9, 0.5, np.nan]}), np.ones(3)
    last = curves.make_roc_table(*answers).iloc[-2]
    assert last[["false_positive_rate", "true_positive_rate"]].tolist() == [0, 1]
    assert curves.make_risk_coverage_table(*answers)["risk"].tolist() == pytest.approx([0, 0, 1 / 3])


def test_confidence_histogram_counts_every_row_once() -> None:
    table = curves.make_confidence_histogram(CORRECT, SCORES["a"].to_numpy(), WEIGHT)
    assert table[["correct", "incorrect"]].to_numpy().sum() == pytest.approx(1)
    assert table["correct"].sum() == pytest.approx(WEIGHT[CORRECT == 1].sum() / WEIGHT.sum())
    ends = curves.make_confidence_histogram(np.array([1, 0]), np.array([1.0, 0.0]), np.ones(2))
    assert ends["correct"].iloc[-1] == ends["incorrect"].iloc[0] == 0.5


def test_slice_reliability_table_has_largest_slices() -> None:
    stratum = pd.Series(["b"] * 30 + ["a"] * 40 + ["few"] * 5 + [None] * 9 + ["c", "d", "e"] * 20)
    correct, half = np.tile([0, 1], 72), np.full(144, 0.5)
    table = curves.make_slice_reliability_table(stratum, correct, half, np.ones(144), 20)
    assert list(table["kind"]) == ["a", "b", "c", "d"] and list(table["rows"]) == [40, 30, 20, 20]
    assert set(table["share"]) == {1.0} and table["accuracy"].tolist() == [0.5] * 4
    assert curves.make_slice_reliability_table(stratum, correct, half, np.ones(144), 50).empty


def test_reliability_table_has_raw_and_calibrated() -> None:
    table = curves.make_reliability_table(CORRECT, SCORES["a"].to_numpy(), np.full(8, 0.5), np.ones(8))
    (calibrated,) = table[table["kind"] == "calibrated"].to_dict("records")
    assert calibrated == {"kind": "calibrated", "confidence": 0.5, "accuracy": 0.5, "rows": 8, "share": 1.0}
    assert table[table["kind"] == "raw"]["rows"].sum() == 8


def test_rank_correlations_use_fully_scored_rows() -> None:
    scores = pd.DataFrame({"a": [0.1, 0.2, 0.3, np.nan], "b": [0.9, 0.5, 0.1, 0.0], "c": [1.0, 2.0, 3.0, -5.0]})
    correlations = curves.compute_rank_correlations(scores, ["a", "b", "c"])
    assert correlations.names == ["a", "b", "c"]
    assert np.array(correlations.matrix) == pytest.approx(np.array([[1, -1, 1], [-1, 1, -1], [1, -1, 1]]))
