from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest

from abstain.monitoring.feed import FACTOR, measure_silence
from abstain.monitoring.windows import DayRange, make_day_ranges
from tests.monitoring.builders import PARAMS

START = datetime(2026, 11, 2, tzinfo=UTC)


def make_times(count_by_day: dict[int, int]) -> pd.Series:
    times = [START + timedelta(days=day) for day, count in count_by_day.items() for _ in range(count)]
    return pd.Series(pd.to_datetime(times, utc=True))


def list_ranges(decided: dict[int, int], arrived: dict[int, int], until: int = 100) -> list[tuple[int, int]]:
    params, now = PARAMS.model_copy(update={"min_reviews": 50}), START + timedelta(days=until, hours=3)
    ranges = make_day_ranges("v1.0.0", make_times(decided), make_times(arrived), params, now)
    return [((days.start - START).days, (days.end - START).days) for days in ranges]


@pytest.mark.parametrize(
    ("decided", "arrived", "until", "ranges"),
    [
        pytest.param({}, {}, 100, [], id="nothing"),
        pytest.param({0: 299, 1: 1, 2: 300, 3: 10, 9: 289}, {}, 100, [(0, 2), (2, 3)], id="the rest waits"),
        pytest.param({0: 299, 1: 1, 2: 300, 3: 10, 9: 290}, {}, 100, [(0, 2), (2, 3), (3, 10)], id="enough"),
        pytest.param({0: 300, 3: 300}, {}, 100, [(0, 1), (1, 4)], id="days without rows"),
        pytest.param({0: 300}, {1: 49, 4: 1}, 100, [(0, 1), (1, 5)], id="reviews alone"),
        pytest.param({0: 300, 1: 300}, {}, 1, [(0, 1)], id="a day that is not over"),
        pytest.param({0: 300, 1: 300}, {}, 2, [(0, 1), (1, 2)], id="a day that is over"),
        pytest.param({0: 150, 1: 150, 2: 300}, {2: 10}, 100, [(0, 2), (2, 3)], id="some reviews"),
        pytest.param({0: 150, 1: 150, 2: 300, 3: 5}, {2: 10, 3: 45}, 100, [(0, 2), (2, 3)], id="later reviews"),
    ],
)
def test_make_day_ranges_joins_days_until_enough_rows(
    decided: dict[int, int], arrived: dict[int, int], until: int, ranges: list[tuple[int, int]]
) -> None:
    assert list_ranges(decided, arrived, until) == ranges


def test_day_range_contains_its_start_only() -> None:
    days = DayRange("v1.0.0", START, START + timedelta(days=1))
    assert days.contains(make_times({-1: 1, 0: 1, 1: 1})).tolist() == [False, True, False]


def make_regular_times(count: int, hours: float) -> pd.Series:
    return pd.Series(pd.to_datetime([START + timedelta(hours=hours * number) for number in range(count)], utc=True))


@pytest.mark.parametrize(
    ("hours", "missing", "is_alarming"),
    [
        (12 * FACTOR - 0.1, range(0), False),
        (12 * FACTOR + 0.1, range(0), True),
        (100, range(20, 26), False),
    ],
)
def test_measure_silence_alarms_beyond_the_longest_before(hours: float, missing: range, is_alarming: bool) -> None:
    times = make_regular_times(40, 12)
    rows = times.drop(index=missing).sample(frac=1, random_state=1)
    silence = measure_silence(rows, times.iloc[-1].to_pydatetime() + timedelta(hours=hours))
    assert silence.is_alarming is is_alarming and silence.longest_before == 12 * (len(missing) + 1)


@pytest.mark.parametrize(("count", "hours"), [(29, 24), (300, 0.1)])
def test_measure_silence_without_a_rhythm_is_none(count: int, hours: float) -> None:
    assert measure_silence(make_regular_times(count, hours), START + timedelta(days=300)) is None
