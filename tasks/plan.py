"""Dry run of a retrain: the stage graph and the stale stages, read from DVC's command line, never restated here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from tasks.workspace import Workspace

if TYPE_CHECKING:
    from tasks.demand import Demand

EDGE = re.compile(r'"(?P<up>[^"]+)" -> "(?P<down>[^"]+)"')
NODE = re.compile(r'^"(?P<name>[^"]+)";$', re.MULTILINE)
READS_THE_BASE_MODEL = frozenset({"features", "nll_features", "ablate", "evaluate"})
"""The stages that use the base model, or its cached results."""
REQUIREMENTS, LOCK = "requirements.lock", "dvc.lock"


@dataclass(frozen=True)
class RetrainPlan:
    """What a retrain would do.

    `stale`: per stage why it would run, empty where it is cached. `demand`: the model requests, None where no stage
    that uses models would run. `earlier`: the cached stages first computed with another requirements.lock.
    """

    stale: dict[str, list[str]]
    demand: Demand | None
    earlier: list[str]


def make_plan(workspace: Workspace) -> RetrainPlan:
    """A dry run: reads changes from DVC and missing entries from the feature cache; runs nothing."""
    stale = find_stale(workspace, read_graph(workspace))
    demand = None
    if any(stale.get(name) for name in READS_THE_BASE_MODEL):
        from tasks.demand import count_demand  # torch and the tokenizer: not where all is cached

        demand = count_demand(workspace)
    earlier = computed_with_other_requirements(workspace)
    return RetrainPlan(stale, demand, [name for name in stale if name in earlier and not stale[name]])


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


def find_stale(workspace: Workspace, graph: Mapping[str, set[str]]) -> dict[str, list[str]]:
    """Per stage of `graph` why it would run, by `dvc status`: what has changed, which stale stages come before."""
    changed = {name: _reasons(entries) for name, entries in json.loads(workspace.dvc("status", "--json")).items()}
    stale: dict[str, list[str]] = {}
    for name, ups in graph.items():
        stale[name] = changed.get(name, []) + [f"after {up}" for up in sorted(ups) if stale[up]]
    return stale


def computed_with_other_requirements(workspace: Workspace) -> set[str]:
    """The stages whose entry in dvc.lock dates from another requirements.lock than the current one.

    That is: the entry is in the newest committed dvc.lock with a different requirements.lock. A stage that was computed
    again with an equal result counts by its first computation.
    """
    commits = workspace.git("log", "--format=%H", "--topo-order", "--full-history", "--", LOCK).split()
    if not commits:
        return set()
    revisions = ["HEAD", *commits]
    digests = workspace.git("rev-parse", *(f"{revision}:{REQUIREMENTS}" for revision in revisions)).split()
    of = next((revision for revision, digest in zip(revisions, digests, strict=True) if digest != digests[0]), None)
    if of is None:
        return set()
    then, now = (_entries(workspace, revision) for revision in (of, "HEAD"))
    return {name for name, entry in now.items() if then.get(name) == entry}


def _entries(workspace: Workspace, revision: str) -> dict[str, Any]:
    text = workspace.git("show", f"{revision}:{LOCK}")
    return dict(yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)).get("stages", {}))


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
