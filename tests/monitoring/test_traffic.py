"""What is read of a log, and of reviews in data/: clocks that are wrong, versions that are missing, weights."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pytest

from abstain.core.contracts import Review, Thumb
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.decisions import LoggedDecision
from abstain.data.store.dataset import DataStore
from abstain.monitoring.reviewed_decisions import batch_reviews_by_day, join_reviews, select_countable_shown
from abstain.monitoring.traffic import NO_VERSION, Traffic, read_traffic
from tests.checkout import shipped_params
from tests.data.builders import cited, interaction
from tests.data.decision_log.builders import decision, open_log, url_of
from tests.monitoring.builders import GateAnswer, write_data

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def logged(
    folder: Path,
    decisions: Sequence[LoggedDecision],
    feedback: Sequence[Thumb | Review] = (),
    shares: tuple[float, float] = (1.0, 1.0),
) -> Traffic:
    log = open_log(url_of(folder), withheld_sampling_rate=shares[0], shown_sampling_rate=shares[1])
    for one in decisions:
        log.record_decision(one).result()
    for number, row in enumerate(feedback):
        log.record_feedback(f"f-{number}", row).result()
    log.close()
    with closing(LogDatabase.open(url_of(folder))) as database:
        return read_traffic(database, NOW)


def at(hours: float, key: str, **changes: object) -> LoggedDecision:
    return decision(key, decided_at=NOW + timedelta(hours=hours), **changes)


def test_decisions_are_in_the_order_of_time_though_the_clock_went_back(tmp_path: Path) -> None:
    traffic = logged(tmp_path, [at(-3, "a"), at(-1, "b"), at(-2, "c"), at(-1.999, "d"), at(-2, "e")])
    assert traffic.decisions.index.tolist() == ["a", "c", "e", "d", "b"]


def test_a_decision_of_the_future_is_of_now(tmp_path: Path) -> None:
    traffic = logged(tmp_path, [at(48, "a"), at(-1, "b")])
    assert traffic.decisions["decided_at"].tolist() == [NOW - timedelta(hours=1), NOW]


def test_a_decision_that_was_taken_while_nothing_was_live_is_of_the_version_before(tmp_path: Path) -> None:
    none = {"version": None, "decision": "unavailable", "shown": False}
    traffic = logged(tmp_path, [at(-4, "a", **none), at(-3, "b"), at(-2, "c", **none), at(-1, "d", version="v2.0.0")])
    assert traffic.decisions["version"].tolist() == ["v1.0.0", "v1.0.0", "v1.0.0", "v2.0.0"]


def test_a_log_of_nothing_and_one_without_any_version_are_read(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert logged(tmp_path / "empty", []).decisions.empty
    traffic = logged(tmp_path, [at(-1, "a", version=None)])
    assert traffic.decisions["version"].tolist() == [NO_VERSION]


def reviewed(
    folder: Path,
    feedback: Sequence[Thumb | Review] = (),
    probability: float | None = 0.5,
    shares: tuple[float, float] = (1.0, 0.25),
) -> pd.DataFrame:
    """One shown answer with a review, as `join_reviews` has it."""
    one = at(-30, "a", interaction=interaction("a", contexts=cited("fees#1")))
    review = Review(
        interaction_id="a",
        reviewed_at=NOW,
        reviewer="sme-1",
        complete=True,
        correct=False,
        truthful=True,
        inclusion_probability=probability,
    )
    write_data(folder / "data", [GateAnswer(one, review), GateAnswer(at(-30, "unknown-to-the-log"), review)][:1])
    traffic = logged(folder, [one], feedback, shares)
    return join_reviews(DataStore(folder / "data"), traffic, shipped_params().labels)


def test_a_review_stands_for_those_that_were_not_drawn_into_data_or_for_review(tmp_path: Path) -> None:
    row = reviewed(tmp_path).loc["a"]
    assert row["weight"] == pytest.approx(1 / (0.25 * 0.5)) and row["sampled"]
    assert row["document"] == "fees" and not row["correct"] and row["version"] == "v1.0.0"
    assert row["arrived"] == pd.Timestamp(NOW).floor("D") - timedelta(days=1)


def test_an_answer_with_a_thumb_is_in_data_with_certainty(tmp_path: Path) -> None:
    thumb = Thumb(interaction_id="a", given_at=NOW, thumb="up")
    assert reviewed(tmp_path, [thumb]).loc["a", "weight"] == pytest.approx(2)


def test_a_review_that_chose_its_answer_stands_for_itself(tmp_path: Path) -> None:
    row = reviewed(tmp_path, probability=None).loc["a"]
    assert row["weight"] == 1 and not row["sampled"]


def test_withheld_and_late_self_selected_reviews_do_not_count() -> None:
    day = pd.Timestamp(NOW).floor("D")
    rows = pd.DataFrame(
        {
            "decision": ["show"] * 125 + ["abstain"] * 5,
            "sampled": [False] * 5 + [True] * 100 + [False] * 20 + [True] * 5,
            "arrived": [day] * 105 + [day + timedelta(days=1)] * 25,
        }
    )
    counted, apart = select_countable_shown(rows)
    assert (len(counted), apart) == (105, 20), "the five that had counted before stay"
    counted, apart = select_countable_shown(rows.drop(index=5))
    assert (len(counted), apart) == (124, 0)


def test_a_batch_has_the_coverage_of_the_decisions_since_the_batch_before(tmp_path: Path) -> None:
    days = [pd.Timestamp(NOW).floor("D") + timedelta(days=day) for day in range(4)]
    decisions = pd.DataFrame(
        {"day": [days[0]] * 4 + [days[1]] * 2, "decision": ["show"] * 3 + ["abstain"] + ["show"] * 2}
    )
    rows = pd.DataFrame(
        {"arrived": [days[0], days[1], days[3]], "correct": True, "weight": 1.0, "document": ["a", "b", "a"]}
    )
    found = batch_reviews_by_day(rows, decisions)
    assert [(day, batch.coverage) for day, batch in found] == [(days[0], 0.75), (days[1], 1.0), (days[3], 5 / 6)]
