from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from abstain.core.codes import Code
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.monitoring_windows import Alarm, MonitoringWindow, read_windows, write_windows
from tests.data.decision_log.builders import make_guarantee, make_window_statistics, url_of

DAY = timedelta(days=1)
START = datetime(2026, 11, 2, tzinfo=UTC)
ALARMS = (
    Alarm(Code.INPUT_DRIFT, "contexts differ", ("a", "b")),
    Alarm(Code.FEED_SILENT, "silence", (), "ring them up"),
)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[LogDatabase]:
    with closing(LogDatabase.open(url_of(tmp_path))) as opened:
        yield opened


def window(start: int, end: int, version: str = "v1.0.0", decisions: int = 300, **changes: object) -> MonitoringWindow:
    made = MonitoringWindow(
        version, START + start * DAY, START + end * DAY, make_window_statistics(decisions=decisions)
    )
    return replace(made, **changes)


def test_windows_come_back_as_they_were_written_oldest_first(database: LogDatabase) -> None:
    statistics = make_window_statistics(guarantee=make_guarantee(e_value=float("inf"), low=float("nan")))
    first, second = window(0, 3, alarms=ALARMS, is_final=True), window(3, 4, statistics=statistics)
    write_windows(database, [second, first])
    assert read_windows(database) == (first, second)
    assert read_windows(database, newest=1) == (second,)
    assert (first.headline, second.headline) == ("Alarm: input drift and feed silent", "Quiet")
    assert [one.action for one in first.alarms] == [Code.INPUT_DRIFT.remedy, "ring them up"]


def test_windows_take_the_place_of_all_of_their_version_from_their_start_on(database: LogDatabase) -> None:
    write_windows(database, [window(0, 3), window(3, 4), window(4, 8), window(3, 4, "v2.0.0")])
    write_windows(database, [window(3, 5, decisions=400), window(5, 8)])
    found = [((one.start - START).days, one.version, one.statistics.decisions) for one in read_windows(database)]
    assert sorted(found) == [(0, "v1.0.0", 300), (3, "v1.0.0", 400), (3, "v2.0.0", 300), (5, "v1.0.0", 300)]
    write_windows(database, [])
    assert len(read_windows(database)) == 4
