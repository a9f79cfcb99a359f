"""What of a home a backup holds, and what it names but leaves elsewhere.

Notes:

* Everything is in it that is not known to be made again by itself: a part that a later release adds is not forgotten.
* SQLite files are read through SQLite's online backup, which gives the state of one moment while others write. A copy
  of the bytes would lack what is in the write-ahead log.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from fnmatch import fnmatch
from pathlib import Path

from sqlalchemy.engine import make_url

from abstain.config.settings import Settings
from abstain.core.filesystem import redacted_url
from tasks.workspace import Workspace

MADE_AGAIN = (
    "models",
    "features",
    "embeddings",
    "decoder-checks",
    "workspace",
    "demo",
    "*.lock",
    "*.pid",
    "*.log",
    ".*",
)
"""Entries of a home that are caches, clones and traces of processes."""
CACHE, REMOTE, ORIGIN = "dvc-cache", "dvc-remote", "origin.git"
_BESIDE_SQLITE = ("-wal", "-shm", "-journal")
_SQLITE = b"SQLite format 3\0"
_PREFECT_DATABASE = ("PREFECT_SERVER_DATABASE_CONNECTION_URL", "PREFECT_API_DATABASE_CONNECTION_URL")


def parts_of(home: Path, *, has_own_remote: bool) -> list[Path]:
    """The files and folders in the home that are backed up.

    The history is the first: what a push adds meanwhile comes after it, and no commit is without its data.
    The DVC cache is in it where the remote is elsewhere: then it is the copy of that.
    """
    left_out = (*MADE_AGAIN, CACHE if has_own_remote else REMOTE)
    parts = [one for one in sorted(home.iterdir()) if not any(fnmatch(one.name, name) for name in left_out)]
    return sorted(parts, key=lambda one: one.name != ORIGIN)


def walk(part: Path, home: Path) -> Iterator[tuple[str, Path]]:
    """The path in the home, and the place, of `part` and all folders and files below; links are followed."""
    places = [part]
    for folder, folders, files in os.walk(part, followlinks=True):
        places += [Path(folder) / name for name in sorted((*folders, *files))]
    for place in places:
        base, dash, kind = place.name.rpartition("-")
        if dash + kind in _BESIDE_SQLITE and is_sqlite(place.with_name(base)):
            continue
        yield place.relative_to(home).as_posix(), place


def is_sqlite(file: Path) -> bool:
    if not file.is_file():
        return False
    with file.open("rb") as content:
        return content.read(len(_SQLITE)) == _SQLITE


def copy_sqlite(source: Path, target: Path) -> None:
    """Write the state of one moment of the database `source`. Raises `sqlite3.Error`, also for a damaged one."""
    live = sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True, timeout=60)
    with closing(live), closing(sqlite3.connect(target)) as copy:
        live.backup(copy)
        (found,) = copy.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise sqlite3.DatabaseError(found)


def elsewhere(settings: Settings, workspace: Workspace, *, has_own_remote: bool) -> Iterator[str]:
    """A line for each thing that lies outside of the home and is not in the backup: what it is, and what to do."""
    if settings.origin is not None:
        yield (
            f"the git history is in {redacted_url(settings.origin)}: its server keeps it, or copy it with "
            "`git clone --mirror`"
        )
    if settings.decisions is not None:
        yield f"the decision log is in PostgreSQL: {_pg_dump(settings.decisions.get_secret_value(), 'decision_log*')}"
    database = next(filter(None, map(os.environ.get, _PREFECT_DATABASE)), "")
    if database.startswith("postgres"):
        yield f"the Prefect server's database is PostgreSQL: {_pg_dump(database)}"
    prefect = os.environ.get("PREFECT_HOME")
    if prefect and not Path(prefect).resolve().is_relative_to((settings.home / "prefect").resolve()):
        yield f"the Prefect database is in {prefect}: copy it while no server runs"
    if not has_own_remote:
        yield "the DVC remote is outside of the home: what its tags and branches name is here, in the DVC cache"
    if settings.user_key is not None:
        yield "the key of the pseudonyms is ABSTAIN_USER_KEY: keep it where you keep secrets"


def _pg_dump(url: str, tables: str | None = None) -> str:
    """The command that dumps it, without a password, which pg_dump takes from PGPASSWORD or ~/.pgpass."""
    parsed = make_url(url)
    shown = parsed.set(drivername="postgresql", password=None).render_as_string()
    return f"`pg_dump --format=custom {f'--table {tables!r} ' if tables else ''}--file FILE {shown}`"
