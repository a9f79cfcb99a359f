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
from abstain.monitoring.reviewed_decisions import batch_reviews_by_day, join_reviews, select_countable_shown
from abstain.monitoring.traffic import NO_VERSION, Traffic, read_traffic
from tests.checkout import shipped_params
from tests.data.decision_log.builders import decision, open_log, record, url_of
from tests.factories import cited, interaction, review
from tests.monitoring.builders import GateAnswer, write_data

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def read(
    folder: Path,
    decisions: Sequence[LoggedDecision],
    feedback: Sequence[Thumb] = (),
    shown_sampling_rate: float = 1.0,
) -> Traffic:
    """Log decisions and feedback, and read the traffic until `NOW`."""
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
    none = {"version": None, "decision": "unavailable", "shown": False}
    decisions = [decide(-4, "a", **none), decide(-3, "b"), decide(-2, "c", **none), decide(-1, "d", version="v2.0.0")]
    versions = read(tmp_path, decisions).decisions["version"].tolist()
    assert versions == ["v1.0.0", "v1.0.0", "v1.0.0", "v2.0.0"]


def test_read_traffic_of_an_empty_log_or_no_version(tmp_path: Path) -> None:
    assert read(tmp_path, []).decisions.empty
    assert read(tmp_path, [decide(-1, "a", version=None)]).decisions["version"].tolist() == [NO_VERSION]


def join(folder: Path, feedback: Sequence[Thumb] = (), probability: float | None = 0.5) -> pd.Series:
    """Join a shown answer, which the log samples at a rate of 0.25, with a review of that probability."""
    answer = decide(-30, "a", interaction=interaction("a", contexts=cited("fees#1")))
    row = review("a", right=False, inclusion_probability=probability)
    write_data(folder / "data", [GateAnswer(answer, row)])
    traffic = read(folder, [answer], feedback, shown_sampling_rate=0.25)
    return join_reviews(DataStore(folder / "data"), traffic, shipped_params().labels).loc["a"]


def test_join_reviews_weighs_by_both_sampling_rates(tmp_path: Path) -> None:
    row = join(tmp_path)
    assert row["weight"] == pytest.approx(1 / (0.25 * 0.5)) and row["sampled"]
    assert row["document"] == "fees" and not row["correct"] and row["version"] == "v1.0.0"
    assert row["arrived"] == pd.Timestamp(NOW).floor("D") - timedelta(days=1)


def test_join_reviews_with_a_thumb_is_sampled_with_certainty(tmp_path: Path) -> None:
    assert join(tmp_path, [Thumb(interaction_id="a", given_at=NOW, thumb="up")])["weight"] == pytest.approx(2)


def test_join_reviews_self_selected_weighs_1(tmp_path: Path) -> None:
    row = join(tmp_path, probability=None)
    assert row["weight"] == 1 and not row["sampled"]


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
    decisions = pd.DataFrame(
        {"day": [days[0]] * 4 + [days[1]] * 2, "decision": ["show"] * 3 + ["abstain"] + ["show"] * 2}
    )
    rows = pd.DataFrame(
        {"arrived": [days[0], days[1], days[3]], "correct": True, "weight": 1.0, "document": ["a", "b", "a"]}
    )
    batches = batch_reviews_by_day(rows, decisions)
    assert [(day, batch.coverage) for day, batch in batches] == [(days[0], 0.75), (days[1], 1.0), (days[3], 5 / 6)]
