"""The tables of docs/studies/monitoring.md are printed, so that the benchmark does not rot."""

from __future__ import annotations

import pytest

from benchmarks import monitoring


def test_every_cell_of_a_table_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    monitoring.main(["--only", "guarantees", "--years", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(list(monitoring.make_review_cells()))
    assert {line.count(" | ") for line in lines} == {5}


def test_calibration_has_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    monitoring.main(["--only", "calibration", "--windows", "2", "--seeds", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 10 and {line.count(" | ") for line in lines} == {4}
