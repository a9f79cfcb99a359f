from datetime import UTC, datetime
from pathlib import Path

import pytest

from abstain.core.codes import Code
from abstain.data.decision_log.monitoring_windows import Alarm, MonitoringWindow
from abstain_cli.monitor import format_monitoring, load_example_questions
from abstain_tasks.monitoring.monitor import MonitoringResult
from tests.data.decision_log.builders import decision, interaction, make_window_statistics, open_log, record, url_of


def test_format_monitoring_without_a_window_names_the_parameters() -> None:
    (line,) = format_monitoring(MonitoringResult(windows=(), history=(), raised=()), {})
    assert "monitoring.min_decisions" in line and "monitoring.min_reviews" in line


@pytest.mark.heavy
def test_format_monitoring_examples_have_logged_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABSTAIN_HOME", str(tmp_path))
    alarm = Alarm(Code.INPUT_DRIFT, "questions differ", ("i-1", "i-2", "i-9"))
    days = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 11, 6, tzinfo=UTC)
    window = MonitoringWindow("v1.0.0", *days, make_window_statistics(), (alarm,))
    assert load_example_questions(window) == {}, "there is no log"
    long = interaction("i-2").model_copy(update={"question": "Is it\n\x1b[2J" + "so " * 100})
    log = open_log(url_of(tmp_path))
    record(log, decision("i-1"), decision("i-2", interaction=long), decision("i-3"))
    log.close()
    questions = load_example_questions(window)
    assert questions.keys() == {"i-1", "i-2"}, "only those of the examples"
    lines = list(format_monitoring(MonitoringResult(windows=(window,), history=(window,), raised=()), questions))
    assert lines[0] == f"{window.headline}: {window.title}" and any(line.startswith("reviews  ") for line in lines)
    first, second, third = (line for line in lines if line.startswith("  example"))
    assert first == f"  example i-1: {interaction('i-1').question}"
    assert second.startswith("  example i-2: Is it ") and "\x1b" not in second and len(second) <= 100
    assert third == "  example i-9"
