"""The DAG's stages, each run as one Prefect task; `abstain_tasks.training.plan` reads the list of stages from DVC."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from prefect import State, get_run_logger, task
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE

from abstain.config.params import load_params
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain_tasks.runs.progress import notify_observers
from abstain_tasks.runs.shell import run
from abstain_tasks.runs.workspace import Workspace
from abstain_tasks.training.stage_times import BaseModelUsage, record_run

PROGRESS = re.compile(r"progress (?P<done>\d+)/(?P<total>\d+)")
TOKENS = re.compile(r".*: (?P<tokens>\d+) tokens were run for passes of \d+")
ADVICE = re.compile(
    r"|\s*(To track the changes with git|git add |To enable auto staging|dvc config core|Use `dvc push`).*"
)
CACHED = ("didn't change, skipping", "is cached - skipping run")


def report_progress(step: str, logger: Any) -> Callable[[str], None]:
    """Make a callback for the output of a step.

    Args:
        step: Name of the step.
        logger: The run's log.

    Returns:
        Called with each line: progress becomes a bar in the UI, everything else goes to the log.
    """
    bar = None

    def on_line(line: str) -> None:
        nonlocal bar
        if ADVICE.fullmatch(line):  # for people who run DVC by hand; the flow does it all
            return
        notify_observers(step, line)
        match = PROGRESS.fullmatch(line)
        if match is None:
            logger.info(line)
            return
        percent = 100 * int(match["done"]) / int(match["total"])
        if bar is None:
            bar = create_progress_artifact(percent, key=step.replace("_", "-"), description=f"progress of {step}")
        else:
            update_progress_artifact(bar, percent)
        logger.info("%s %s of %s", step, match["done"], match["total"])

    return on_line


@dataclass(frozen=True)
class StageResult:
    """The result of one stage.

    Attributes:
        stage: Name of the stage.
        status: Whether it ran or was cached.
        seconds: Duration.
    """

    stage: str
    status: Literal["ran", "cached"]
    seconds: float


def _may_succeed_again(_task: Any, _run: Any, state: State) -> bool:
    """Return whether to retry: DVC may have failed, by its locks for instance; an error of the stage would repeat."""
    try:
        state.result()
    except AbstainError as error:
        return error.code is Code.FAILED_STEP
    except Exception:
        return False
    return False


@task(task_run_name="{stage}", cache_policy=NO_CACHE, retries=1, retry_condition_fn=_may_succeed_again)
def run_stage(workspace: Workspace, stage: str, is_stale: bool = True, force: bool = False) -> StageResult:
    """Run `dvc repro --single-item STAGE` and stream its log. A finished stage is a no-op, so a retry is safe.

    Args:
        workspace: The workspace.
        stage: The stage.
        is_stale: Whether anything has changed; if not, no command is run.
        force: Run a finished stage again.

    Returns:
        Status and duration.
    """
    if not (is_stale or force):
        notify_observers(stage, "cached")
        return StageResult(stage, "cached", 0.0)
    notify_observers(stage, "running")
    reading: tuple[int, float] | None = None  # tokens of the base model, and the seconds until they were read
    started = time.monotonic()
    report = report_progress(stage, get_run_logger())

    def on_line(line: str) -> None:
        nonlocal reading
        if match := TOKENS.fullmatch(line):
            reading = int(match["tokens"]), time.monotonic() - started
        report(line)

    command = ["dvc", "--wait-for-lock", "repro", "--single-item", *(["--force"] if force else []), stage]
    output = run(command, workspace.path, on_line, inherit=[workspace.lock], name=f"stage {stage}")
    status: Literal["ran", "cached"] = "cached" if any(text in output for text in CACHED) else "ran"
    notify_observers(stage, status)
    seconds = time.monotonic() - started
    if status == "ran":
        model = load_params(workspace.path / paths.PARAMS).llm.model if reading else ""
        record_run(stage, seconds, BaseModelUsage(model, *reading) if reading else None)
    return StageResult(stage, status, seconds)
