"""How a stage is run: the command that DVC is given."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tasks import pipeline
from tasks.workspace import Workspace


@pytest.mark.parametrize(("force", "options"), [(False, []), (True, ["--force"])])
def test_stage_is_run_again_only_where_forced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: bool, options: list[str]
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(pipeline, "get_run_logger", lambda: logging.getLogger())
    monkeypatch.setattr(pipeline, "run", lambda command, *_, **__: commands.append(command) or "Running stage")
    found = pipeline.run_stage.fn(Workspace(tmp_path, 0), "dataset", force=force)
    assert commands == [["dvc", "--wait-for-lock", "repro", "--single-item", *options, "dataset"]]
    assert found.status == "ran"


def test_a_stage_that_is_not_stale_starts_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "run", lambda command, *_, **__: pytest.fail(f"started {command}"))
    found = pipeline.run_stage.fn(Workspace(tmp_path, 0), "dataset", is_stale=False)
    assert found.status == "cached"
