"""The fan-out as a step of the flow, before a stage that needs its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from abstain.config.params import Params
from abstain.config.settings import Settings, load_settings
from abstain_tasks.runs.progress import notify_observers
from abstain_tasks.runs.workspace import Workspace
from abstain_tasks.training.fan_out import make_runner

if TYPE_CHECKING:
    from abstain.llm.features.feature_store import OnProgress
    from abstain.llm.features.shard_job import JobStats, ShardRunner
    from abstain.llm.signals.feature_plan import LabelledAnswers


def _features(
    params: Params, settings: Settings, labelled: LabelledAnswers, progress: OnProgress, runner: ShardRunner
) -> JobStats:
    from abstain.llm.signals.compute_features import compute_missing
    from abstain.llm.signals.feature_plan import plan_features
    from abstain.llm.signals.registry import build_scorers

    work = plan_features(params, build_scorers(params, settings).scorers, labelled)
    return compute_missing(params.llm, settings, work, progress, runner)


def _nll_features(
    params: Params, settings: Settings, labelled: LabelledAnswers, progress: OnProgress, runner: ShardRunner
) -> JobStats:
    from abstain.llm.signals.feature_plan import plan_nll_features

    nll_plan, rows = plan_nll_features(params, settings, labelled)
    perturbing, reading = nll_plan.compute_missing(rows, progress, runner)
    return perturbing + reading


FANNED_OUT: Mapping[str, Callable[[Params, Settings, LabelledAnswers, OnProgress, ShardRunner], JobStats]] = {
    "features": _features,
    "nll_features": _nll_features,
}
"""The stages whose model requests `ABSTAIN_RUNNER` may compute in other processes before they start."""


def get_fan_out_step(stage: str) -> str:
    """Return the name of the fan-out before a stage."""
    return f"fan_out_{stage}"


@task(task_run_name="fan_out_{stage}", cache_policy=NO_CACHE)
def fan_out(workspace: Workspace, stage: str) -> None:
    """Compute all model requests of a stage by `ABSTAIN_RUNNER`, unless the stage is cached.

    Args:
        workspace: The workspace.
        stage: The stage.
    """
    logger, step = get_run_logger(), get_fan_out_step(stage)
    if workspace.dvc("--wait-for-lock", "status", "--json", stage).strip() == "{}":
        notify_observers(step, "cached")
        return
    from abstain_tasks.training.retrain_cost import read_labelled  # torch: not where the stage is cached

    settings = load_settings()
    params, labelled, _ = read_labelled(workspace)

    def progress(done: int, total: int) -> None:
        notify_observers(step, f"progress {done}/{total}")
        logger.info("%s %s of %s", step, done, total)

    cost = FANNED_OUT[stage](params, settings, labelled, progress, make_runner(settings))
    notify_observers(step, "ran" if cost.rows else "cached")
