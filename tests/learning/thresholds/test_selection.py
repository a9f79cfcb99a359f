import math
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.config.params import ThresholdParams
from abstain.core.errors import AbstainError
from abstain.learning.thresholds.selection import compute_operating_point, tune_threshold
from benchmarks.guarantee import make_threshold_params

# Steps of a tenth: ties are common. Every answer with the same confidence is shown or masked together.
answers = st.lists(st.tuples(st.integers(0, 10).map(lambda n: n / 10), st.booleans()), min_size=1, max_size=40)


def make_params(target: float, min_shown: int, metric: str = "precision") -> ThresholdParams:
    return make_threshold_params(target, metric).model_copy(update={"min_shown": min_shown})


def make_arrays(rows: list[tuple[float, bool]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([c for c, _ in rows]), np.array([right for _, right in rows], int)


@given(answers, st.sampled_from([0.3, 0.5, 0.8, 0.95]), st.integers(1, 12))
def test_tune_threshold_maximizes_coverage_at_target(
    rows: list[tuple[float, bool]], target: float, min_shown: int
) -> None:
    feasible = {
        threshold: len(shown)
        for threshold in {confidence for confidence, _ in rows}
        if len(shown := [right for confidence, right in rows if confidence >= threshold]) >= min_shown
        and sum(shown) / len(shown) >= target
    }
    params = make_params(target, min_shown)
    if not feasible:
        with pytest.raises(AbstainError):
            tune_threshold(*make_arrays(rows), params)
        return
    chosen = tune_threshold(*make_arrays(rows), params)
    shown = [right for confidence, right in rows if confidence >= chosen.threshold]
    assert sum(shown) / len(shown) == pytest.approx(chosen.precision)
    assert chosen.precision >= target
    assert len(shown) == chosen.shown == max(feasible.values()) >= min_shown
    assert chosen.coverage == pytest.approx(len(shown) / len(rows))
    assert chosen.rows == len(rows)
    assert chosen.recall == pytest.approx(sum(shown) / sum(right for _, right in rows))
    assert chosen.to_record().to_dict() == asdict(chosen)


def test_tune_threshold_error_rate_counts_all_answers() -> None:
    rows = [(0.9, True), (0.8, False), (0.7, True), (0.6, False), (0.5, True), (0.2, False), (0.1, False)]
    rows += [(0.0, False)] * 3
    chosen = tune_threshold(*make_arrays(rows), make_params(0.2, 1, "error_rate"))
    assert (chosen.threshold, chosen.shown, chosen.error_rate) == (0.5, 5, pytest.approx(0.2))
    with pytest.raises(AbstainError, match=r"0\.100 while showing 30% \(threshold 0\.700\): raise threshold\.target"):
        tune_threshold(*make_arrays(rows), make_params(0.05, 2, "error_rate"))
    assert compute_operating_point(*make_arrays(rows), 0.95).error_rate == 0


def test_tune_threshold_too_few_answers_raises() -> None:
    rows = [(0.9, True)] * 4 + [(0.5, False)] * 6
    assert tune_threshold(*make_arrays(rows), make_params(0.9, 4)).shown == 4
    with pytest.raises(AbstainError, match=r"0\.400 while showing 100% \(threshold 0\.500\): lower threshold\.target"):
        tune_threshold(*make_arrays(rows), make_params(0.9, 5))
    for few in (0, 4):
        with pytest.raises(AbstainError, match=rf"only {few} .* threshold\.min_shown = 5"):
            tune_threshold(*make_arrays(rows[:few]), make_params(0.5, 5))


def test_operating_point_undefined_rates_are_nan() -> None:
    nothing_shown = compute_operating_point(np.array([0.2, 0.4]), np.array([1, 0]), 0.5)
    assert math.isnan(nothing_shown.precision)
    assert (nothing_shown.coverage, nothing_shown.recall, nothing_shown.shown) == (0, 0, 0)
    nothing_correct = compute_operating_point(np.array([0.2, 0.4]), np.array([0, 0]), 0.2)
    assert math.isnan(nothing_correct.recall) and nothing_correct.precision == 0
    assert nothing_correct.shown == 2, "an answer at the threshold is shown"


def test_tune_threshold_float32_row_stays_shown() -> None:
    confidence = np.array([0.1, 0.3, 0.7], np.float32)
    chosen = tune_threshold(confidence, np.array([0, 1, 1]), make_params(0.9, 1))
    assert chosen.shown == 2 and (confidence >= chosen.threshold).tolist() == [False, True, True]


@given(
    st.lists(
        st.tuples(st.integers(0, 10).map(lambda n: n / 10), st.booleans(), st.integers(1, 4)), min_size=1, max_size=20
    ),
    st.sampled_from([0.3, 0.5, 0.8]),
)
def test_tune_threshold_weight_equals_repeated_rows(rows: list[tuple[float, bool, int]], target: float) -> None:
    confidence, right, weight = (np.array(column) for column in zip(*rows, strict=True))
    params, correct = make_params(target, 1), right.astype(int)
    try:
        whole = tune_threshold(np.repeat(confidence, weight), np.repeat(correct, weight), params)
    except AbstainError:
        with pytest.raises(AbstainError):
            tune_threshold(confidence, correct, params, weight.astype(float))
        return
    chosen = tune_threshold(confidence, correct, params, weight.astype(float))
    assert chosen.threshold == whole.threshold
    assert (chosen.precision, chosen.coverage) == pytest.approx((whole.precision, whole.coverage))
    assert chosen.rows == len(rows)


def test_tune_threshold_counts_effective_answers() -> None:
    """20 answers are shown, but one stands for almost all of them."""
    confidence, right = np.array([0.9] * 20 + [0.1] * 20), np.array([1] * 20 + [0] * 20)
    params = make_params(0.9, 20)
    assert tune_threshold(confidence, right, params).shown == 20
    heavy = np.ones(40)
    heavy[0] = 1000
    with pytest.raises(AbstainError, match=r"only 40 reviewed answers \(effective sample size 1\)"):
        tune_threshold(confidence, right, params, heavy)
