"""Retention of bundles in the home, and of files in the DVC cache and remote that only older commits name.

Notes:

* A bundle in the home may still be needed by production or a rollback unless its version is blocked. The newest
  versions are kept in any case.
* In DVC, all tags keep their bundles, data and outputs, whatever their age: `dvc gc` is told so. A remote outside of
  the home may hold files of other projects, so nothing is deleted there.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path

from abstain.config.settings import load_settings
from abstain.core.formatting import format_count
from abstain.release.registry import VERSION, Registry, parse_version
from abstain_tasks.data.retention.expired import ExpiredItems, count_bytes, remove_all
from abstain_tasks.runs.progress import notify_observers
from abstain_tasks.runs.workspace import Workspace

_WOULD_GO = re.compile(r"Removing (?P<path>/.+)")
_LEFTOVER_DAYS = 1
"""A bundle that is being fetched for longer was left by a killed process."""


def delete_expired_bundles(registry: Registry, versions: int, now: datetime, *, apply: bool) -> ExpiredItems:
    """Report, or delete, the bundles in the home of unknown versions and of blocked ones that are not among the newest.

    Args:
        registry: The registry.
        versions: Number of newest versions that are kept.
        now: Current time (UTC).
        apply: Whether to delete.

    Returns:
        The expired bundles.
    """
    folder = load_settings().home.resolve() / "releases"
    folders = sorted(folder.iterdir()) if folder.is_dir() else []
    needed = get_needed_versions(registry, versions)
    expired = [path for path in folders if VERSION.fullmatch(path.name) and path.name not in needed]
    cutoff = (now - timedelta(days=_LEFTOVER_DAYS)).timestamp()
    expired += [path for path in folders if path.name.startswith(".fetching-") and path.stat().st_mtime < cutoff]
    size = count_bytes(expired)
    if apply:
        remove_all(expired)
    return ExpiredItems("bundles in the home", len(expired), size)


def get_needed_versions(registry: Registry, newest: int) -> set[str]:
    """Get the version in production, those that a rollback may choose, and the newest ones.

    Args:
        registry: The registry.
        newest: Number of newest versions.

    Returns:
        The versions.
    """
    promoted = sorted({event.version for event in registry.history}, key=parse_version)
    unblocked = {version for version in promoted if version not in registry.blocked}
    live = {registry.production_version} if registry.production_version else set()
    return unblocked | live | set(promoted[-newest:])


def delete_expired_objects(workspace: Workspace, days: int, now: datetime, *, apply: bool) -> ExpiredItems:
    """Report, or delete, DVC files that no tag, no branch and no recent commit names.

    This covers the DVC cache and the home's own remote. DVC reads the files of each of these commits, so the time grows
    with their number; without any file, no commit is read.

    Args:
        workspace: The workspace.
        days: Age in days of a recent commit.
        now: Current time (UTC).
        apply: Whether to delete.

    Returns:
        The expired files.
    """
    kind, remote = "files in the DVC cache and remote", workspace.remote_folder()
    note = "" if remote else "the DVC remote is outside of the home: nothing is deleted there"
    folders = (load_settings().home.resolve() / "dvc-cache", *([remote] if remote else []))
    if not any(path.is_file() for folder in folders for path in folder.rglob("*")):
        return ExpiredItems(kind, 0, 0, note)
    since = f"{now - timedelta(days=days):%Y-%m-%d}"
    keep_options = ["--workspace", "--all-branches", "--all-tags", "--date", since]
    command = ["gc", *keep_options, "--force", *(["--cloud"] if remote else [])]
    commits = int(workspace.git("rev-list", "--count", "--all", f"--since={since}"))
    notify_observers("retention", f"{kind}: DVC reads {format_count(commits, 'commit')} since {since}")
    listed = workspace.dvc(*command, "--dry").splitlines()
    expired = [Path(match["path"]) for line in listed if (match := _WOULD_GO.fullmatch(line))]
    size = count_bytes(expired)
    if apply and expired:
        workspace.dvc(*command)
    return ExpiredItems(kind, len(expired), size, note)
