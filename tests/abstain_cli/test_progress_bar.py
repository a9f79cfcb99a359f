import io

import pytest
from rich.console import Console

from abstain_cli.progress_bar import RunProgressLine, step_progress
from abstain_tasks.runs.progress import notify_observers


def test_run_line_counts_announced_stages() -> None:
    line = RunProgressLine()
    for stage in ("validate", "features", "report"):
        line.update(stage, "waiting")
    line.update("validate", "running")
    assert str(line) == "stage 1 of 3: validate"
    line.update("validate", "cached")
    line.update("features", "running")
    assert str(line) == "stage 2 of 3: features"


def test_run_line_extrapolates_the_speed_since_the_first_report() -> None:
    now = 0.0
    line = RunProgressLine(lambda: now)
    line.update("features", "waiting")
    line.update("features", "progress 100/700")
    assert str(line) == "stage 1 of 1: features 100 of 700"
    now = 30.0
    line.update("features", "progress 300/700")
    assert str(line) == "stage 1 of 1: features 300 of 700, 1:00 left"


def test_run_line_second_count_of_a_step_starts_anew() -> None:
    now = 0.0
    line = RunProgressLine(lambda: now)
    line.update("nll_features", "progress 0/10")
    now = 100.0
    line.update("nll_features", "progress 10/10")
    line.update("nll_features", "progress 0/50")
    now = 110.0
    line.update("nll_features", "progress 25/50")
    assert str(line) == "nll_features 25 of 50, 0:10 left"


def test_step_progress_without_terminal_prints_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with step_progress(Console(file=io.StringIO())):
        notify_observers("features", "waiting")
        notify_observers("features", "fused 3 scores")
        for done in range(101):
            notify_observers("features", f"progress {done}/100")
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "features: fused 3 scores"
    assert len(printed) == 2 and "features" in printed[1]
