from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.config.params import ThresholdParams
from abstain.core.errors import AbstainError
from abstain.learning.metrics.weighted_metrics import row_weights
from abstain.learning.thresholds.selection import compute_operating_point, tune_threshold

# Steps of a tenth: ties are common. Every answer with the same confidence is shown or masked together.
answers = st.lists(st.tuples(st.integers(0, 10).map(lambda n: n / 10), st.booleans()), min_size=1, max_size=40)


def asked(target: float, min_shown: int, metric: str = "precision") -> ThresholdParams:
    given = {"metric": metric, "target": target, "min_shown": min_shown, "confidence": 0.9}
    return ThresholdParams.model_validate(given | {"on_infeasible": "heuristic", "max_reviewer_share": None})


def arrays(rows: list[tuple[float, bool]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([c for c, _ in rows]), np.array([int(right) for _, right in rows])


def shown_at(rows: list[tuple[float, bool]], threshold: float) -> list[bool]:
    return [right for confidence, right in rows if confidence >= threshold]


@given(answers, st.sampled_from([0.3, 0.5, 0.8, 0.95]), st.integers(1, 12))
def test_the_target_is_met_and_no_other_threshold_that_meets_it_shows_more(
    rows: list[tuple[float, bool]], target: float, min_shown: int
) -> None:
    feasible = {
        threshold: len(shown)
        for threshold in {confidence for confidence, _ in rows}
        if len(shown := shown_at(rows, threshold)) >= min_shown and sum(shown) / len(shown) >= target
    }
    params = asked(target, min_shown)
    if not feasible:
        with pytest.raises(AbstainError):
            tune_threshold(*arrays(rows), params)
        return
    chosen = tune_threshold(*arrays(rows), params)
    shown = shown_at(rows, chosen.threshold)
    assert sum(shown) / len(shown) == pytest.approx(chosen.precision)
    assert chosen.precision >= target
    assert len(shown) == chosen.shown == max(feasible.values()) >= min_shown
    assert chosen.coverage == pytest.approx(len(shown) / len(rows))
    assert chosen.rows == len(rows)


def test_figures_by_hand() -> None:
    rows = [(0.9, True), (0.8, True), (0.7, False), (0.6, True), (0.2, False)]
    chosen = tune_threshold(*arrays(rows), asked(0.75, 1))
    expected = {"precision": 0.75, "coverage": 0.8, "recall": 1.0, "shown": 4, "n_eff_shown": 4.0, "rows": 5}
    assert chosen.to_dict() == pytest.approx({"threshold": 0.6, **expected})


def test_an_error_rate_is_of_all_answers() -> None:
    rows = [(0.9, True), (0.8, False), (0.7, True), (0.6, False), (0.5, True), (0.2, False), (0.1, False)]
    rows += [(0.0, False)] * 3
    chosen = tune_threshold(*arrays(rows), asked(0.2, 1, "error_rate"))
    assert (chosen.threshold, chosen.shown, chosen.error_rate) == (0.5, 5, pytest.approx(0.2))
    message = (
        "^no threshold reaches error rate 0.05 on 10 reviewed answers; within reach: 0.100 while showing 30% "
        r"\(threshold 0.700\): raise threshold.target, or bring more reviews$"
    )
    with pytest.raises(AbstainError, match=message):
        tune_threshold(*arrays(rows), asked(0.05, 2, "error_rate"))
    assert compute_operating_point(*arrays(rows), 0.95).error_rate == 0


def test_float32_confidences_keep_their_own_row_above_the_threshold() -> None:
    confidence = np.array([0.1, 0.3, 0.7], np.float32)
    chosen = tune_threshold(confidence, np.array([0, 1, 1]), asked(0.9, 1))
    assert chosen.shown == 2
    assert (confidence >= chosen.threshold).tolist() == [False, True, True]


def test_an_unreachable_target_says_what_is_within_reach() -> None:
    rows = [(0.9, True), (0.8, False), (0.7, True), (0.6, True), (0.2, False)]
    message = (
        "^no threshold reaches precision 0.9 on 5 reviewed answers; within reach: 0.750 while showing 80% "
        r"\(threshold 0.600\): lower threshold.target, or bring more reviews$"
    )
    with pytest.raises(AbstainError, match=message):
        tune_threshold(*arrays(rows), asked(0.9, 3))


def test_a_few_shown_answers_are_not_believed() -> None:
    rows = [(0.9, True)] * 4 + [(0.5, False)] * 6
    assert tune_threshold(*arrays(rows), asked(0.9, 4)).shown == 4
    with pytest.raises(AbstainError, match="within reach: 0.400 while showing 100%"):
        tune_threshold(*arrays(rows), asked(0.9, 5))


@pytest.mark.parametrize("rows", [[], [(0.5, True)] * 4])
def test_too_few_answers_say_how_many_are_needed(rows: list[tuple[float, bool]]) -> None:
    with pytest.raises(AbstainError, match=f"only {len(rows)} reviewed answers .* threshold.min_shown = 5: bring more"):
        tune_threshold(*arrays(rows), asked(0.5, 5))


def test_where_nothing_is_shown_precision_is_nan_and_the_rest_zero() -> None:
    point = compute_operating_point(np.array([0.2, 0.4]), np.array([1, 0]), 0.5)
    assert math.isnan(point.precision)
    assert (point.coverage, point.recall, point.shown) == (0, 0, 0)


def test_where_nothing_is_right_recall_is_nan() -> None:
    point = compute_operating_point(np.array([0.2, 0.4]), np.array([0, 0]), 0.0)
    assert math.isnan(point.recall)
    assert point.precision == 0


def test_an_answer_at_the_threshold_is_shown() -> None:
    assert compute_operating_point(np.array([0.5, 0.4]), np.array([1, 0]), 0.5).shown == 1


@given(
    st.lists(
        st.tuples(st.integers(0, 10).map(lambda n: n / 10), st.booleans(), st.integers(1, 4)), min_size=1, max_size=20
    ),
    st.sampled_from([0.3, 0.5, 0.8]),
)
def test_a_weight_stands_for_that_many_answers(rows: list[tuple[float, bool, int]], target: float) -> None:
    confidence, right, weight = (np.array(column) for column in zip(*rows, strict=True))
    params = asked(target, 1)
    try:
        whole = tune_threshold(np.repeat(confidence, weight), np.repeat(right, weight).astype(int), params)
    except AbstainError:
        with pytest.raises(AbstainError):
            tune_threshold(confidence, right.astype(int), params, weight.astype(float))
        return
    chosen = tune_threshold(confidence, right.astype(int), params, weight.astype(float))
    assert chosen.threshold == whole.threshold
    assert (chosen.precision, chosen.coverage) == pytest.approx((whole.precision, whole.coverage))
    assert chosen.rows == len(rows)


@given(answers, st.sampled_from([1.0, 0.3, 7.0]))
def test_equal_weights_change_nothing(rows: list[tuple[float, bool]], weight: float) -> None:
    confidence, right = arrays(rows)
    weights = row_weights(np.full(len(rows), 1 / max(weight, 1.0)))
    for threshold in np.unique(confidence):
        assert str(compute_operating_point(confidence, right, threshold, weights)) == str(
            compute_operating_point(confidence, right, threshold)
        )


def test_one_heavy_answer_is_not_believed_like_many() -> None:
    """20 answers are shown, but one stands for almost all of them."""
    confidence, right = np.array([0.9] * 20 + [0.1] * 20), np.array([1] * 20 + [0] * 20)
    params = asked(0.9, 20)
    assert tune_threshold(confidence, right, params).shown == 20
    heavy = np.ones(40)
    heavy[0] = 1000
    with pytest.raises(AbstainError, match=r"only 40 reviewed answers \(effective sample size 1\)"):
        tune_threshold(confidence, right, params, heavy)
