import numpy as np
import pandas as pd
import pytest

from abstain.learning.evaluation.selective_prediction import ScoredAnswers, build_threshold_table, evaluate_at_threshold
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import BootstrapConfig
from tests.learning.evaluation.builders import make_grouped

CORRECT, CONFIDENCE, _ = make_grouped(200, 25, 0)
ANSWERS = ScoredAnswers(CORRECT, CONFIDENCE, np.ones(200))
NAN = float("nan")
RESAMPLING = BootstrapConfig(n_resamples=50, seed=0)


def make_answers(correct: list[int], confidence: list[float], weight: list[float] | None = None) -> ScoredAnswers:
    return ScoredAnswers(
        np.array(correct), np.array(confidence), np.array(weight) if weight else np.ones(len(confidence))
    )


def make_table(answers: ScoredAnswers, marked: dict[str, float], rouge: np.ndarray | None = None) -> pd.DataFrame:
    return build_threshold_table(answers, np.arange(len(answers.correct)), marked, RESAMPLING, rouge)


def test_threshold_table_matches_hand_computation() -> None:
    answers = make_answers([1, 0, 1, 1], [0.95, 0.45, 0.35, 0.05])
    table = make_table(answers, {"guaranteed": 0.35})
    assert table["threshold"].tolist() == pytest.approx([0, 0.1, 0.2, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
    assert table["threshold"][table["mark"] == "guaranteed"].tolist() == [0.35]
    assert set(table["mark"]) == {"", "guaranteed"}
    row = table.set_index("threshold").loc
    columns = ["precision", "recall", "coverage", "abstention_rate", "accuracy", "f1"]
    assert row[0.0, columns].tolist() == pytest.approx([0.75, 1, 1, 0, 0.75, 6 / 7])
    assert row[0.35, columns].tolist() == pytest.approx([2 / 3, 2 / 3, 0.75, 0.25, 0.5, 2 / 3])
    assert row[0.9, columns].tolist() == pytest.approx([1, 1 / 3, 0.25, 0.75, 0.5, 0.5])
    assert not [name for name in table if "rouge" in name]


def test_evaluate_at_threshold_rouge_is_weighted_by_part() -> None:
    """The shown answers have 0.8 (weight 3) and 0.4 (1), the withheld ones 0.2 (1) and 0.6 (3); all are of one class."""
    correct, confidence, rouge = [1, 1, 1, 1, 1], [0.9, 0.8, 0.7, 0.3, 0.2], np.array([0.8, 0.4, NAN, 0.2, 0.6])
    answers = make_answers(correct, confidence, [3, 1, 1, 1, 3])
    row = evaluate_at_threshold(answers, 0.5, rouge)
    assert (row.rouge_shown, row.rouge_shown_answers) == (pytest.approx(0.7), 2)
    assert (row.rouge_withheld, row.rouge_withheld_answers) == (pytest.approx(0.5), 2)
    assert evaluate_at_threshold(make_answers(correct, confidence), 0.5, rouge).rouge_shown == pytest.approx(0.6)
    everything = evaluate_at_threshold(answers, 0.0, rouge)
    assert (everything.rouge_withheld, everything.rouge_withheld_answers) == (None, 0)
    assert everything.rouge_shown_answers == 4
    without = evaluate_at_threshold(answers, 0.5, np.full(5, NAN))
    assert (without.rouge_shown, without.rouge_withheld) == (None, None)
    assert without.rouge_shown_answers == without.rouge_withheld_answers == 0


@pytest.mark.parametrize("marked", [0.3, 0.3 + 1e-12, 0.0, 1.0])
def test_threshold_table_has_marked_threshold_once(marked: float) -> None:
    table = make_table(ANSWERS, {"heuristic": marked})
    assert (table["mark"] == "heuristic").sum() == (table["threshold"] == marked).sum() == 1
    assert table["threshold"].is_monotonic_increasing
    both = make_table(ANSWERS, {"guaranteed": marked, "heuristic": marked}).set_index("mark")
    assert both.loc["guaranteed"].equals(both.loc["heuristic"]) and len(both) == len(table) + 1
    with pytest.raises(ValueError, match="'guaranteed'"):
        make_table(ANSWERS, {"heuristic": marked, "guaranteed": NAN})


def test_evaluate_at_threshold_nothing_shown_or_unscored() -> None:
    for threshold in (0.95, float("inf")):
        row = evaluate_at_threshold(make_answers([1, 0], [0.1, 0.2]), threshold)
        assert row.precision is None
        assert (row.abstention_rate, row.recall, row.f1, row.accuracy) == (1, 0, 0, 0.5)
    some = np.where(np.arange(200) % 4 == 0, NAN, CONFIDENCE)
    row = evaluate_at_threshold(ScoredAnswers(CORRECT, some, np.ones(200)), 0.0, np.ones(200))
    assert (row.coverage, row.abstention_rate) == (0.75, 0.25), "what has no score is withheld"
    assert (row.rouge_shown_answers, row.rouge_withheld_answers) == (150, 50)


def test_threshold_table_is_weighted() -> None:
    weight = np.where(CORRECT == 1, 1.0, 0.25)
    row = make_table(ScoredAnswers(CORRECT, CONFIDENCE, weight), {}, CORRECT).iloc[5]
    for name in ("precision", "recall", "coverage", "accuracy", "f1"):
        expected = getattr(metrics, name)(CORRECT, CONFIDENCE, weight, threshold=0.5)
        assert row[name] == pytest.approx(expected), name
    assert row["abstention_rate"] == 1 - row["coverage"]
    assert row["precision"] > metrics.precision(CORRECT, CONFIDENCE, threshold=0.5) + 0.1


def test_evaluate_at_threshold_rouge_is_of_all_answers() -> None:
    """Reviewers write an ideal answer for half of the incorrect answers, and for a sixth of the correct ones."""
    rng = np.random.default_rng(0)
    correct = (rng.random(20_000) < 0.6).astype(int)
    confidence = np.clip(0.5 + 0.3 * (correct - 0.5) + rng.normal(0, 0.2, len(correct)), 0, 1)
    rouge = np.clip(0.3 + 0.5 * correct + rng.normal(0, 0.1, len(correct)), 0, 1)
    written = rng.random(len(correct)) < np.where(correct == 1, 1 / 6, 1 / 2)
    answers = ScoredAnswers(correct, confidence, np.ones(len(correct)))
    row = evaluate_at_threshold(answers, 0.6, np.where(written, rouge, NAN))
    shown = confidence >= 0.6
    assert row.rouge_shown == pytest.approx(rouge[shown].mean(), abs=0.01)
    assert row.rouge_withheld == pytest.approx(rouge[~shown].mean(), abs=0.01)
    assert rouge[shown & written].mean() < rouge[shown].mean() - 0.05, "by those with an ideal answer alone"


def test_evaluate_at_threshold_class_without_ideal_answer() -> None:
    """Nothing is known of the correct answer that is shown, so nothing of the mean."""
    row = evaluate_at_threshold(make_answers([1, 0, 0], [0.9, 0.8, 0.2]), 0.5, np.array([NAN, 0.2, 0.4]))
    assert (row.rouge_shown, row.rouge_withheld) == (None, pytest.approx(0.4))


def test_threshold_table_intervals_are_by_groups() -> None:
    groups = np.arange(200) // 20
    table = build_threshold_table(ANSWERS, groups, {"heuristic": 0.5}, RESAMPLING, np.where(CORRECT == 1, 0.9, 0.1))
    alone = make_table(ANSWERS, {"heuristic": 0.5}, np.where(CORRECT == 1, 0.9, 0.1))
    for name in ("precision", "recall", "coverage", "accuracy", "f1", "rouge_shown", "rouge_withheld"):
        low, value, high = (table[f"{name}{end}"].iloc[5] for end in ("_low", "", "_high"))
        assert low <= value <= high and low < high
    widths = [(frame["precision_high"] - frame["precision_low"]).iloc[0] for frame in (table, alone)]
    assert widths[0] != widths[1]
