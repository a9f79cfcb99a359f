"""The whole retention policy, part by part, for `abstain retention` and the weekly flow."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from abstain.config.params import load_params
from abstain.config.settings import get_decision_log_url, load_settings
from abstain.core import paths
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.expiry import count_expired, delete_expired
from abstain.llm.features.file_store import FileStore
from abstain.llm.features.job_files import JOBS, find_abandoned_jobs
from abstain.release.registry import load_registry
from abstain_tasks.data.retention.expired import ExpiredItems, count_bytes, remove_all
from abstain_tasks.data.retention.releases import delete_expired_bundles, delete_expired_objects
from abstain_tasks.runs.progress import notify_observers
from abstain_tasks.runs.workspace import open_workspace
from abstain_tasks.server import reports


def apply_retention(now: datetime, *, apply: bool) -> list[ExpiredItems]:
    """Report, and delete if requested, what the policy in the origin's params.yaml expires.

    Args:
        now: Current time (UTC).
        apply: Whether to delete.

    Returns:
        The expired items of each part.

    Raises:
        AbstainError: A part cannot be read; what was deleted before stays deleted.
    """
    notify_observers("retention", "releases: waiting for the workspace")
    with open_workspace() as workspace:
        policy = load_params(workspace.path / paths.PARAMS).retention
        registry = load_registry(workspace.path / paths.REGISTRY)
        result = [
            delete_expired_bundles(registry, policy.versions, now, apply=apply),
            delete_expired_objects(workspace, policy.artifact_days, now, apply=apply),
        ]
    notify_observers("retention", "rows of the decision log")
    result.append(delete_expired_decisions(policy.decision_days, registry.production_version, now, apply=apply))
    result.append(delete_expired_reports(policy.report_days, now, apply=apply))
    notify_observers("retention", "files of the feature cache")
    result.append(delete_expired_features(policy.feature_days, apply=apply))
    return result


def delete_expired_decisions(days: int, live: str | None, now: datetime, *, apply: bool) -> ExpiredItems:
    """Report, or delete, expired rows of the decision log.

    Args:
        days: Age in days at which rows expire.
        live: The version in production; None without one.
        now: Current time (UTC).
        apply: Whether to delete.

    Returns:
        The expired rows.
    """
    database = LogDatabase.open_existing(get_decision_log_url(load_settings()))
    if database is None:
        return ExpiredItems("rows of the decision log", 0, None)
    try:
        count = (delete_expired if apply else count_expired)(database, now, days, live)
    finally:
        database.close()
    return ExpiredItems("rows of the decision log", count, None)


def delete_expired_reports(days: int, now: datetime, *, apply: bool) -> ExpiredItems:
    """Report, or delete, the report pages (one folder for each run) that are too old.

    Args:
        days: Age in days since the last write.
        now: Current time (UTC).
        apply: Whether to delete.

    Returns:
        The expired pages.
    """
    folder, cutoff = reports.get_folder(), (now - timedelta(days=days)).timestamp()
    expired = [page for page in (folder.iterdir() if folder.is_dir() else ()) if page.stat().st_mtime < cutoff]
    size = count_bytes(expired)
    if apply:
        remove_all(expired)
    return ExpiredItems("report pages", len(expired), size)


def delete_expired_features(days: int, *, apply: bool) -> ExpiredItems:
    """Report, or delete, files of the feature cache that nothing needs.

    In a cache outside of the home, which other projects may fill, only the jobs of killed runs expire, because they
    hold texts.

    Args:
        days: Age in days since the last write.
        apply: Whether to delete.

    Returns:
        The expired files.
    """
    kind, settings = "files of the feature cache", load_settings()
    if settings.features_url is not None:
        store = FileStore(settings.features)
        leftovers = find_abandoned_jobs(store.list(JOBS))
        for file in leftovers if apply else ():
            store.delete(file.name)
        note = "ABSTAIN_FEATURES may be shared: `abstain cache prune` deletes features there"
        return ExpiredItems(kind, len(leftovers), sum(file.size for file in leftovers), note)
    if not Path(settings.features).is_dir():
        return ExpiredItems(kind, 0, 0)
    from abstain.llm.features.maintenance import prune  # torch
    from abstain_tasks.data.feature_cache import collect_needed_keys

    deleted = prune(settings.features, collect_needed_keys(), timedelta(days=days), dry_run=not apply)
    return ExpiredItems(kind, len(deleted.names), deleted.bytes)
