"""Counts the reviews since the version in production was trained; at a certain number a retrain is due."""

from __future__ import annotations

from datetime import datetime

from abstain.config.params import load_params
from abstain.core import paths
from abstain.data.store.dataset import DataStore
from abstain.ingest.report import IngestReport
from abstain.release.registry import load_registry, make_version_tag
from abstain.sample.shipped import DATA_POINTER
from abstain_tasks.runs.events import INGESTED, REVIEWS, post_event
from abstain_tasks.runs.workspace import Workspace


def emit_ingest_events(workspace: Workspace, report: IngestReport) -> None:
    """Emit events for ingested rows, and for a retrain that is due because a portion of new reviews is full.

    The second event is about `abstain.reviews.VERSION.N`. N is the number of full portions of
    `monitoring.retrain_after_reviews` reviews, so that an automation can distinguish portions.

    Args:
        workspace: The workspace.
        report: The report of the ingest.
    """
    rows = sum(report.contracts.values())
    if not rows:
        return
    post_event(INGESTED, rows=rows)
    version, count = count_new_reviews(workspace)
    portions = count // load_params(workspace.path / paths.PARAMS).monitoring.retrain_after_reviews
    if portions:
        post_event(REVIEWS, f"{REVIEWS}.{version}.{portions}", count=count, version=version)


def count_new_reviews(workspace: Workspace) -> tuple[str, int]:
    """Count the reviews in `data/` that arrived after the training data of production.

    A version's data is what data.dvc recorded at its tag. Reviews that arrived while it was trained and checked are
    new.

    Args:
        workspace: The workspace.

    Returns:
        The version in production ("none" without one), and the number of reviews.
    """
    registry = load_registry(workspace.path / paths.REGISTRY)
    since = None
    if registry.production_version is not None:
        tag = f"refs/tags/{make_version_tag(registry.production_version)}"
        workspace.require_revision(tag)
        since = datetime.fromisoformat(workspace.git("log", "-1", "--format=%cI", tag, "--", str(DATA_POINTER)).strip())
    batches = DataStore(workspace.path / paths.DATA).read_batches()
    new = sum(batch.rows.get("reviews", 0) for batch in batches if since is None or batch.arrived_at > since)
    return registry.production_version or "none", new
