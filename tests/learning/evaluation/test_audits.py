import numpy as np
import pandas as pd
import pytest

from abstain.learning.evaluation import curves
from abstain.learning.evaluation.audits import audit_answers_shuffled, audit_context_removed
from abstain.learning.evaluation.examples import CHARACTERS, EXAMPLES, select_examples
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import BootstrapConfig
from tests.learning.evaluation.builders import make_grouped, make_split

CORRECT = np.array([1, 1, 0, 0])
SCORES = pd.DataFrame({"reads": [0.9, 0.8, 0.2, 0.1], "deaf": [0.9, 0.8, 0.2, 0.1]})
RESAMPLES = BootstrapConfig(200, 0)


def test_audit_context_removed_separates_use_of_context() -> None:
    changed = SCORES.assign(reads=[0.5, 0.1, 0.5, 0.1])
    reads, deaf = audit_context_removed(make_split(CORRECT, SCORES), changed, RESAMPLES)
    assert (reads.scorer, reads.auroc, reads.auroc_changed) == ("reads", 1.0, 0.5)
    assert (deaf.auroc, deaf.auroc_changed, deaf.auroc_lost) == (1.0, 1.0, 0.0)
    assert reads.mean == pytest.approx(0.5) and reads.mean_changed == pytest.approx(0.3)
    weighted, _ = audit_context_removed(make_split(CORRECT, SCORES, weight=np.array([3.0, 1, 1, 1])), SCORES, RESAMPLES)
    assert weighted.mean == weighted.mean_changed == pytest.approx((2.7 + 0.8 + 0.2 + 0.1) / 6)
    scores = pd.DataFrame({"silent": [np.nan] * 4})
    (silent,) = audit_context_removed(make_split(CORRECT, scores), scores, RESAMPLES)
    assert (silent.auroc, silent.mean) == (None, None)


def test_audit_context_removed_loss_is_paired() -> None:
    correct, confidence, groups = make_grouped(400, 50, 3)
    noise = 0.15 * np.random.default_rng(0).normal(size=400)
    changed = pd.DataFrame({"probe": confidence + noise})
    (row,) = audit_context_removed(make_split(correct, {"probe": confidence}, groups=groups), changed, RESAMPLES)
    assert row.auroc_lost == pytest.approx(row.auroc - row.auroc_changed)
    assert 0 < row.auroc_lost_low < row.auroc_lost < row.auroc_lost_high


def test_audit_answers_shuffled_compares_correct_answers() -> None:
    scores = {name: np.array([0.9, 0.6, 0.2, 0.1]) for name in ("probe", "other")}
    changed = pd.DataFrame({"probe": [0.7, 0.1, 0.95, 0.0], "other": [0.9, 0.6, 0.0, 0.0]})
    probe, other = audit_answers_shuffled(make_split(CORRECT, scores), changed, {"probe": 0.65})
    assert probe.auroc_against_shuffled == pytest.approx(0.75)  # 0.9 beats both, 0.6 beats one of two
    assert probe.shown_changed == pytest.approx(0.5)  # 0.7 and 0.95, of four
    assert probe.mean_correct == pytest.approx(0.75) and probe.mean_changed == pytest.approx(0.4)
    assert other.auroc_against_shuffled == 0.5 and other.shown_changed is None


def make_rows(correct: list[int], confidence: list[float]) -> pd.DataFrame:
    rows = pd.DataFrame({"correct": correct, "confidence": confidence, "probability": confidence})
    return rows.assign(
        interaction_id=[f"i-{i}" for i in range(len(rows))],
        product="gold",
        question="Why?",
        answer="x" * (CHARACTERS + 5),
        ideal_answer=pd.Series([None] * len(rows), dtype=object),
    )


def test_select_examples_ranks_each_kind_few_and_short() -> None:
    examples = select_examples(make_rows([0, 0, 0, 1, 1, 0, 0], [0.1, 0.7, 0.9, 0.2, 0.8, 0.3, 0.5]), 0.5)
    ids = [[found.interaction_id for found in kind] for kind in (examples.caught, examples.missed, examples.withheld)]
    assert ids == [["i-0", "i-5"], ["i-2", "i-1", "i-6"], ["i-3"]], "an answer at the threshold is shown"
    rows = make_rows([0] * 20, [0.1] * 20)
    examples = select_examples(rows, 0.5)
    assert len(examples.caught) == EXAMPLES and examples.missed == []
    assert len(examples.caught[0].answer) == CHARACTERS and examples.caught[0].answer.endswith("…")
    assert examples.caught[0].ideal_answer is None
    assert select_examples(rows.sample(frac=1, random_state=0), 0.5) == examples, "it does not depend on the order"


CURVE_CORRECT = np.array([1, 0, 1, 1, 0, 0, 1, 0])
CURVE_SCORES = pd.DataFrame({"a": [0.9, 0.2, 0.8, 0.7, 0.4, 0.75, 0.3, 0.1], "b": [0.5] * 8})
WEIGHT = np.array([1.0, 0.5, 1, 1, 1, 0.25, 1, 1])


def test_roc_and_risk_tables_show_unscored_answers_last() -> None:
    table = curves.make_roc_table(CURVE_CORRECT, CURVE_SCORES, WEIGHT)
    for name, part in table.groupby("scorer"):
        area = np.trapezoid(part["true_positive_rate"], part["false_positive_rate"])
        assert area == pytest.approx(metrics.auroc(CURVE_CORRECT, CURVE_SCORES[name].to_numpy(), WEIGHT))
    answers = np.array([1, 1, 0]), pd.DataFrame({"a": [0.9, 0.5, np.nan]}), np.ones(3)
    last = curves.make_roc_table(*answers).iloc[-2]
    assert last[["false_positive_rate", "true_positive_rate"]].tolist() == [0, 1]
    assert curves.make_risk_coverage_table(*answers)["risk"].tolist() == pytest.approx([0, 0, 1 / 3])


def test_confidence_histogram_counts_every_row_once() -> None:
    table = curves.make_confidence_histogram(CURVE_CORRECT, CURVE_SCORES["a"].to_numpy(), WEIGHT)
    assert table[["correct", "incorrect"]].to_numpy().sum() == pytest.approx(1)
    assert table["correct"].sum() == pytest.approx(WEIGHT[CURVE_CORRECT == 1].sum() / WEIGHT.sum())
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
    table = curves.make_reliability_table(CURVE_CORRECT, CURVE_SCORES["a"].to_numpy(), np.full(8, 0.5), np.ones(8))
    (calibrated,) = table[table["kind"] == "calibrated"].to_dict("records")
    assert calibrated == {"kind": "calibrated", "confidence": 0.5, "accuracy": 0.5, "rows": 8, "share": 1.0}
    assert table[table["kind"] == "raw"]["rows"].sum() == 8


def test_rank_correlations_use_fully_scored_rows() -> None:
    scores = pd.DataFrame({"a": [0.1, 0.2, 0.3, np.nan], "b": [0.9, 0.5, 0.1, 0.0], "c": [1.0, 2.0, 3.0, -5.0]})
    correlations = curves.compute_rank_correlations(scores, ["a", "b", "c"])
    assert correlations.names == ["a", "b", "c"]
    assert np.array(correlations.matrix) == pytest.approx(np.array([[1, -1, 1], [-1, 1, -1], [1, -1, 1]]))
