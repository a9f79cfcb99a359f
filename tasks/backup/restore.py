"""Restore a backup into an empty home: checked file by file, and in place by one rename."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

from abstain.config.settings import load_settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import make_home
from abstain.data.decision_log.database import LogDatabase
from tasks.backup.backup import HOME
from tasks.backup.manifest import Manifest, copy_hashed, read_manifest

LOG = "decisions.sqlite"


def restore(source: Path) -> Manifest:
    """Bring the backup in `source` into the home, which must be empty or not there; returns its manifest.

    Raises `AbstainError` where it is not, where the backup is not whole, or a file of it is not what was written; then
    the home is as before.
    """
    source, home = source.expanduser().absolute(), load_settings().home.resolve()
    manifest = read_manifest(source)
    if home.exists() and any(home.iterdir()):
        raise AbstainError(
            Code.NOT_WRITABLE, f"the home {home} is not empty: move it away, or set ABSTAIN_HOME to another one"
        )
    scratch = home.with_name(f".{home.name}.{secrets.token_hex(4)}.partial")
    try:
        make_home(scratch)
        _copy(manifest, source / HOME, scratch)
        if LOG in manifest.files:
            _make_another_log(scratch / LOG)
        scratch.rename(home)
    except OSError as error:
        raise AbstainError(
            Code.NOT_WRITABLE, f"{error.filename or home}: {error.strerror}: nothing was restored; try again"
        ) from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return manifest


def _copy(manifest: Manifest, source: Path, target: Path) -> None:
    for name in manifest.folders:
        (target / name).mkdir(parents=True, exist_ok=True)
    for name, stored in manifest.files.items():
        if not (source / name).is_file() or copy_hashed(source / name, target / name, stored.mode) != stored:
            raise AbstainError(
                Code.WRONG_FORMAT,
                f"{source / name} is not what the backup's manifest says: nothing was restored; use another backup",
            )


def _make_another_log(file: Path) -> None:
    """Numbers that this log gives anew may have been read already, of rows that came after the backup: by another id
    ingest knows that it has to read it from the start."""
    database = LogDatabase(f"sqlite:///{file}")
    try:
        database.renew_id()
    finally:
        database.close()
