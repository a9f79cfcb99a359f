"""What `abstain monitor` prints of the newest window, and where there is none yet."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from abstain.core.codes import Code
from abstain.data.decision_log.monitoring_windows import Alarm, MonitoringWindow
from abstain_cli.monitor import format_monitoring, load_example_questions
from abstain_tasks.monitoring.monitor import MonitoringResult
from tests.data.decision_log.builders import decision, interaction, make_window_statistics, open_log, url_of


def test_who_has_traffic_but_no_window_learns_what_a_window_needs() -> None:
    """Enough decisions of today make no window: days that are not over are not counted."""
    (said,) = format_monitoring(MonitoringResult(windows=(), history=(), raised=()), {})
    assert "monitoring.min_decisions" in said and "monitoring.min_reviews" in said
    assert "tomorrow" in said


def window(*alarms: Alarm) -> MonitoringWindow:
    begin, end = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 11, 6, tzinfo=UTC)
    return MonitoringWindow("v1.0.0", begin, end, make_window_statistics(), alarms)


def printed(one: MonitoringWindow, asked: dict[str, str]) -> list[str]:
    return list(format_monitoring(MonitoringResult(windows=(one,), history=(one,), raised=()), asked))


@pytest.mark.heavy
def test_an_example_has_the_question_that_the_log_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABSTAIN_HOME", str(tmp_path))
    drifted = window(Alarm(Code.INPUT_DRIFT, "questions differ", ("i-1", "i-2", "i-9")))
    assert load_example_questions(drifted) == {}, "there is no log"
    long = interaction("i-2").model_copy(update={"question": "Is it\n\x1b[2J" + "so " * 100})
    log = open_log(url_of(tmp_path))
    for one in (decision("i-1"), decision("i-2", interaction=long), decision("i-3")):
        log.record_decision(one).result()
    log.close()
    asked = dict(load_example_questions(drifted))
    assert asked.keys() == {"i-1", "i-2"}, "those of the examples alone"
    first, second, third = (line for line in printed(drifted, asked) if line.startswith("  example"))
    assert first == f"  example i-1: {interaction('i-1').question}"
    assert second.startswith("  example i-2: Is it ") and "\x1b" not in second and len(second) <= 100
    assert third == "  example i-9"
