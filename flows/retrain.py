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
from tasks.data.contradictions import emit_contradiction_alarms
from tasks.monitoring.publish import publish_artifacts, publish_validation
from tasks.release.promotion import PromotionResult, promote_candidate
from tasks.release.promotion_params import refill_holdout
from tasks.runs.duplicate_runs import cancel_duplicate_runs
from tasks.runs.failures import coded_failures
from tasks.runs.git_commit import commit, push
from tasks.runs.progress import notify_observers
from tasks.runs.run_params import commit_params
from tasks.runs.stopping import stop_threads_on_error
from tasks.runs.workspace import Workspace, open_workspace
from tasks.training.fan_out.stage import FANNED_OUT, fan_out, get_fan_out_step
from tasks.training.pipeline import StageResult, run_stage
from tasks.training.plan import find_stale, get_upstream, read_graph
from tasks.training.site_choice import choose_site, wants_choice

LABEL_STAGE = "dataset"
"""The stage that makes the labels: by its training answers the probe's layer is chosen."""


@dataclass(frozen=True)
class RetrainResult:
    """The outcome of a retrain: every stage in order, its promotion (None where none was requested), and the page with
    the candidate's report, which the next run writes anew."""

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
    """Run the DAG's stale stages, publish artifacts, judge and promote the candidate.

    `promote=False` stops before the gate. `new_holdout` is the recorded reason why the hold-out may differ from the one
    the champion was promoted on. `force` runs cached stages too. `params` is a file of parameters that differ from
    params.yaml for this run, whose commits reach the origin only if its version is promoted. `choose_layer` chooses the
    probe's layer and site again, as with `llm.layer: auto`. `refill` replaces a used-up hold-out by the answers about
    its groups that were asked since it was frozen. Fails while production was trained on erased rows, the
    candidate without them is worse, and no decision is recorded.
    """
    cancel_duplicate_runs()
    with open_workspace() as workspace:
        require_unblocked(workspace.path / paths.DATA)
        before, ran_already = None, {}
        if refill:
            refill_holdout(workspace)
        try:
            if choose_layer or wants_choice(workspace, None if params is None else Path(params)):
                ran_already = {stage.stage: stage for stage in run_dag(workspace, last=LABEL_STAGE)}
                choose_site(workspace)
            if params is not None:
                before = commit_params(workspace, Path(params))
            stages = [
                ran_already.get(stage.stage, stage) if stage.status == "cached" else stage
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
        if commit(workspace, f"Retrain: {ran or 'nothing was stale'}", "dvc.lock") and before is None:
            push(workspace)
        outcome = promote_candidate(workspace, new_holdout, before=before) if promote else None
        return RetrainResult(stages, outcome, workspace.path / paths.REPORT / "report.html")


def run_dag(workspace: Workspace, force: bool = False, last: str | None = None) -> list[StageResult]:
    """One task per stage, each waiting for the stages that it depends on in DVC; the first failure is raised.

    With `last`, only that stage and those that it needs.

    A stage that is unchanged by `dvc status` starts no command if all stages before it are unchanged, too. Where other
    processes compute features, they do so before the stage that reads them from the cache. When the flow is
    interrupted, so are the stages.
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
