from datetime import UTC, datetime, timedelta

from abstain.core.codes import Code
from abstain.data.decision_log.log import DecisionLog
from abstain.data.decision_log.monitoring_windows import Alarm, MonitoringWindow, read_windows, write_windows
from tests.data.decision_log.builders import make_guarantee, make_window_statistics

DAY = timedelta(days=1)
START = datetime(2026, 11, 2, tzinfo=UTC)
ALARMS = (
    Alarm(Code.INPUT_DRIFT, "contexts differ", ("a", "b")),
    Alarm(Code.FEED_SILENT, "silence", (), "ring them up"),
)


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
