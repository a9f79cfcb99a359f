from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.metrics import auc, average_precision_score, brier_score_loss, roc_auc_score

from abstain.evaluate.metrics import (
    auprc,
    aurc,
    auroc,
    bootstrap,
    brier,
    ece,
    effective_rows,
    interval,
    mean,
    reliability,
    risk_coverage,
    row_weights,
)

rows = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 20).map(lambda n: n / 20)), min_size=1, max_size=30)


def arrays(rows: list[tuple[int, float]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([y for y, _ in rows]), np.array([c for _, c in rows])


def pairs_won(correct: np.ndarray, confidence: np.ndarray) -> float:
    """AUROC by its definition: over all pairs of a right and a wrong answer, ties count half."""
    won = [
        1.0 if right > wrong else 0.5 if right == wrong else 0.0
        for right in confidence[correct == 1]
        for wrong in confidence[correct == 0]
    ]
    return sum(won) / len(won)


@given(rows)
def test_ranking_metrics_equal_their_definitions(rows: list[tuple[int, float]]) -> None:
    correct, confidence = arrays(rows)
    assume(0 < correct.sum() < len(correct))
    assert auroc(correct, confidence) == pytest.approx(pairs_won(correct, confidence))
    assert auroc(correct, confidence) == pytest.approx(roc_auc_score(correct, confidence))
    assert auprc(correct, confidence) == pytest.approx(average_precision_score(correct, confidence))
    assert brier(correct, confidence) == pytest.approx(brier_score_loss(correct, confidence))


def test_what_is_not_defined_is_nan() -> None:
    nothing, ones, zeros = np.array([]), np.ones(3, int), np.zeros(3, int)
    confidence = np.array([0.1, 0.5, 0.9])
    assert math.isnan(auroc(ones, confidence))
    assert math.isnan(auroc(zeros, confidence))
    assert math.isnan(auroc(nothing, nothing))
    assert math.isnan(auprc(zeros, confidence))
    assert auprc(ones, confidence) == 1


def test_calibration_error_by_hand() -> None:
    """Two bins of 0.1: [0.2, 0.3) with accuracy 1/2, [0.9, 1.0] with accuracy 2/3; 1.0 belongs to the last bin."""
    correct = np.array([1, 0, 1, 1, 0])
    confidence = np.array([0.2, 0.24, 0.9, 0.95, 1.0])
    assert reliability(correct, confidence) == [
        {"confidence": pytest.approx(0.22), "accuracy": 0.5, "rows": 2},
        {"confidence": pytest.approx(0.95), "accuracy": pytest.approx(2 / 3), "rows": 3},
    ]
    assert ece(correct, confidence) == pytest.approx((2 * 0.28 + 3 * (0.95 - 2 / 3)) / 5)


@given(rows)
def test_calibration_error_lies_between_the_overall_gap_and_one(rows: list[tuple[int, float]]) -> None:
    correct, confidence = arrays(rows)
    gap = abs(correct.mean() - confidence.mean())
    assert gap - 1e-9 <= ece(correct, confidence) <= 1
    assert ece(correct, confidence, bins=1) == pytest.approx(gap)
    assert sum(b["rows"] for b in reliability(correct, confidence)) == len(rows)


def test_perfect_and_perfectly_wrong_calibration() -> None:
    correct = np.array([1, 0, 1])
    assert ece(correct, correct.astype(float)) == 0
    assert ece(correct, 1.0 - correct) == 1


def test_risk_and_coverage_by_hand() -> None:
    correct = np.array([0, 1, 1, 0])
    coverage, risk = risk_coverage(correct, np.array([0.1, 0.9, 0.7, 0.8]))
    assert coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert risk == pytest.approx([0, 1 / 2, 1 / 3, 2 / 4])
    assert aurc(correct, np.array([0.1, 0.9, 0.7, 0.8])) == pytest.approx((0 + 1 / 2 + 1 / 3 + 1 / 2) / 4)


def test_tied_answers_are_shown_together_whatever_their_order() -> None:
    correct, confidence = np.array([1, 0, 0, 1]), np.array([0.5, 0.5, 0.5, 0.9])
    expected = [0, 2 / 4, 2 / 4, 2 / 4]
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2]):
        assert risk_coverage(correct[order], confidence[order])[1] == pytest.approx(expected)


