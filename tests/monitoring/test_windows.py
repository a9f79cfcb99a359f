from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pandas as pd

from abstain.monitoring.feed import FACTOR, measure_silence
from abstain.monitoring.windows import DayRange, make_day_ranges
from tests.monitoring.builders import PARAMS

START = datetime(2026, 11, 2, tzinfo=UTC)


def days(counts: dict[int, int]) -> pd.Series:
    """So many rows on each day, by its number."""
    moments = [START + timedelta(days=day) for day, count in counts.items() for _ in range(count)]
    return pd.Series(pd.to_datetime(moments, utc=True))


def windows(decided: dict[int, int], arrived: dict[int, int], until: int = 100) -> list[tuple[int, int]]:
    params = PARAMS.model_copy(update={"min_reviews": 50})
    found = make_day_ranges("v1.0.0", days(decided), days(arrived), params, START + timedelta(days=until, hours=3))
    return [((one.start - START).days, (one.end - START).days) for one in found]


def test_days_are_joined_until_they_hold_enough_and_the_rest_waits() -> None:
    assert windows({0: 299, 1: 1, 2: 300, 3: 10, 9: 289}, {}) == [(0, 2), (2, 3)]
    assert windows({0: 299, 1: 1, 2: 300, 3: 10, 9: 290}, {}) == [(0, 2), (2, 3), (3, 10)]


def test_a_window_begins_where_the_one_before_it_ended_whatever_came_then() -> None:
    assert windows({0: 300, 3: 300}, {}) == [(0, 1), (1, 4)]


def test_reviews_alone_make_a_window_too_even_of_no_decision() -> None:
    assert windows({0: 300}, {1: 49, 4: 1}) == [(0, 1), (1, 5)]


def test_a_day_that_is_not_over_is_in_no_window() -> None:
    assert windows({0: 300, 1: 300}, {}, until=1) == [(0, 1)]
    assert windows({0: 300, 1: 300}, {}, until=2) == [(0, 1), (1, 2)]


def test_reviews_that_arrive_later_move_no_window_that_was_there() -> None:
    before = windows({0: 150, 1: 150, 2: 300}, {2: 10})
    assert windows({0: 150, 1: 150, 2: 300, 3: 5}, {2: 10, 3: 45})[: len(before)] == before


def test_nothing_is_cut_of_nothing() -> None:
    assert windows({}, {}) == []


def test_a_range_of_days_ends_before_its_last_midnight() -> None:
    one = DayRange("v1.0.0", START, START + timedelta(days=1))
    assert one.contains(days({-1: 1, 0: 1, 1: 1})).tolist() == [False, True, False]


def moments(count: int, hours: float) -> pd.Series:
    return pd.Series(pd.to_datetime([START + timedelta(hours=hours * at) for at in range(count)], utc=True))


def test_a_feed_is_alarming_when_it_is_silent_for_longer_than_its_rhythm_allows() -> None:
    weekly = moments(40, 12)
    last = weekly.iloc[-1].to_pydatetime()
    for hours, dead in ((12 * FACTOR - 0.1, False), (12 * FACTOR + 0.1, True)):
        found = measure_silence(weekly.sample(frac=1, random_state=1), last + timedelta(hours=hours))
        assert found and found.is_alarming == dead and found.longest_before == 12
    with_weekend = weekly.drop(index=range(20, 26))  # three days without a row
    found = measure_silence(with_weekend, last + timedelta(hours=100))
    assert found and not found.is_alarming


def test_of_a_feed_without_a_rhythm_nothing_is_said() -> None:
    assert measure_silence(moments(29, 24), START + timedelta(days=300)) is None
    assert measure_silence(moments(300, 0.1), START + timedelta(days=300)) is None
