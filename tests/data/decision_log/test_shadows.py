from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from abstain.core.codes import Code
from abstain.data.decision_log.decisions import ShadowDecision
from abstain.data.decision_log.erasure import purge_expired_texts
from abstain.data.decision_log.log import DecisionLog
from abstain.data.decision_log.monitoring_windows import Alarm, MonitoringWindow, read_windows, write_windows
from abstain.data.decision_log.queries import PairedDecision, list_paired_decisions
from tests.data.decision_log.builders import decision, make_guarantee, make_window_statistics, record

NOW = datetime.now(UTC)
SHADOW = ShadowDecision("a", "shadow-1", NOW, False, 0.25, 0.2, 0.5)
DAY = timedelta(days=1)
START = datetime(2026, 11, 2, tzinfo=UTC)
ALARMS = Alarm(Code.INPUT_DRIFT, "contexts differ", ("a", "b")), Alarm(Code.FEED_SILENT, "silence", (), "ring them up")


@pytest.fixture
def log(log: DecisionLog) -> DecisionLog:
    """Ann asked a and Bob b; both versions decided about them."""
    for key, user in (("a", "ann"), ("b", "bob")):
        record(log, decision(key, user=user, decided_at=NOW))
        log.record_shadow_decision(replace(SHADOW, interaction_id=key)).result()
    return log


def list_pairs(log: DecisionLog, candidate: str = "shadow-1") -> list[tuple[str, float]]:
    pairs = list_paired_decisions(log.database, candidate, "v1.0.0")
    return [(pair.interaction_id, pair.shadow_confidence) for pair in pairs]


def test_list_paired_decisions_has_both_decisions(log: DecisionLog) -> None:
    first, second = list_paired_decisions(log.database, "shadow-1", "v1.0.0")
    assert first == PairedDecision("a", True, 0.75, 0.5, 0.5, False, 0.25, 0.2, 0.5) and second.interaction_id == "b"
    assert list_pairs(log, "shadow-2") == list_paired_decisions(log.database, "shadow-1", "v1.1.0") == []


def test_record_shadow_decision_keeps_the_first(log: DecisionLog) -> None:
    log.record_shadow_decision(replace(SHADOW, confidence=0.9))
    log.record_shadow_decision(replace(SHADOW, candidate="shadow-2", confidence=0.6))
    log.record_shadow_decision(replace(SHADOW, candidate="shadow-2", confidence=0.7)).result()
    assert list_pairs(log) == [("a", 0.25), ("b", 0.25)] and list_pairs(log, "shadow-2") == [("a", 0.6)]


def test_list_paired_decisions_omits_undecided_answers(log: DecisionLog) -> None:
    record(log, decision("c", shown=False, decision="unavailable"), decision("d"))
    for key, confidence in (("unknown", 0.25), ("c", 0.25), ("d", None)):
        log.record_shadow_decision(replace(SHADOW, interaction_id=key, confidence=confidence)).result()
    assert [key for key, _ in list_pairs(log)] == ["a", "b"]


def test_erasure_and_purge_remove_shadow_decisions_for_good(log: DecisionLog) -> None:
    assert log.erase_user(["ann"], with_interactions=True) == 2
    for _ in range(2):
        assert list_pairs(log) == [("b", 0.25)]
        log.record_shadow_decision(SHADOW).result()
    for days, count in ((29, 1), (31, 0)):
        purge_expired_texts(log.database, NOW + timedelta(days=days), 30)
        assert len(list_pairs(log)) == count


def make_window(start: int, end: int, version: str = "v1.0.0", **changes: object) -> MonitoringWindow:
    fields = {"statistics": make_window_statistics(decisions=300), **changes}
    return MonitoringWindow(version, START + start * DAY, START + end * DAY, **fields)


def test_read_windows_returns_written_ones_oldest_first(log: DecisionLog) -> None:
    database = log.database
    statistics = make_window_statistics(guarantee=make_guarantee(e_value=float("inf"), low=float("nan")))
    first, second = make_window(0, 3, alarms=ALARMS, is_final=True), make_window(3, 4, statistics=statistics)
    write_windows(database, [second, first])
    assert read_windows(database) == (first, second)
    assert read_windows(database, newest=1) == (second,)
    assert (first.headline, second.headline) == ("Alarm: input drift and feed silent", "Quiet")
    assert [alarm.action for alarm in first.alarms] == [Code.INPUT_DRIFT.remedy, "ring them up"]


def test_write_windows_replaces_later_ones_of_the_version(log: DecisionLog) -> None:
    database = log.database
    write_windows(database, [make_window(0, 3), make_window(3, 4), make_window(4, 8), make_window(3, 4, "v2.0.0")])
    write_windows(database, [make_window(3, 5, statistics=make_window_statistics(decisions=400)), make_window(5, 8)])
    rows = [((each.start - START).days, each.version, each.statistics.decisions) for each in read_windows(database)]
    assert sorted(rows) == [(0, "v1.0.0", 300), (3, "v1.0.0", 400), (3, "v2.0.0", 300), (5, "v1.0.0", 300)]
    write_windows(database, [])
    assert len(read_windows(database)) == 4
