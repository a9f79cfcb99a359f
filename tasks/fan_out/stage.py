"""The fan-out as a step of the flow, before the stage that needs what it computes."""

from __future__ import annotations

from contextlib import closing

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from abstain.scorers.reading import fill
from abstain.settings import load_settings
from tasks.fan_out import runner_for
from tasks.pipeline import read_asked
from tasks.progress import observe
from tasks.workspace import Workspace

STEP = "fan_out"


@task(task_run_name=STEP, cache_policy=NO_CACHE)
def fan_out(workspace: Workspace, stage: str) -> None:
    """Have all that `stage` asks the base model computed by `ABSTAIN_RUNNER`, unless it is cached as a whole."""
    logger = get_run_logger()
    if workspace.dvc("--wait-for-lock", "status", "--json", stage).strip() == "{}":
        observe(STEP, "cached")
        return
    settings = load_settings()
    params, _, asked = read_asked(workspace, settings)

    def progress(done: int, total: int) -> None:
        observe(STEP, f"progress {done}/{total}")
        logger.info("%s %s of %s", STEP, done, total)

    with closing(runner_for(settings)) as runner:
        cost = fill(params.llm, settings, asked, progress, runner)
    observe(STEP, "ran" if cost.rows else "cached")
