"""What commands print: without control characters, with progress, and in sentences that say what a figure means."""

import io
import re
from datetime import UTC, datetime
from math import nan
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from abstain.core.codes import Code
from abstain.data.decision_log.monitoring_windows import Alarm, MonitoringWindow
from abstain.release.metric_comparison import MetricComparison
from abstain.release.promotion_record import ShadowRecord
from abstain_cli.guarantee_summary import summarize_holdout
from abstain_cli.monitor import format_monitoring, load_example_questions
from abstain_cli.progress_bar import RunProgressLine, step_progress
from abstain_cli.shadow import _make_table
from abstain_cli.terminal import Terminal
from abstain_tasks.monitoring.monitor import MonitoringResult
from abstain_tasks.runs.progress import notify_observers
from tests.checkout import ROOT
from tests.core.test_message_text import ATTACKS
from tests.data.decision_log.builders import decision, interaction, make_window_statistics, open_log, record, url_of
from tests.reports.builders import make_holdout_metrics

STYLE = re.compile("\x1b\\[[\\d;]*m")


@pytest.mark.parametrize("attack", ATTACKS)
def test_terminal_removes_controls_and_keeps_styles(attack: str) -> None:
    file = io.StringIO()
    console = Terminal(markup=False, highlight=False, file=file, force_terminal=True, color_system="standard")
    table = Table(title=attack)
    table.add_column(f"column {attack}")
    table.add_row(f"cell {attack}")
    console.print(f"before {attack} after", soft_wrap=True)
    console.print(table)
    console.print("red", style="red")
    printed = file.getvalue()
    assert "\x1b[31mred\x1b[0m" in printed
    assert not set(STYLE.sub("", printed)) & set("\x00\x07\r\x1b\x7f\x9b\u202e")


def test_commands_use_the_shared_console() -> None:
    console = re.compile(r"\bConsole\(|from rich import print")
    files = (ROOT / "src" / "abstain_cli").rglob("*.py")
    assert [file for file in files if console.search(file.read_text())] == []


def test_run_line_counts_stages_and_extrapolates_the_speed() -> None:
    now = 0.0
    line = RunProgressLine(lambda: now)
    for stage in ("validate", "features"):
        line.update(stage, "waiting")
    for message, shown in (("running", "stage 1 of 2: validate"), ("cached", "stage 2 of 2: ")):
        line.update("validate", message)
        assert str(line) == shown
    for seconds, done, left in ((100.0, 100, ""), (130.0, 300, ", 1:00 left")):
        now = seconds
        line.update("features", f"progress {done}/700")
        assert str(line) == f"stage 2 of 2: features {done} of 700{left}"
    for seconds, done in ((140.0, 0), (150.0, 25)):  # a second count of the step starts anew
        now = seconds
        line.update("features", f"progress {done}/50")
    assert str(line) == "stage 2 of 2: features 25 of 50, 0:10 left"


def test_step_progress_without_terminal_prints_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with step_progress(Console(file=io.StringIO())):
        notify_observers("features", "waiting")
        notify_observers("features", "fused 3 scores")
        for done in range(101):
            notify_observers("features", f"progress {done}/100")
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "features: fused 3 scores"
    assert len(printed) == 2 and "features" in printed[1]


def summarize(metric: str = "precision", value: float = 0.8, **at: Any) -> str:
    figures = {"precision": 0.85, "coverage": 0.4, "shown": 60, "shown_n_eff": 57.3}
    figures |= {"precision_low": 0.77, "precision_high": 0.92, "error_rate_low": 0.03, "error_rate_high": 0.1}
    target = {"metric": metric, "value": value, "min_n_eff": 20}
    return summarize_holdout(make_holdout_metrics(figures | at, rows=150, target=target))


@pytest.mark.parametrize(
    ("metric", "value", "outcome", "is_uncertain"),
    [
        ("precision", 0.8, "kept on the hold-out: 85.0 % (95 % interval 77.0 % to 92.0 %) of 60 shown", True),
        ("precision", 0.9, "missed on the hold-out: 85.0 % (95 % interval 77.0 % to 92.0 %) of 60 shown", True),
        ("error_rate", 0.05, "missed on the hold-out: 6.0 % (95 % interval 3.0 % to 10.0 %) of 150 ", True),
        ("error_rate", 0.11, "kept on the hold-out: 6.0 % (95 % interval 3.0 % to 10.0 %) of 150 ", False),
    ],
)
def test_summarize_holdout_has_outcome_and_doubt(metric: str, value: float, outcome: str, is_uncertain: bool) -> None:
    text = summarize(metric, value)
    assert text.startswith(outcome) and ("chance" in text) is is_uncertain
    assert (", 60 of them shown" in text) is (metric == "error_rate")


def test_summarize_holdout_without_enough_shown_judges_nothing() -> None:
    few = summarize(shown=13, shown_n_eff=12.4)
    assert "cannot be judged: 8 more" in few and "13 are there" in few
    none = summarize(precision=None, coverage=0.0, shown=0, shown_n_eff=0.0)
    assert none.startswith("cannot be judged: nothing is shown")
    assert "cannot be judged" in summarize(shown_groups=5 - 1) and summarize(shown_groups=5).startswith("kept")


@pytest.mark.parametrize(("low", "high", "text"), [(0.05, nan, "(no interval)"), (0.05, 0.15, "(+0.050 to +0.150)")])
def test_compare_prints_a_difference_with_its_interval(low: float, high: float, text: str) -> None:
    row = MetricComparison("AUROC", candidate=0.8, champion=0.7, difference=0.1, low=low, high=high)
    record = ShadowRecord.model_construct(shadow="shadow-1", champion="v1.0.0", champion_comparison=(row,))
    console = Console(width=200)
    with console.capture() as captured:
        console.print(_make_table(record))
    assert f"+0.100 {text}" in captured.get() and "nan" not in captured.get()


@pytest.mark.heavy
def test_format_monitoring_examples_have_logged_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABSTAIN_HOME", str(tmp_path))
    (line,) = format_monitoring(MonitoringResult(windows=(), history=(), raised=()), {})
    assert "monitoring.min_decisions" in line and "monitoring.min_reviews" in line, "there is no window yet"
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
