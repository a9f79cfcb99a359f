"""Write a backup of the home: under another name until it is whole."""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
import stat
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from abstain.config.settings import Settings, load_settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from tasks.backup.contents import ORIGIN, copy_sqlite, elsewhere, is_sqlite, parts_of, walk
from tasks.backup.manifest import FORMAT, Manifest, StoredCopy, copy_hashed
from tasks.shell import git
from tasks.workspace import Workspace, alone

HOME = "home"
"""The folder of a backup that holds the home's files."""


def back_up(destination: Path) -> Manifest:
    """Write a backup of the home to the new folder `destination`; returns its manifest.

    No run writes meanwhile: it holds the workspace's lock. Servers go on. Raises `AbstainError` where there is no home,
    the destination exists or cannot be written, or a part is damaged; then there is no backup.
    """
    settings = load_settings()
    home, destination = settings.home.resolve(), destination.expanduser().absolute()
    _require_place(home, destination)
    scratch = destination.with_name(f".{destination.name}.{secrets.token_hex(4)}.partial")
    try:
        with alone(home / "workspace.lock") as lock:
            scratch.mkdir(mode=0o700)
            manifest = _copy(settings, Workspace(home / "workspace", lock), scratch)
        os.sync()
        manifest.write(scratch)
        if destination.exists():  # made by another one meanwhile; a rename would replace an empty folder
            raise FileExistsError(17, "made by another process meanwhile")
        scratch.rename(destination)
    except sqlite3.Error as error:
        raise AbstainError(Code.WRONG_FORMAT, f"a database in {home} cannot be read ({error}): restore it") from None
    except OSError as error:
        raise AbstainError(
            Code.NOT_WRITABLE,
            f"{error.filename or destination}: {error.strerror}: there is no backup; free space or name another folder",
        ) from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return manifest


def _require_place(home: Path, destination: Path) -> None:
    if not home.is_dir():
        raise AbstainError(Code.NOT_READABLE, f"there is no home {home}: set ABSTAIN_HOME to one")
    if destination.exists() or destination.is_symlink():
        raise AbstainError(Code.NOT_WRITABLE, f"{destination} exists: name a folder that does not, such as one by date")
    if destination.resolve().is_relative_to(home):
        raise AbstainError(Code.NOT_WRITABLE, f"{destination} is in the home {home}: name a folder on another disk")
    if not destination.parent.is_dir():
        raise AbstainError(Code.NOT_WRITABLE, f"{destination.parent} is no folder: make it first")


def _copy(settings: Settings, workspace: Workspace, scratch: Path) -> Manifest:
    home = settings.home.resolve()
    has_own_remote = not workspace.path.is_dir() or workspace.remote_folder() is not None
    if not has_own_remote:
        workspace.dvc("fetch", "--all-tags", "--all-branches", "--quiet")
    files: dict[str, StoredCopy] = {}
    folders: list[str] = []
    for part in parts_of(home, has_own_remote=has_own_remote):
        for name, place in walk(part, home):
            if place.is_dir():
                folders.append(name)
                (scratch / HOME / name).mkdir(parents=True, exist_ok=True)
            elif place.is_file():
                with suppress(FileNotFoundError):  # it went meanwhile, as the temporary file of a write does
                    files[name] = _copy_file(place, scratch / HOME / name)
    if (scratch / HOME / ORIGIN).is_dir():
        git(scratch / HOME / ORIGIN, "fsck", "--connectivity-only", "--no-dangling", "--no-progress")
    made_at = datetime.now(UTC).isoformat(timespec="seconds")
    said = tuple(elsewhere(settings, workspace, has_own_remote=has_own_remote))
    return Manifest(format=FORMAT, made_at=made_at, files=files, folders=tuple(folders), elsewhere=said)


def _copy_file(source: Path, target: Path) -> StoredCopy:
    if not is_sqlite(source):
        return copy_hashed(source, target)
    moment = target.with_name(f"{target.name}.moment")
    target.parent.mkdir(parents=True, exist_ok=True)
    copy_sqlite(source, moment)
    stored = copy_hashed(moment, target, stat.S_IMODE(source.stat().st_mode))
    moment.unlink()
    return stored