@given(rows, st.randoms(use_true_random=False))
def test_the_curve_ends_at_the_error_rate_and_ignores_the_order(rows: list[tuple[int, float]], random) -> None:
    correct, confidence = arrays(rows)
    coverage, risk = risk_coverage(correct, confidence)
    assert len(coverage) == len(risk) == len(rows)
    assert (coverage[-1], risk[-1]) == (1, pytest.approx(1 - correct.mean()))
    shuffled = random.sample(rows, len(rows))
    assert risk_coverage(*arrays(shuffled))[1] == pytest.approx(risk)


def test_a_perfect_ranking_has_the_least_area() -> None:
    generator = np.random.default_rng(0)
    correct = generator.integers(2, size=50)
    best = aurc(correct, correct + 0.01 * generator.random(50))
    assert best < aurc(correct, generator.random(50)) < aurc(correct, 1 - correct + 0.01 * generator.random(50))


def grouped(rows: int, groups: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Answers whose confidence is a noisy view of their correctness; groups err together."""
    generator = np.random.default_rng(seed)
    group = generator.integers(groups, size=rows)
    correct = (generator.random(rows) < np.clip(0.6 + 0.25 * generator.normal(size=groups), 0.05, 0.95)[group]).astype(
        int
    )
    confidence = 1 / (1 + np.exp(-(2 * correct - 1) - generator.normal(size=rows)))
    return correct, confidence, group


def test_draws_are_paired() -> None:
    correct, confidence, groups = grouped(120, 20, 0)
    two = {"a": confidence, "b": confidence.copy(), "worse": 1 - confidence}
    drawn = bootstrap(auroc, correct, two, groups, 50, seed=5)
    assert np.array_equal(drawn["a"], drawn["b"])
    assert drawn["a"] + drawn["worse"] == pytest.approx(np.ones(50))
    alone = bootstrap(auroc, correct, {"a": confidence}, groups, 50, seed=5)
    assert np.array_equal(alone["a"], drawn["a"])
    assert not np.array_equal(bootstrap(auroc, correct, {"a": confidence}, groups, 50, seed=6)["a"], drawn["a"])


def test_whole_groups_are_drawn() -> None:
    """Every draw is made of whole groups: the size of a draw and its rows per group say so."""
    groups = np.repeat(["a", "b", "c"], [1, 10, 100])
    ids = np.arange(111).astype(float)
    seen: list[tuple[int, ...]] = []

    def keep(correct: np.ndarray, drawn: np.ndarray, weight: np.ndarray | None) -> float:
        assert weight is None
        counts = np.bincount(drawn.astype(int), minlength=111)
        per_group = [counts[groups == group] for group in "abc"]
        assert all(np.ptp(count) == 0 for count in per_group)
        seen.append(tuple(int(count[0]) for count in per_group))
        return 0.0

    bootstrap(keep, np.zeros(111, int), {"ids": ids}, groups, 200, seed=0)
    assert {sum(times) for times in seen} == {3}
    assert len(set(seen)) == 10  # all ways of drawing three of three with replacement


def test_the_interval_of_grouped_answers_is_wider_than_that_of_single_ones() -> None:
    correct, confidence, groups = grouped(300, 12, 1)

    def width(by: np.ndarray) -> float:
        low, high = interval(bootstrap(lambda y, *_: float(y.mean()), correct, {"a": confidence}, by, 300, 0)["a"])
        return high - low

    assert width(groups) > 1.5 * width(np.arange(300))


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """95 % intervals of a mean whose truth is known, over 60 data sets: far fewer than 48 hits would be a fault."""
    hits = 0
    for seed in range(60):
        generator = np.random.default_rng(seed)
        correct = (generator.random(150) < 0.7).astype(int)
        drawn = bootstrap(lambda y, *_: float(y.mean()), correct, {"a": correct}, np.arange(150), 120, seed)
        low, high = interval(drawn["a"])
        hits += low <= 0.7 <= high
    assert 48 <= hits <= 60


def test_interval_leaves_nan_draws_out() -> None:
    draws = np.array([np.nan, *np.linspace(0, 1, 101), np.nan])
    assert interval(draws) == (pytest.approx(0.025), pytest.approx(0.975))
    assert interval(draws, level=0.5) == (pytest.approx(0.25), pytest.approx(0.75))
    assert all(math.isnan(bound) for bound in interval(np.full(3, np.nan)))


def test_the_trapezoid_of_the_curve_is_close_to_aurc() -> None:
    correct, confidence, _ = grouped(400, 40, 2)
    assert aurc(correct, confidence) == pytest.approx(auc(*risk_coverage(correct, confidence)), abs=0.01)


weighted = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 20).map(lambda n: n / 20), st.integers(1, 5)), min_size=1, max_size=30
)
ALL = {"auroc": auroc, "auprc": auprc, "brier": brier, "ece": ece, "aurc": aurc}


@pytest.mark.parametrize("name", list(ALL))
@given(rows=weighted)
def test_a_weight_stands_for_that_many_answers(name: str, rows: list[tuple[int, float, int]]) -> None:
    correct, confidence, times = (np.array(column) for column in zip(*rows, strict=True))
    repeated = ALL[name](np.repeat(correct, times), np.repeat(confidence, times))
    assert ALL[name](correct, confidence, times.astype(float)) == pytest.approx(repeated, nan_ok=True)
    assert ALL[name](correct, confidence, times / 7) == pytest.approx(repeated, nan_ok=True)  # the scale says nothing


@given(rows)
def test_equal_weights_give_the_unweighted_figures_to_the_last_bit(rows: list[tuple[int, float]]) -> None:
    correct, confidence = arrays(rows)
    for probability in (np.nan, 1.0, 0.3, 1 / 7):
        weight = row_weights(np.full(len(rows), probability))
        for name, metric in ALL.items():
            plain = metric(correct, confidence)
            assert metric(correct, confidence, weight) == plain or math.isnan(plain), name
        assert reliability(correct, confidence, weight) == reliability(correct, confidence)
        pairs = zip(risk_coverage(correct, confidence, weight), risk_coverage(correct, confidence), strict=True)
        assert all(np.array_equal(one, other) for one, other in pairs)
        assert effective_rows(weight) == len(rows)
    # what these figures were before there were weights
    assert brier(correct, confidence) == float(np.mean((confidence - correct) ** 2))
    table = reliability(correct, confidence)
    assert ece(correct, confidence) == sum(b["rows"] * abs(b["confidence"] - b["accuracy"]) for b in table) / len(rows)


def test_the_bootstrap_carries_the_weights() -> None:
    correct, confidence, groups = grouped(120, 20, 0)
    scores = {"a": confidence}
    plain = bootstrap(auroc, correct, scores, groups, 50, 5)["a"]
    assert np.array_equal(bootstrap(auroc, correct, scores, groups, 50, 5, np.ones(120))["a"], plain)
    times = np.random.default_rng(0).integers(1, 4, size=120)
    repeated = {"a": np.repeat(confidence, times)}
    expected = bootstrap(auroc, np.repeat(correct, times), repeated, np.repeat(groups, times), 50, 5)["a"]
    assert bootstrap(auroc, correct, scores, groups, 50, 5, times.astype(float))["a"] == pytest.approx(expected)


def test_weights_are_inverse_probabilities_and_what_is_unknown_stands_for_itself() -> None:
    assert row_weights(np.array([0.5, 1.0, np.nan, 0.1])) == pytest.approx([0.2, 0.1, 0.1, 1.0])
    assert row_weights(np.array([])).tolist() == []
    assert row_weights(np.full(3, np.nan)).tolist() == [1, 1, 1]


def test_the_effective_number_of_rows() -> None:
    assert effective_rows(np.array([1.0, 1.0, 1.0, 1.0])) == 4
    assert effective_rows(np.full(20, 0.3)) == 20  # 20.000000000000004 would be another figure than 20
    assert effective_rows(np.array([3.0, 1.0])) == pytest.approx(16 / 10)
    assert effective_rows(np.array([])) == 0


def test_weights_undo_an_uneven_draw() -> None:
    """Wrong answers are reviewed five times as often as right ones; the weighted figures are those of all answers."""
    generator = np.random.default_rng(3)
    correct, confidence, _ = grouped(40_000, 400, 3)
    probability = np.where(correct == 1, 0.1, 0.5)
    drawn = generator.random(len(correct)) < probability
    weight = row_weights(probability[drawn])
    assert mean(correct[drawn]) < 0.3 < 0.55 < mean(correct)
    assert mean(correct[drawn], weight) == pytest.approx(mean(correct), abs=0.02)
    for name in ("brier", "ece", "auprc", "aurc"):
        whole, naive = ALL[name](correct, confidence), ALL[name](correct[drawn], confidence[drawn])
        assert ALL[name](correct[drawn], confidence[drawn], weight) == pytest.approx(whole, abs=0.02), name
        assert name == "brier" or abs(naive - whole) > 0.03, name
