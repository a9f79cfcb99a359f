"""A guarantee that holds is not called violated, whoever looks how often; one that is violated is noticed.

The tables of docs/studies/monitoring.md: `python -m benchmarks.monitoring`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from abstain.monitoring import live_guarantee
from abstain.monitoring.live_guarantee import GuaranteedTarget, ReviewBatch
from benchmarks.monitoring import TARGET, VIOLATED, Reviews

GUARANTEED = GuaranteedTarget("precision", TARGET)
EMPTY = ReviewBatch(np.zeros(0, bool), np.zeros(0), np.zeros(0, int))
INDEPENDENT = Reviews("independent", 8, 1)
UNEVEN = {often: Reviews("the same documents", None, 8, 0.1, often) for often in (4.0, 0.25)}


def batch(correct: list[int], document: list[int] | None = None, weight: list[float] | None = None) -> ReviewBatch:
    rows = len(correct)
    return ReviewBatch(np.array(correct, bool), np.array(weight or [1.0] * rows), np.array(document or range(rows)))


def days(cell: Reviews, precision: float, seed: int = 3) -> list[ReviewBatch]:
    return cell.draw_year(cell.make_population(precision), np.random.default_rng(seed))


def test_a_violated_guarantee_is_noticed_within_350_reviews_in_the_median() -> None:
    assert np.median(INDEPENDENT.count_reviews_until_alarm(VIOLATED, 60)) <= 350


@pytest.mark.heavy
@pytest.mark.parametrize("often", UNEVEN)
def test_recurring_documents_rarely_make_a_guarantee_look_violated(often: float) -> None:
    # At 5 % more than 11 of 100 years would be seen once in 200 such tests; 2 % are expected.
    assert np.isfinite(UNEVEN[often].count_reviews_until_alarm(TARGET, 100)).sum() <= 11


def test_documents_at_large_are_judged_and_not_those_that_happen_to_be_asked_about() -> None:
    # Each day all of a few documents are reviewed, and one of them is often wrong.
    generator = np.random.default_rng(1)
    right = np.array([1.0, 1.0, 1.0, 0.4])
    year = [batch(list(generator.random(4) < right), [0, 1, 2, 3]) for _ in range(300)]
    found = live_guarantee.check_live_guarantee(year, GUARANTEED)
    assert found.e_value > 1e6 and not found.is_violated and found.documents == 4


def test_weights_decide_what_the_precision_is() -> None:
    # Nine of ten reviews are of correct answers, which are reviewed four times as often: in truth 9 of 13.
    year = [batch([1] * 9 + [0], [10 * day + k for k in range(10)], [1.0] * 9 + [4.0]) for day in range(60)]
    even = [replace(one, weight=np.ones(10)) for one in year]
    assert live_guarantee.check_live_guarantee(year, GUARANTEED).estimate == pytest.approx(9 / 13)
    assert (
        live_guarantee.check_live_guarantee(year, GUARANTEED).is_violated
        and not live_guarantee.check_live_guarantee(even, GUARANTEED).is_violated
    )


def test_the_alarm_comes_after_the_batch_that_makes_it_and_stays() -> None:
    worse = days(INDEPENDENT, 0.6)[:30]
    better = [batch([1] * 8, [1000 + 8 * day + k for k in range(8)]) for day in range(200)]
    found = live_guarantee.check_live_guarantee([*worse, *better], GUARANTEED)
    assert found.is_violated and found.violated_batch is not None and found.violated_batch < 30
    assert not live_guarantee.check_live_guarantee(worse[: found.violated_batch], GUARANTEED).is_violated
    assert live_guarantee.check_live_guarantee(worse[: found.violated_batch + 1], GUARANTEED).is_violated
    assert found.e_value < found.max_e_value


def test_an_error_rate_counts_what_was_withheld() -> None:
    half_wrong = [batch([1, 0], [2 * day, 2 * day + 1]) for day in range(100)]
    few, many = ([replace(one, coverage=share) for one in half_wrong] for share in (0.1, 0.5))
    target = GuaranteedTarget("error_rate", 0.1)
    assert (
        not live_guarantee.check_live_guarantee(few, target).is_violated
        and live_guarantee.check_live_guarantee(many, target).is_violated
    )
    assert live_guarantee.check_live_guarantee(few, target).estimate == pytest.approx(0.05)
    assert live_guarantee.check_live_guarantee(many, target).estimate == pytest.approx(0.25)


def test_the_scale_of_weights_does_not_matter() -> None:
    year = days(UNEVEN[4.0], 0.87)[:100]
    scaled = [replace(one, weight=one.weight * 7) for one in year]
    assert live_guarantee.check_live_guarantee(scaled, GUARANTEED).e_value == pytest.approx(
        live_guarantee.check_live_guarantee(year, GUARANTEED).e_value
    )


def test_a_bet_is_made_before_its_batch_comes() -> None:
    heavier = batch([1, 0], [7, 8], [5.0, 5.0])
    scale = live_guarantee.sum_by_group([batch([1, 0]), batch([1, 1]), heavier, heavier], GUARANTEED).scale
    assert scale.tolist() == pytest.approx([1, 1, 1, 1, 1, 1, 14 / 6, 14 / 6])


def test_names_of_documents_do_not_matter() -> None:
    year = days(UNEVEN[4.0], 0.87)[:100]
    named = [replace(one, groups=np.array([f"d{key}" for key in one.groups], object)) for one in year]
    assert live_guarantee.check_live_guarantee(named, GUARANTEED) == live_guarantee.check_live_guarantee(
        year, GUARANTEED
    )


def test_the_confidence_sequence_holds_the_truth_and_narrows() -> None:
    years = [days(Reviews("new documents", 4, 2, 0.1), TARGET, seed) for seed in range(8)]
    found = [live_guarantee.check_live_guarantee(year[:120], GUARANTEED) for year in years]
    assert sum(one.low <= TARGET <= one.high for one in found) >= 7
    late, early = (
        live_guarantee.check_live_guarantee(years[0], GUARANTEED),
        live_guarantee.check_live_guarantee(years[0][:20], GUARANTEED),
    )
    assert late.high - late.low < (early.high - early.low) / 2
    assert early.low < early.estimate < early.high


def test_no_reviews_are_no_evidence() -> None:
    for nothing in ([], [EMPTY], [EMPTY, EMPTY]):
        found = live_guarantee.check_live_guarantee(nothing, GUARANTEED)
        assert (found.e_value, found.is_violated, found.low, found.high, found.reviews) == (1.0, False, 0.0, 1.0, 0)
        assert np.isnan(found.estimate)


def test_days_without_reviews_change_nothing() -> None:
    year = days(INDEPENDENT, 0.8)[:40]
    found = live_guarantee.check_live_guarantee([EMPTY, *year, EMPTY], GUARANTEED)
    assert (
        found.e_value == pytest.approx(live_guarantee.check_live_guarantee(year, GUARANTEED).e_value)
        and found.is_violated
    )


def test_one_document_cannot_violate_a_guarantee() -> None:
    found = live_guarantee.check_live_guarantee([batch([0], [1])] * 50, GUARANTEED)
    assert not found.is_violated and found.documents == 1 and found.estimate == 0


def test_one_document_with_very_many_reviews_costs_no_more_than_its_share() -> None:
    correct = [*[1] * 400, 0, 0]
    found = live_guarantee.check_live_guarantee([batch([1, 1]), batch(correct, [5] * 402)], GUARANTEED)
    assert 0 < found.e_value < 1
