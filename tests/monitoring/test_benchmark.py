import pytest

from benchmarks import monitoring


def test_main_prints_a_line_for_each_cell(capsys: pytest.CaptureFixture[str]) -> None:
    monitoring.main(["--only", "guarantees", "--years", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(list(monitoring.make_review_cells()))
    assert {line.count(" | ") for line in lines} == {5}


def test_main_prints_the_table_of_calibration(capsys: pytest.CaptureFixture[str]) -> None:
    monitoring.main(["--only", "calibration", "--windows", "2", "--seeds", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 10 and {line.count(" | ") for line in lines} == {4}
