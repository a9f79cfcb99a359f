from dataclasses import replace

import numpy as np
import pytest

from abstain.monitoring import live_guarantee
from abstain.monitoring.expected_precision import check_calibration, estimate_precision
from abstain.monitoring.live_guarantee import GuaranteedTarget, ReviewBatch, check_live_guarantee, sum_by_group
from benchmarks.guarantee import Population
from benchmarks.monitoring import TARGET, VIOLATED, Reviews, measure_calibration_alarms

GUARANTEED = GuaranteedTarget("precision", TARGET)
EMPTY = ReviewBatch(np.zeros(0, bool), np.zeros(0), np.zeros(0, int))
INDEPENDENT = Reviews("independent", 8, 1)
UNEVEN = {often: Reviews("the same documents", None, 8, 0.1, often) for often in (4.0, 0.25)}


def make_batch(correct: list[int], document: list[int] | None = None, weight: list[float] | None = None) -> ReviewBatch:
    rows = len(correct)
    return ReviewBatch(np.array(correct, bool), np.array(weight or [1.0] * rows), np.array(document or range(rows)))


def check(batches: list[ReviewBatch]) -> live_guarantee.LiveGuaranteeResult:
    return check_live_guarantee(batches, GUARANTEED)


def draw_days(cell: Reviews, precision: float, seed: int = 3) -> list[ReviewBatch]:
    return cell.draw_year(cell.make_population(precision), np.random.default_rng(seed))


def test_check_finds_a_violation_within_350_reviews() -> None:
    assert np.median(INDEPENDENT.count_reviews_until_alarm(VIOLATED, 60)) <= 350


@pytest.mark.heavy
@pytest.mark.parametrize("often", UNEVEN)
def test_check_of_recurring_documents_rarely_alarms(often: float) -> None:
    # At 5 % more than 11 of 100 years would be seen once in 200 such tests; 2 % are expected.
    assert np.isfinite(UNEVEN[often].count_reviews_until_alarm(TARGET, 100)).sum() <= 11


def test_check_allows_for_variation_between_documents() -> None:
    # Each day all of a few documents are reviewed, and one of them is often wrong.
    generator = np.random.default_rng(1)
    right = np.array([1.0, 1.0, 1.0, 0.4])
    year = [make_batch(list(generator.random(4) < right), [0, 1, 2, 3]) for _ in range(300)]
    result = check(year)
    assert result.e_value > 1e6 and not result.is_violated and result.documents == 4


def test_check_estimate_is_weighted() -> None:
    # Nine of ten reviews are of correct answers, which are reviewed four times as often: in truth 9 of 13.
    year = [make_batch([1] * 9 + [0], [10 * day + k for k in range(10)], [1.0] * 9 + [4.0]) for day in range(60)]
    even = [replace(batch, weight=np.ones(10)) for batch in year]
    assert check(year).estimate == pytest.approx(9 / 13)
    assert check(year).is_violated and not check(even).is_violated


def test_check_violation_begins_after_its_batch_and_stays() -> None:
    worse = draw_days(INDEPENDENT, 0.6)[:30]
    better = [make_batch([1] * 8, [1000 + 8 * day + k for k in range(8)]) for day in range(200)]
    result = check([*worse, *better])
    assert result.is_violated and result.violated_batch is not None and result.violated_batch < 30
    assert not check(worse[: result.violated_batch]).is_violated
    assert check(worse[: result.violated_batch + 1]).is_violated
    assert result.e_value < result.max_e_value


def test_check_error_rate_includes_withheld_answers() -> None:
    half_wrong = [make_batch([1, 0], [2 * day, 2 * day + 1]) for day in range(100)]
    few, many = ([replace(batch, coverage=share) for batch in half_wrong] for share in (0.1, 0.5))
    target = GuaranteedTarget("error_rate", 0.1)
    results = [check_live_guarantee(batches, target) for batches in (few, many)]
    assert [result.is_violated for result in results] == [False, True]
    assert [result.estimate for result in results] == pytest.approx([0.05, 0.25])


def test_sum_by_group_scale_is_that_of_earlier_batches() -> None:
    heavier = make_batch([1, 0], [7, 8], [5.0, 5.0])
    scale = sum_by_group([make_batch([1, 0]), make_batch([1, 1]), heavier, heavier], GUARANTEED).scale
    assert scale.tolist() == pytest.approx([1, 1, 1, 1, 1, 1, 14 / 6, 14 / 6])


def test_check_ignores_names_scale_and_days_without_reviews() -> None:
    year = draw_days(UNEVEN[4.0], 0.87)[:100]
    named = [replace(batch, groups=np.array([f"d{key}" for key in batch.groups], object)) for batch in year]
    assert check(named) == check(year)
    scaled = [replace(batch, weight=batch.weight * 7) for batch in year]
    assert check([EMPTY, *scaled, EMPTY]).e_value == pytest.approx(check(year).e_value)


@pytest.mark.heavy
def test_check_interval_covers_the_truth_and_narrows() -> None:
    years = [draw_days(Reviews("new documents", 4, 2, 0.1), TARGET, seed) for seed in range(8)]
    results = [check(year[:120]) for year in years]
    assert sum(result.low <= TARGET <= result.high for result in results) >= 7
    late, early = check(years[0]), check(years[0][:20])
    assert late.high - late.low < (early.high - early.low) / 2
    assert early.low < early.estimate < early.high


def test_check_without_reviews_or_of_one_document_proves_nothing() -> None:
    for nothing in ([], [EMPTY], [EMPTY, EMPTY]):
        result = check(nothing)
        assert not result.is_violated and (result.e_value, result.reviews) == (1.0, 0)
        assert (result.low, result.high) == (0.0, 1.0)
        assert np.isnan(result.estimate)
    result = check([make_batch([0], [1])] * 50)
    assert not result.is_violated and result.documents == 1 and result.estimate == 0


def test_check_limits_the_bet_on_a_heavy_document() -> None:
    correct = [*[1] * 400, 0, 0]
    result = check([make_batch([1, 1]), make_batch(correct, [5] * 402)])
    assert 0 < result.e_value < 1


def test_estimate_precision_interval_is_over_documents() -> None:
    probability = np.repeat([0.9, 0.8, 0.7, 0.95], 50)
    alone = estimate_precision(probability, np.arange(200))
    together = estimate_precision(probability, np.repeat(["a", "b", "c", "d"], 50))
    assert together.high - together.low > 5 * (alone.high - alone.low)
    assert together.low < together.value == pytest.approx(0.8375) and together.value < together.high


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
