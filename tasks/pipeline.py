"""The DAG, read from DVC's public command line and run one Prefect task a stage; it is never restated."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from typing import Any, Literal

from prefect import State, get_run_logger, task
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE

from abstain import paths
from abstain.config.params import Params, load_params
from abstain.config.settings import load_settings
from abstain.errors import AbstainError
from abstain.features.rows import RowSource
from abstain.feedback.dataset import training_table
from abstain.feedback.frames import read_frames
from abstain.feedback.splits import reviewed_holdout
from abstain.feedback.store import Store
from abstain.scorers.asked import Labelled, conditions, everything
from abstain.scorers.catalogue import compared
from abstain.scorers.reading import requests_of
from tasks.progress import observe
from tasks.shell import run
from tasks.workspace import Workspace

EDGE = re.compile(r'"(?P<up>[^"]+)" -> "(?P<down>[^"]+)"')
NODE = re.compile(r'^"(?P<name>[^"]+)";$', re.MULTILINE)
PROGRESS = re.compile(r"progress (?P<done>\d+)/(?P<total>\d+)")
ADVICE = re.compile(
    r"|\s*(To track the changes with git|git add |To enable auto staging|dvc config core|Use `dvc push`).*"
)
CACHED = ("didn't change, skipping", "is cached - skipping run")


@dataclass(frozen=True)
class StageResult:
    """How one stage ended."""

    stage: str
    status: Literal["ran", "cached"]
    seconds: float


def read_graph(workspace: Workspace) -> dict[str, set[str]]:
    """Stage -> the stages it waits for, in an order that can be run, from `dvc dag --dot`."""
    dot = workspace.dvc("dag", "--dot")
    waits: dict[str, set[str]] = {name: set() for name in NODE.findall(dot) if not name.endswith(".dvc")}
    for up, down in EDGE.findall(dot):
        if up in waits:
            waits[down].add(up)
    ordered: dict[str, set[str]] = {}
    while len(ordered) < len(waits):
        ready = [name for name, ups in waits.items() if name not in ordered and ups <= ordered.keys()]
        ordered |= {name: waits[name] for name in ready}
    return ordered


def _was_busy(_task: Any, _run: Any, state: State) -> bool:
    """Retry what DVC's locks may cause; a stage that said what is wrong would only say it again."""
    try:
        state.result()
    except AbstainError as error:
        return "acquire lock" in str(error) or "is busy" in str(error)
    except Exception:
        return False
    return False


@task(task_run_name="{stage}", cache_policy=NO_CACHE, retries=1, retry_condition_fn=_was_busy)
def run_stage(workspace: Workspace, stage: str) -> StageResult:
    """`dvc repro --single-item STAGE`, its log streamed. A finished stage is a no-op, so a retry is safe."""
    logger = get_run_logger()
    bar = None
    started = time.monotonic()

    def on_line(line: str) -> None:
        nonlocal bar
        if ADVICE.fullmatch(line):  # for people who run DVC by hand; the flow does it all
            return
        observe(stage, line)
        match = PROGRESS.fullmatch(line)
        if match is None:
            logger.info(line)
            return
        percent = 100 * int(match["done"]) / int(match["total"])
        if bar is None:
            bar = create_progress_artifact(percent, key=stage.replace("_", "-"), description=f"progress of {stage}")
        else:
            update_progress_artifact(bar, percent)
        logger.info("%s %s of %s", stage, match["done"], match["total"])

    command = ["dvc", "--wait-for-lock", "repro", "--single-item", stage]
    output = run(command, workspace.path, on_line, inherit=[workspace.lock], name=f"stage {stage}")
    status: Literal["ran", "cached"] = "cached" if any(text in output for text in CACHED) else "ran"
    observe(stage, status)
    return StageResult(stage, status, time.monotonic() - started)


@dataclass(frozen=True)
class Plan:
    """What a retrain would do: per stage why it is stale (empty: cached), and what models would be asked.

    `readings`: of all labelled answers, the audits and the perturbed contexts together; `missing`: those that the cache
    does not have.
    """

    stale: dict[str, list[str]]
    answers: int
    readings: int
    missing: int


def make_plan(workspace: Workspace) -> Plan:
    """A dry run: asks DVC what changed and the feature cache what it lacks; runs nothing."""
    graph = read_graph(workspace)
    changed = {name: _reasons(entries) for name, entries in json.loads(workspace.dvc("status", "--json")).items()}
    stale: dict[str, list[str]] = {}
    for name, ups in graph.items():
        after = [f"after {up}" for up in sorted(ups) if stale[up]]
        stale[name] = changed.get(name, []) + after
    settings = load_settings()
    params, labelled = read_labelled(workspace)
    requests = requests_of(params.llm, settings, everything(params, compared(params, settings).scorers, labelled))
    missing = RowSource(params.llm.model, settings).missing(requests)
    read, rows = conditions(params, settings, labelled)
    more, more_missing = read.missing(rows)
    return Plan(stale, len(labelled.rows), len(requests) + more, missing + more_missing)


def read_labelled(workspace: Workspace) -> tuple[Params, Labelled]:
    """The workspace's parameters, and the interactions that have a label under them."""
    params = load_params(workspace.path / paths.PARAMS)
    store = Store(workspace.path / paths.DATA)
    frames = read_frames(store)
    table, _ = training_table(frames.interactions, frames.feedback, frames.reviews, params.labels, params.split)
    rows = store.interactions(table["interaction_id"])
    return params, Labelled(rows, reviewed_holdout(table, rows))


def _reasons(entries: list[object]) -> list[str]:
    """DVC's status of one stage as words: `data/x modified`, `params.yaml probe.hidden modified`."""
    reasons = []
    for entry in entries:
        if not isinstance(entry, dict):
            reasons.append(str(entry))
            continue
        for what, items in entry.items():
            for path, state in items.items() if isinstance(items, dict) else ():
                keys = f" {' '.join(state)}" if isinstance(state, dict) else f" {state}"
                reasons.append(f"{path}{keys}" if what != "changed outs" else f"{path}{keys} (output)")
    return reasons
