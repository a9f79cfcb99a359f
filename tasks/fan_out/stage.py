"""The fan-out as a step of the flow, before a stage that needs what it computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from abstain.config.params import Params
from abstain.config.settings import Settings, load_settings
from tasks.fan_out import runner_for
from tasks.progress import observe
from tasks.workspace import Workspace

if TYPE_CHECKING:
    from abstain.llm.features.compute import Progress
    from abstain.llm.features.shard_job import Done, ShardRunner
    from abstain.llm.signals.feature_plan import Labelled


def _features(params: Params, settings: Settings, labelled: Labelled, progress: Progress, runner: ShardRunner) -> Done:
    from abstain.llm.signals.compute_features import fill
    from abstain.llm.signals.feature_plan import everything
    from abstain.llm.signals.registry import compared

    asked = everything(params, compared(params, settings).scorers, labelled)
    return fill(params.llm, settings, asked, progress, runner)


def _nll_features(
    params: Params, settings: Settings, labelled: Labelled, progress: Progress, runner: ShardRunner
) -> Done:
    from abstain.llm.signals.feature_plan import conditions

    read, rows = conditions(params, settings, labelled)
    perturbing, reading = read.fill(rows, progress, runner)
    return perturbing + reading


FANNED_OUT: Mapping[str, Callable[[Params, Settings, Labelled, Progress, ShardRunner], Done]] = {
    "features": _features,
    "nll_features": _nll_features,
}
"""The stages whose work `ABSTAIN_RUNNER` may give to other processes before they start."""


def step_before(stage: str) -> str:
    """What the fan-out before `stage` is called."""
    return f"fan_out_{stage}"


@task(task_run_name="fan_out_{stage}", cache_policy=NO_CACHE)
def fan_out(workspace: Workspace, stage: str) -> None:
    """Have all that `stage` asks of models computed by `ABSTAIN_RUNNER`, unless it is cached as a whole."""
    logger, step = get_run_logger(), step_before(stage)
    if workspace.dvc("--wait-for-lock", "status", "--json", stage).strip() == "{}":
        observe(step, "cached")
        return
    from tasks.demand import read_labelled  # torch: not where the stage is cached

    settings = load_settings()
    params, labelled = read_labelled(workspace)

    def progress(done: int, total: int) -> None:
        observe(step, f"progress {done}/{total}")
        logger.info("%s %s of %s", step, done, total)

    with closing(runner_for(settings)) as runner:
        cost = FANNED_OUT[stage](params, settings, labelled, progress, runner)
    observe(step, "ran" if cost.rows else "cached")
