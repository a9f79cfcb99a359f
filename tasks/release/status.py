"""The state of production as the origin records it; takes no lock and changes no file."""

from __future__ import annotations

import json

from abstain.core import paths
from abstain.learning.evaluation.evaluation_result import EvaluationMetrics, HoldoutMetrics
from abstain.release.registry import Registry, parse_registry
from abstain_tasks.runs.shell import git
from abstain_tasks.runs.workspace import fetch_origin_snapshot


def read_status() -> tuple[Registry, HoldoutMetrics | None]:
    """Read the registry and the hold-out metrics of the version in production.

    Returns:
        The registry, and the metrics from the approval record; None if nothing is in production.
    """
    repository, revision = fetch_origin_snapshot()
    registry = parse_registry(git(repository, "show", f"{revision}:{paths.REGISTRY}"))
    if registry.production is None:
        return registry, None
    file = paths.APPROVALS / f"{registry.production.version}.json"
    record = json.loads(git(repository, "show", f"{revision}:{file}"))
    return registry, EvaluationMetrics.model_validate(record["metrics"]).holdout
