"""The state of production as the origin records it; takes no lock and changes no file."""

from __future__ import annotations

import json
from typing import Any

from abstain.core import paths
from abstain.release.registry import Registry, parse_registry
from abstain_tasks.runs.shell import git
from abstain_tasks.runs.workspace import fetch_origin_snapshot


def read_status() -> tuple[Registry, dict[str, Any] | None]:
    """Read the registry and the hold-out metrics of the version in production.

    Returns:
        The registry, and the metrics from the approval record; None if nothing is in production.
    """
    repository, revision = fetch_origin_snapshot()

    def read(file: object) -> str:
        return git(repository, "show", f"{revision}:{file}")

    registry = parse_registry(read(paths.REGISTRY))
    if registry.production is None:
        return registry, None
    record = json.loads(read(paths.APPROVALS / f"{registry.production.version}.json"))
    holdout: dict[str, Any] = record["metrics"]["holdout"]
    return registry, holdout
