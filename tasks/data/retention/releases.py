"""Old releases: bundles in the home's store, and files in the DVC cache and remote that only older commits name.

Notes:

* A bundle in the home is one that production or a roll-back may still need unless its version is blocked. The newest
  versions stay even then.
* In DVC, all tags keep their bundles, data and outputs, whatever their age: `dvc gc` is told so. A remote outside of
  the home may hold the files of other projects, too, so nothing is deleted there.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path

from abstain.config.settings import load_settings
from abstain.core.formatting import format_count
from abstain.release.registry import VERSION, Registry, parse_version
from tasks.data.retention.expired import ExpiredItems, bytes_of, remove_all
from tasks.runs.progress import notify_observers
from tasks.runs.workspace import Workspace

_WOULD_GO = re.compile(r"Removing (?P<path>/.+)")
_LEFTOVER_DAYS = 1
"""A bundle that is being fetched for longer was left by a killed process."""


def clear_releases(registry: Registry, versions: int, now: datetime, *, apply: bool) -> ExpiredItems:
    """The bundles in the home of blocked versions that are not among the newest `versions`, and of unknown ones."""
    folder = load_settings().home.resolve() / "releases"
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    kept = needed_versions(registry, versions)
    gone = [one for one in found if VERSION.fullmatch(one.name) and one.name not in kept]
    before = (now - timedelta(days=_LEFTOVER_DAYS)).timestamp()
    gone += [one for one in found if one.name.startswith(".fetching-") and one.stat().st_mtime < before]
    size = bytes_of(gone)
    if apply:
        remove_all(gone)
    return ExpiredItems("bundles in the home", len(gone), size)


def needed_versions(registry: Registry, newest: int) -> set[str]:
    """The version in production, those that a roll-back may choose, and the newest ones."""
    promoted = sorted({event.version for event in registry.history}, key=parse_version)
    unblocked = {version for version in promoted if version not in registry.blocked}
    live = {registry.production_version} if registry.production_version else set()
    return unblocked | live | set(promoted[-newest:])


def clear_objects(workspace: Workspace, days: int, now: datetime, *, apply: bool) -> ExpiredItems:
    """The files of the DVC cache and of the home's own remote that no tag, no branch and no commit since names.

    DVC reads what each of these commits names, in time that grows with their number; where there is no file, none is.
    """
    kind, remote = "files in the DVC cache and remote", workspace.remote_folder()
    elsewhere = "" if remote else "the DVC remote is outside of the home: nothing is deleted there"
    folders = (load_settings().home.resolve() / "dvc-cache", *([remote] if remote else []))
    if not any(path.is_file() for folder in folders for path in folder.rglob("*")):
        return ExpiredItems(kind, 0, 0, elsewhere)
    since = f"{now - timedelta(days=days):%Y-%m-%d}"
    kept = ["--workspace", "--all-branches", "--all-tags", "--date", since]
    command = ["gc", *kept, "--force", *(["--cloud"] if remote else [])]
    commits = int(workspace.git("rev-list", "--count", "--all", f"--since={since}"))
    notify_observers("retention", f"{kind}: DVC reads {format_count(commits, 'commit')} since {since}")
    listed = workspace.dvc(*command, "--dry").splitlines()
    gone = [Path(match["path"]) for line in listed if (match := _WOULD_GO.fullmatch(line))]
    size = bytes_of(gone)
    if apply and gone:
        workspace.dvc(*command)
    return ExpiredItems(kind, len(gone), size, elsewhere)
