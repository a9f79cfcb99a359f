import numpy as np
import pytest

from abstain.monitoring.expected_precision import check_calibration, estimate_precision
from benchmarks.guarantee import Population
from benchmarks.monitoring import measure_calibration_alarms


def test_estimate_precision_is_the_mean_probability() -> None:
    probability = np.array([0.9, 0.8, 1.0, 0.7])
    assert estimate_precision(probability, np.array(["a", "a", "b", "c"])).value == pytest.approx(0.85)


def test_estimate_precision_interval_is_over_documents() -> None:
    probability = np.repeat([0.9, 0.8, 0.7, 0.95], 50)
    alone = estimate_precision(probability, np.arange(200))
    together = estimate_precision(probability, np.repeat(np.arange(4), 50))
    assert together.high - together.low > 5 * (alone.high - alone.low)
    assert together.low < together.value < together.high


def test_estimates_with_one_document_have_no_interval() -> None:
    assert np.isnan(estimate_precision(np.zeros(0), np.zeros(0)).value)
    one = estimate_precision(np.array([0.9, 0.8]), np.zeros(2))
    assert one.value == pytest.approx(0.85) and np.isnan(one.low) and np.isnan(one.high)
    check = check_calibration(np.array([0.9, 0.8]), np.ones(2), np.ones(2), np.zeros(2))
    assert check.difference == pytest.approx(0.15) and np.isnan(check.p_value)


@pytest.mark.heavy
@pytest.mark.parametrize("often", [1.0, 4.0, 0.25])
def test_check_calibration_of_calibrated_rarely_alarms(often: float) -> None:
    # 5 % are at most 42 of 600 in 99 of 100 such tests.
    assert measure_calibration_alarms(Population(0.75, 0.1, often, base_rate=0.85), 40, 5, 0.0, 600) <= 42 / 600


def test_check_calibration_finds_too_high_probabilities() -> None:
    assert measure_calibration_alarms(Population(0.75, 0.1, base_rate=0.7), 40, 5, 0.15, 50) > 0.8


def test_check_calibration_weighs_the_difference() -> None:
    probability, correct, weight = np.full(10, 0.5), np.array([1] * 8 + [0] * 2), np.array([1.0] * 8 + [4.0] * 2)
    check = check_calibration(probability, correct, weight, np.arange(10))
    assert check.difference == pytest.approx(0.0) and check.p_value == pytest.approx(1.0)
    assert check_calibration(probability, correct, np.ones(10), np.arange(10)).difference == pytest.approx(0.3)


def test_check_calibration_few_correct_answers_are_no_proof() -> None:
    # Their own spread is 0; that of answers that are correct with this probability is not.
    check = check_calibration(np.full(10, 0.9), np.ones(10), np.ones(10), np.arange(10))
    assert check.p_value > 0.05 and check.low < 0 < check.high
