"""Dry run of a retrain: the stage graph and the stale stages, read from DVC's command line, never restated here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from abstain.config.params import load_params
from abstain.config.yaml_model import load_yaml
from abstain.core import paths
from abstain.core.errors import AbstainError
from abstain.ingest.quarantine import require_unblocked
from abstain_tasks.runs.workspace import Workspace
from abstain_tasks.training.stage_times import estimate_seconds

if TYPE_CHECKING:
    from abstain_tasks.training.retrain_cost import RetrainCost

EDGE = re.compile(r'"(?P<up>[^"]+)" -> "(?P<down>[^"]+)"')
NODE = re.compile(r'^"(?P<name>[^"]+)";$', re.MULTILINE)
BASE_MODEL_STAGES = frozenset({"features", "nll_features", "ablate", "evaluate"})
"""The stages that use the base model, or its cached results."""
REQUIREMENTS, LOCK = "requirements.lock", "dvc.lock"
KINDS = {"data": "data", "src": "code", paths.PARAMS.name: "parameters"}
"""The first part of a changed path -> what has changed, in one word."""
AFTER = "after"


@dataclass(frozen=True)
class Change:
    """One reason why a stage would run.

    Attributes:
        kind: "data", "code", "parameters", "command" or "output"; `AFTER` if the stage `name` would run before; else
            "".
        name: The path that has changed, or what DVC says.
        details: The changed keys of a file of parameters; for another path what happened to it.
    """

    kind: str
    name: str
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = " ".join((self.name, *self.details))
        return {AFTER: f"after {text}", "output": f"{text} (output)"}.get(self.kind, text)


@dataclass(frozen=True)
class StagePlan:
    """The plan of one stage.

    Attributes:
        reasons: Why it would run; empty if it is cached.
        summary: The same in at most five words.
        tokens: Tokens that the base model has to read; None if the stage reads none or is cached.
        seconds: Expected duration by the last runs on this machine; None if unknown.
    """

    reasons: list[Change]
    summary: str
    tokens: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class RetrainPlan:
    """The plan of a retrain.

    Attributes:
        stages: Plan by stage.
        cost: The model requests; None if no stage that uses models would run.
        earlier: Cached stages that were first computed with another requirements.lock.
        blocked: Why a retrain would fail, with the remedy; None if it would run.
    """

    stages: dict[str, StagePlan]
    cost: RetrainCost | None
    earlier: list[str]
    blocked: str | None = None


def make_plan(workspace: Workspace) -> RetrainPlan:
    """Make a dry run: read changes from DVC and missing entries from the feature cache, and run nothing.

    Args:
        workspace: The workspace.

    Returns:
        The plan.
    """
    stale = find_stale(workspace, read_graph(workspace))
    cost, blocked = None, None
    try:
        require_unblocked(workspace.path / paths.DATA)
        if any(stale.get(name) for name in BASE_MODEL_STAGES):
            from abstain_tasks.training.retrain_cost import (
                estimate_retrain_cost,  # torch and the tokenizer: not where all is cached
            )

            cost = estimate_retrain_cost(workspace)
    except AbstainError as error:
        blocked = error.message_with_code
    earlier = find_stages_with_other_requirements(workspace)
    lock = workspace.path / LOCK
    recorded = _parse_stages(lock.read_text()) if lock.is_file() else {}
    stages = {
        name: _make_stage_plan(name, reasons, name in recorded, workspace, cost) for name, reasons in stale.items()
    }
    return RetrainPlan(stages, cost, [name for name in stale if name in earlier and not stale[name]], blocked)


def _make_stage_plan(
    stage: str, reasons: list[Change], has_run: bool, workspace: Workspace, cost: RetrainCost | None
) -> StagePlan:
    if not reasons:
        return StagePlan([], "nothing changed")
    summary = summarize_reasons(reasons) if has_run else "no recorded run"
    if stage in BASE_MODEL_STAGES and cost is None:
        return StagePlan(reasons, summary)
    tokens = cost.tokens.get(stage) if cost else None
    model = load_params(workspace.path / paths.PARAMS).llm.model if tokens else ""
    return StagePlan(reasons, summary, tokens, estimate_seconds(stage, model, tokens or 0))


def summarize_reasons(reasons: Sequence[Change]) -> str:
    """Summarize the reasons of `find_stale` in at most five words: what changed, otherwise the stages before.

    Args:
        reasons: The reasons.

    Returns:
        The summary.
    """
    kinds = list(dict.fromkeys(reason.kind for reason in reasons if reason.kind not in ("", AFTER)))[:3]
    keys = [key for reason in reasons if reason.kind == "parameters" for key in reason.details]
    if kinds == ["parameters"] and len(keys) == 1:
        return f"parameter {keys[0]} changed"
    if kinds:
        return f"{' and '.join(filter(None, [', '.join(kinds[:-1]), kinds[-1]]))} changed"
    stages = [reason.name for reason in reasons if reason.kind == AFTER]
    return f"after {', '.join(stages[:4])}" if stages else "inputs changed"


def read_graph(workspace: Workspace) -> dict[str, set[str]]:
    """Read the stage graph from `dvc dag --dot`.

    Args:
        workspace: The workspace.

    Returns:
        Stage -> the stages that it depends on, in an order that can be run.
    """
    dot = workspace.dvc("dag", "--dot")
    upstream: dict[str, set[str]] = {name: set() for name in NODE.findall(dot) if not name.endswith(".dvc")}
    for up, down in EDGE.findall(dot):
        if up in upstream:
            upstream[down].add(up)
    ordered: dict[str, set[str]] = {}
    while len(ordered) < len(upstream):
        ready = [name for name, ups in upstream.items() if name not in ordered and ups <= ordered.keys()]
        ordered |= {name: upstream[name] for name in ready}
    return ordered


def get_upstream(graph: Mapping[str, set[str]], last: str) -> dict[str, set[str]]:
    """Get the part of a graph with one stage and everything that it depends on.

    Args:
        graph: Stage -> the stages that it depends on, in order.
        last: The stage.

    Returns:
        The partial graph.
    """
    needed = {last}
    for name in reversed(list(graph)):  # in the order of the graph, a stage comes after those that it waits for
        if name in needed:
            needed |= graph[name]
    return {name: ups for name, ups in graph.items() if name in needed}


def find_stale(workspace: Workspace, graph: Mapping[str, set[str]]) -> dict[str, list[Change]]:
    """Find out by `dvc status` why stages would run.

    Args:
        workspace: The workspace.
        graph: The stage graph.

    Returns:
        Stage -> what has changed, and which stale stages come before; empty if it is cached.
    """
    changed = {name: _parse_changes(entries) for name, entries in json.loads(workspace.dvc("status", "--json")).items()}
    stale: dict[str, list[Change]] = {}
    for name, ups in graph.items():
        stale[name] = changed.get(name, []) + [Change(AFTER, up) for up in sorted(ups) if stale[up]]
    return stale


def find_stages_with_other_requirements(workspace: Workspace) -> set[str]:
    """Find the stages whose entry in dvc.lock dates from another requirements.lock than the current one.

    That is: the entry is in the newest committed dvc.lock with a different requirements.lock. A stage that was computed
    again with an equal result counts by its first computation.

    Args:
        workspace: The workspace.

    Returns:
        The stages.
    """
    commits = workspace.git("log", "--format=%H", "--topo-order", "--full-history", "--", LOCK).split()
    if not commits:
        return set()
    revisions = ["HEAD", *commits]
    digests = workspace.git("rev-parse", *(f"{revision}:{REQUIREMENTS}" for revision in revisions)).split()
    other_revision = next(
        (revision for revision, digest in zip(revisions, digests, strict=True) if digest != digests[0]), None
    )
    if other_revision is None:
        return set()
    other_entries, entries = (
        _parse_stages(workspace.git("show", f"{revision}:{LOCK}")) for revision in (other_revision, "HEAD")
    )
    return {name for name, entry in entries.items() if other_entries.get(name) == entry}


def _parse_stages(text: str) -> dict[str, object]:
    return dict(load_yaml(text).get("stages", {}))


def _parse_changes(entries: list[object]) -> list[Change]:
    """Parse DVC's status of one stage."""
    changes = []
    for entry in entries:
        if not isinstance(entry, dict):
            changes.append(Change("command" if entry == "changed command" else "", str(entry)))
            continue
        for changed, items in entry.items():
            for path, state in items.items() if isinstance(items, dict) else ():
                kind = "output" if changed == "changed outs" else KINDS.get(PurePosixPath(path).parts[0], "")
                changes.append(Change(kind, path, tuple(state) if isinstance(state, dict) else (str(state),)))
    return changes
