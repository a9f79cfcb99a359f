"""The whole policy, part by part: `abstain retention` and the weekly flow."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from abstain.config.params import load_params
from abstain.config.settings import decision_log_url, load_settings
from abstain.core import paths
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.expiry import count_expired, delete_expired
from abstain.llm.features.file_store import FileStore
from abstain.llm.features.job_files import JOBS, left_jobs
from abstain.release.registry import load_registry
from tasks.data.retention.expired import ExpiredItems, bytes_of, remove_all
from tasks.data.retention.releases import clear_objects, clear_releases
from tasks.runs.progress import notify_observers
from tasks.runs.workspace import open_workspace
from tasks.server import reports


def apply_retention(now: datetime, *, apply: bool) -> list[ExpiredItems]:
    """What the policy of the origin's params.yaml lets go at `now`; with `apply` it is deleted, else nothing is.

    Raises `AbstainError` where a part cannot be read; what was deleted before stays so.
    """
    notify_observers("retention", "releases: waiting for the workspace")
    with open_workspace() as workspace:
        policy = load_params(workspace.path / paths.PARAMS).retention
        registry = load_registry(workspace.path / paths.REGISTRY)
        result = [
            clear_releases(registry, policy.versions, now, apply=apply),
            clear_objects(workspace, policy.artifact_days, now, apply=apply),
        ]
    notify_observers("retention", "rows of the decision log")
    result.append(delete_expired_decisions(policy.decision_days, registry.production_version, now, apply=apply))
    result.append(clear_reports(policy.report_days, now, apply=apply))
    notify_observers("retention", "files of the feature cache")
    result.append(delete_expired_features(policy.feature_days, apply=apply))
    return result


def delete_expired_decisions(days: int, live: str | None, now: datetime, *, apply: bool) -> ExpiredItems:
    database = LogDatabase.existing(decision_log_url(load_settings()))
    if database is None:
        return ExpiredItems("rows of the decision log", 0, None)
    try:
        count = (delete_expired if apply else count_expired)(database, now, days, live)
    finally:
        database.close()
    return ExpiredItems("rows of the decision log", count, None)


def clear_reports(days: int, now: datetime, *, apply: bool) -> ExpiredItems:
    """The report pages, a folder for each run, that were last written more than `days` ago."""
    folder, before = reports.folder(), (now - timedelta(days=days)).timestamp()
    gone = [page for page in (folder.iterdir() if folder.is_dir() else ()) if page.stat().st_mtime < before]
    size = bytes_of(gone)
    if apply:
        remove_all(gone)
    return ExpiredItems("report pages", len(gone), size)


def delete_expired_features(days: int, *, apply: bool) -> ExpiredItems:
    """Of a cache outside of the home, which other projects may fill, only the jobs of killed runs, which hold texts."""
    kind, settings = "files of the feature cache", load_settings()
    if settings.features_url is not None:
        store = FileStore(settings.features)
        left = left_jobs(store.list(JOBS))
        for file in left if apply else ():
            store.delete(file.name)
        kept = "ABSTAIN_FEATURES may be shared: `abstain cache prune` deletes features there"
        return ExpiredItems(kind, len(left), sum(file.size for file in left), kept)
    if not Path(settings.features).is_dir():
        return ExpiredItems(kind, 0, 0)
    from abstain.llm.features.maintenance import prune  # torch
    from tasks.data.feature_cache import needed_keys

    gone = prune(settings.features, needed_keys(), timedelta(days=days), dry_run=not apply)
    return ExpiredItems(kind, len(gone.names), gone.bytes)
