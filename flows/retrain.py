"""The retrain flow: run stale stages, publish their results, promote a better candidate.

abstain retrain            or, from the Prefect UI: deployment retrain/nightly
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.futures import PrefectFuture, wait
from prefect.task_runners import ThreadPoolTaskRunner

from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.ingest.quarantine import require_unblocked
from abstain_tasks.data.contradictions import emit_contradiction_alarms
from abstain_tasks.monitoring.publish import publish_artifacts, publish_validation
from abstain_tasks.release.promotion import PromotionResult, promote_candidate
from abstain_tasks.release.promotion_params import refill_holdout
from abstain_tasks.runs.duplicate_runs import cancel_duplicate_runs
from abstain_tasks.runs.failures import coded_failures
from abstain_tasks.runs.git_commit import commit, push
from abstain_tasks.runs.progress import notify_observers
from abstain_tasks.runs.run_params import commit_params
from abstain_tasks.runs.stopping import stop_threads_on_error
from abstain_tasks.runs.workspace import Workspace, open_workspace
from abstain_tasks.training.fan_out.stage import FANNED_OUT, fan_out, get_fan_out_step
from abstain_tasks.training.pipeline import StageResult, run_stage
from abstain_tasks.training.plan import find_stale, get_upstream, read_graph
from abstain_tasks.training.site_choice import choose_site, should_choose_site

LABEL_STAGE = "dataset"
"""The stage that makes the labels: by its training answers the probe's layer is chosen."""


@dataclass(frozen=True)
class RetrainResult:
    """The result of a retrain.

    Attributes:
        stages: Every stage in order.
        promotion: The promotion; None if none was requested.
        report: Page with the candidate's report, which the next run overwrites.
    """

    stages: list[StageResult]
    promotion: PromotionResult | None
    report: Path


@flow(task_runner=ThreadPoolTaskRunner(max_workers=2), validate_parameters=False)  # type: ignore[arg-type]
@coded_failures()
def retrain(
    promote: bool = True,
    new_holdout: str | None = None,
    force: bool = False,
    params: str | None = None,
    choose_layer: bool = False,
    refill: bool = False,
) -> RetrainResult:
    """Run the DAG's stale stages, publish artifacts, check and promote the candidate.

    Args:
        promote: False stops before the promotion checks.
        new_holdout: Recorded reason why the hold-out may differ from the one the champion was promoted on.
        force: Run cached stages too.
        params: File of parameters that differ from params.yaml for this run. Its commits reach the origin only if its
            version is promoted.
        choose_layer: Choose the probe's layer and site again, as with `llm.layer: auto`.
        refill: Replace a used-up hold-out by the answers about its groups that were asked since it was frozen.

    Returns:
        Stages, promotion and report.

    Raises:
        AbstainError: Among others, production was trained on erased rows, the candidate without them is worse, and no
            decision is recorded.
    """
    cancel_duplicate_runs()
    with open_workspace() as workspace:
        require_unblocked(workspace.path / paths.DATA)
        base_commit, result_by_stage = None, {}
        if refill:
            refill_holdout(workspace)
        try:
            if choose_layer or should_choose_site(workspace, None if params is None else Path(params)):
                result_by_stage = {stage.stage: stage for stage in run_dag(workspace, last=LABEL_STAGE)}
                choose_site(workspace)
            if params is not None:
                base_commit = commit_params(workspace, Path(params))
            stages = [
                result_by_stage.get(stage.stage, stage) if stage.status == "cached" else stage
                for stage in run_dag(workspace, force)
            ]
        except Exception:  # except interruptions, which leave no results and must end fast
            publish_validation(workspace)
            raise
        publish_validation(workspace)
        publish_artifacts(workspace)
        if any((stage.stage, stage.status) == (LABEL_STAGE, "ran") for stage in stages):
            emit_contradiction_alarms(workspace)
        ran = ", ".join(stage.stage for stage in stages if stage.status == "ran")
        if commit(workspace, f"Retrain: {ran or 'nothing was stale'}", "dvc.lock") and base_commit is None:
            push(workspace)
        outcome = promote_candidate(workspace, new_holdout, base_commit=base_commit) if promote else None
        return RetrainResult(stages, outcome, workspace.path / paths.REPORT / "report.html")


def run_dag(workspace: Workspace, force: bool = False, last: str | None = None) -> list[StageResult]:
    """Run one task for each stage, after the stages that it depends on in DVC; the first failure is raised.

    A stage that is unchanged by `dvc status` starts no command if all stages before it are unchanged, too. If other
    processes compute features, they do so before the stage that reads them from the cache. When the flow is
    interrupted, so are the stages.

    Args:
        workspace: The workspace.
        force: Run cached stages too.
        last: Run only this stage and those that it needs; None for all.

    Returns:
        The results, in the order of the graph.
    """
    graph = read_graph(workspace)
    for stage in graph:
        notify_observers(stage, "waiting")
    if last is not None:
        graph = get_upstream(graph, last)
    stale = find_stale(workspace, graph)
    futures: dict[str, PrefectFuture[Any]] = {}
    with stop_threads_on_error():
        for stage, waits_for in graph.items():
            upstream = [futures[up] for up in waits_for]
            if stage in FANNED_OUT and stale[stage] and load_settings().runner != "local":
                step = get_fan_out_step(stage)
                futures[step] = fan_out.submit(workspace, stage, wait_for=upstream)  # type: ignore[call-overload]
                upstream = [*upstream, futures[step]]
            futures[stage] = run_stage.submit(  # type: ignore[call-overload]
                workspace, stage, is_stale=bool(stale[stage]), force=force, wait_for=upstream
            )
        wait(list(futures.values()))
    for future in futures.values():  # in the order of the graph: the cause comes before the stages that it blocked
        future.state.result()
    return [futures[stage].result() for stage in graph]
