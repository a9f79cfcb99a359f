import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from abstain_tasks.runs.workspace import Workspace
from abstain_tasks.training import pipeline
from abstain_tasks.training.stage_times import BaseModelUsage
from tests.checkout import SHIPPED


@pytest.mark.parametrize(("force", "options"), [(False, []), (True, ["--force"])])
def test_run_stage_force_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: bool, options: list[str]
) -> None:
    monkeypatch.setenv("ABSTAIN_HOME", str(tmp_path / "home"))
    commands: list[list[str]] = []
    monkeypatch.setattr(pipeline, "get_run_logger", lambda: logging.getLogger())
    monkeypatch.setattr(pipeline, "run", lambda command, *_, **__: commands.append(command) or "Running stage")
    result = pipeline.run_stage.fn(Workspace(tmp_path, 0), "dataset", force=force)
    assert commands == [["dvc", "--wait-for-lock", "repro", "--single-item", *options, "dataset"]]
    assert result.status == "ran"


def test_run_stage_cached_starts_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "run", lambda command, *_, **__: pytest.fail(f"started {command}"))
    result = pipeline.run_stage.fn(Workspace(tmp_path, 0), "dataset", is_stale=False)
    assert result.status == "cached"


def test_run_stage_records_tokens_and_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "params.yaml").write_text(SHIPPED["params.yaml"])
    recorded: list[tuple[str, float, BaseModelUsage | None]] = []

    def run(command: list[str], folder: Path, on_line: Callable[[str], None], **_: object) -> str:
        for line in (
            "perturbing contexts: 7 tokens were run for passes of 9",
            "reading answers under B_c, N_c and P_c: 20000 tokens were run for passes of 30000",
        ):
            on_line(line)
        return "Running stage"

    monkeypatch.setattr(pipeline, "get_run_logger", lambda: logging.getLogger())
    monkeypatch.setattr(pipeline, "run", run)
    monkeypatch.setattr(pipeline, "record_run", lambda *run: recorded.append(run))
    pipeline.run_stage.fn(Workspace(tmp_path, 0), "nll_features")
    ((stage, seconds, reading),) = recorded
    assert stage == "nll_features" and reading is not None
    assert (reading.model, reading.tokens) == ("smollm2-135m-instruct", 20000) and reading.seconds <= seconds
