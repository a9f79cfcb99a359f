from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pytest

from abstain.core.contracts import Thumb
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.decisions import LoggedDecision
from abstain.data.store.dataset import DataStore
from abstain.monitoring.feed import FACTOR, measure_silence
from abstain.monitoring.reviewed_decisions import batch_reviews_by_day, join_reviews, select_countable_shown
from abstain.monitoring.traffic import NO_VERSION, Traffic, read_traffic
from abstain.monitoring.windows import DayRange, make_day_ranges
from tests.checkout import shipped_params
from tests.data.decision_log.builders import decision, open_log, record, url_of
from tests.factories import cited, interaction, review
from tests.monitoring.builders import PARAMS, GateAnswer, write_data

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
START = datetime(2026, 11, 2, tzinfo=UTC)


def read(
    folder: Path, decisions: Sequence[LoggedDecision], feedback: Sequence[Thumb] = (), shown_sampling_rate: float = 1.0
) -> Traffic:
    log = open_log(url_of(folder), withheld_sampling_rate=1.0, shown_sampling_rate=shown_sampling_rate)
    record(log, *decisions)
    for number, row in enumerate(feedback):
        log.record_feedback(f"f-{number}", row).result()
    log.close()
    with closing(LogDatabase.open(url_of(folder))) as database:
        return read_traffic(database, NOW)


def decide(hours: float, key: str, **changes: object) -> LoggedDecision:
    return decision(key, decided_at=NOW + timedelta(hours=hours), **changes)


def test_read_traffic_sorts_by_time_not_later_than_now(tmp_path: Path) -> None:
    hours = {"a": -3, "b": 48, "c": -2, "d": -1.999, "e": -2}
    traffic = read(tmp_path, [decide(hour, key) for key, hour in hours.items()])
    assert traffic.decisions.index.tolist() == ["a", "c", "e", "d", "b"]
    assert traffic.decisions.loc["b", "decided_at"] == NOW


def test_read_traffic_without_a_version_takes_the_one_before(tmp_path: Path) -> None:
    assert read(tmp_path, []).decisions.empty
    none = {"version": None, "decision": "unavailable", "shown": False}
    assert read(tmp_path, [decide(-2, "c", **none)]).decisions["version"].tolist() == [NO_VERSION]
    decisions = [decide(-4, "a", **none), decide(-3, "b"), decide(-1, "d", version="v2.0.0")]
    assert read(tmp_path, decisions).decisions["version"].tolist() == ["v1.0.0", "v1.0.0", "v1.0.0", "v2.0.0"]


@pytest.mark.parametrize(
    ("probability", "rated", "weight"), [(0.5, False, 1 / (0.25 * 0.5)), (0.5, True, 1 / 0.5), (None, False, 1)]
)
def test_join_reviews_weighs_by_both_sampling_rates(
    tmp_path: Path, probability: float | None, rated: bool, weight: float
) -> None:
    """The log samples the answer at a rate of 0.25, but with certainty once there is a thumb."""
    answer = decide(-30, "a", interaction=interaction("a", contexts=cited("fees#1")))
    verdict = review("a", right=False, inclusion_probability=probability)
    write_data(tmp_path / "data", [GateAnswer(answer, verdict)])
    thumbs = [Thumb(interaction_id="a", given_at=NOW, thumb="up")] if rated else []
    traffic = read(tmp_path, [answer], thumbs, shown_sampling_rate=0.25)
    row = join_reviews(DataStore(tmp_path / "data"), traffic, shipped_params().labels).loc["a"]
    assert row["weight"] == pytest.approx(weight) and row["sampled"] == (probability is not None)
    assert row["document"] == "fees" and not row["correct"] and row["version"] == "v1.0.0"
    assert row["arrived"] == pd.Timestamp(NOW).floor("D") - timedelta(days=1)


def test_select_countable_shown_omits_late_self_selected() -> None:
    day = pd.Timestamp(NOW).floor("D")
    rows = pd.DataFrame(
        {
            "decision": ["show"] * 125 + ["abstain"] * 5,
            "sampled": [False] * 5 + [True] * 100 + [False] * 20 + [True] * 5,
            "arrived": [day] * 105 + [day + timedelta(days=1)] * 25,
        }
    )
    counted, n_excluded = select_countable_shown(rows)
    assert (len(counted), n_excluded) == (105, 20), "the five that had counted before stay"
    counted, n_excluded = select_countable_shown(rows.drop(index=5))
    assert (len(counted), n_excluded) == (124, 0)


def test_batch_reviews_by_day_has_coverage_since_the_last_batch() -> None:
    days = [pd.Timestamp(NOW).floor("D") + timedelta(days=day) for day in range(4)]
    decisions = ["show", "show", "show", "abstain", "show", "show"]
    decided = pd.DataFrame({"day": [days[0]] * 4 + [days[1]] * 2, "decision": decisions})
    rows = pd.DataFrame({"arrived": [*days[:2], days[3]], "correct": True, "weight": 1.0, "document": ["a", "b", "a"]})
    batches = batch_reviews_by_day(rows, decided)
    assert [(day, batch.coverage) for day, batch in batches] == [(days[0], 0.75), (days[1], 1.0), (days[3], 5 / 6)]


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
    [(12 * FACTOR - 0.1, range(0), False), (12 * FACTOR + 0.1, range(0), True), (100, range(20, 26), False)],
)
def test_measure_silence_alarms_beyond_the_longest_before(hours: float, missing: range, is_alarming: bool) -> None:
    times = make_regular_times(40, 12)
    rows = times.drop(index=missing).sample(frac=1, random_state=1)
    silence = measure_silence(rows, times.iloc[-1].to_pydatetime() + timedelta(hours=hours))
    assert silence.is_alarming is is_alarming and silence.longest_before == 12 * (len(missing) + 1)


@pytest.mark.parametrize(("count", "hours"), [(29, 24), (300, 0.1)])
def test_measure_silence_without_a_rhythm_is_none(count: int, hours: float) -> None:
    assert measure_silence(make_regular_times(count, hours), START + timedelta(days=300)) is None
