"""Ingest as one unit: accept rows, `dvc add`, one commit, one push; killed anywhere, nothing is half-in."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from prefect import get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from abstain import paths
from abstain.errors import AbstainError
from abstain.feedback.ingest import ingest
from abstain.feedback.report import IngestReport
from abstain.params import load_params
from tasks.progress import observe
from tasks.record import commit, push
from tasks.workspace import Workspace


@task(cache_policy=NO_CACHE)
def ingest_files(workspace: Workspace, files: Sequence[Path]) -> IngestReport:
    """Validate `files` and append what is accepted; refused rows go to quarantine, with their reasons."""
    params = load_params(workspace.path / paths.PARAMS).validation
    data = workspace.path / paths.DATA
    try:
        report = ingest(files, data, params, datetime.now(UTC))
    except AbstainError:
        if data.is_dir():  # a batch that was refused whole has left its rows in quarantine, and nothing else
            _record(workspace, "Quarantine a refused batch")
        raise
    create_markdown_artifact(report.to_markdown(), key="ingest", description="what was accepted, and what was not")
    get_run_logger().info(report.to_markdown())
    changed = _record(workspace, f"Ingest {', '.join(sorted(file.name for file in files))}")
    observe("ingest", "ran" if changed else "cached")
    return report


def _record(workspace: Workspace, message: str) -> bool:
    workspace.dvc("add", "--quiet", str(paths.DATA))
    changed = commit(workspace, message, "data.dvc")
    if changed:
        push(workspace)
    return changed
